"""A trained model in the format of another program: written, verified, and only then left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.interop import ctranslate2
from regard.interop import graphs as programs
from regard.interop import huggingface_marian as marian
from regard.interop.argos import write_argos
from regard.interop.export_ctranslate2 import write_ctranslate2
from regard.interop.huggingface_marian import write_huggingface
from regard.interop.huggingface_vision import write_huggingface_images
from regard.interop.lengths import longest_input
from regard.interop.onnx import ONNX
from regard.interop.torch import TORCH
from regard.interop.verification import sample_sources
from regard.models.card import CARD, build_card
from regard.models.folder import find_model_folder, model_input_type, replace_folder
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator


class Format(NamedTuple):
    """How models of each kind are written; None where the format has no such models.

    Attributes:
        sines: rows of its tables of sines, beyond which no text can go.
        library: what a model hub calls the program that loads it.
    """

    text: Callable[..., list[str]]
    images: Callable[[Classifier, Path], list[str]] | None
    sines: int
    library: str


FORMATS = {
    "ctranslate2": Format(write_ctranslate2, None, ctranslate2.POSITIONS, "ctranslate2"),
    "huggingface": Format(write_huggingface, write_huggingface_images, marian.POSITIONS, "transformers"),
    "onnx": Format(ONNX.write, ONNX.write_images, programs.POSITIONS, "onnx"),
    "torch": Format(TORCH.write, TORCH.write_images, programs.POSITIONS, "pytorch"),
    "argos": Format(write_argos, None, ctranslate2.POSITIONS, "argostranslate"),
}
QUANTISING = ("ctranslate2", "argos")
"""The formats with a choice of numbers."""


def export(
    run: Path, out: Path, to: str, quantization: str | None = None, texts: Sequence[str] | None = None
) -> list[str]:
    """Writes the model of a run into a new folder, and returns sentences that say how it was verified.

    Args:
        run: a model folder, or a run that holds one.
        out: the new folder.
        to: one of `FORMATS`.
        quantization: in which numbers the weights are kept, where the format has a choice.
        texts: to verify the model with; it makes up its own unless given.

    Raises:
        UserError: the format cannot express the model, or the result does not say the same; nothing is written then.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to}: known are {', '.join(FORMATS)}")
    if quantization is not None and to not in QUANTISING:
        raise UserError(f"--quantization is for {' and '.join(QUANTISING)}; {to} keeps the weights as they are")
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    folder, form = find_model_folder(run), FORMATS[to]
    reads = model_input_type(folder)
    with replace_folder(out) as fresh:
        if reads == "text":
            translator = Translator.load(folder)
            sources = sample_sources(translator, texts, longest=longest_input(translator.model.config, form.sines))
            said = form.text(translator, fresh, sources, *([quantization] if to in QUANTISING else []))
        elif reads == "images" and form.images is not None:
            said = form.images(Classifier.load(folder), fresh)
        else:
            raise UserError(f"{run}: there is no way to write a model that reads {reads} as {to}")
        (fresh / CARD).write_text(build_card(folder, form.library), encoding="utf-8")
    return said
