"""Export trained models to the formats of other programs. Exports are verified before they are kept."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.interop import ctranslate2, graphs, huggingface_marian
from regard.interop.argos import export_argos
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.graphs import GraphFormat
from regard.interop.huggingface_translation import export_huggingface
from regard.interop.huggingface_vision import export_huggingface_classifier
from regard.interop.nat_graphs import export_nat
from regard.interop.onnx import ONNX
from regard.interop.torch import TORCH
from regard.interop.usage import classification_usage, translation_usage
from regard.interop.verification import Tokens, longest_input, sample_sources
from regard.models.card import CARD, build_card
from regard.models.folder import find_model_folder, model_input_type, replace_folder
from regard.models.nat import NATransformer
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator


class Format(NamedTuple):
    """An export format.

    Attributes:
        export_translator: Writes and verifies a translation model.
        export_classifier: Writes and verifies an image classifier; None if the format does not support them.
        positions: Size of the sinusoidal position table, which limits the length of texts.
        library: Name of the library in the metadata of a model hub.
    """

    export_translator: Callable[..., list[str]]
    export_classifier: Callable[[Classifier, Path], list[str]] | None
    positions: int
    library: str


def export_graphs(
    graph_format: GraphFormat, translator: Translator, folder: Path, sources: Sequence[Tokens]
) -> list[str]:
    """Write and verify the graphs of a translator."""
    if isinstance(translator.model, NATransformer):
        return export_nat(graph_format, translator, folder, sources)
    return graph_format.export_translator(translator, folder, sources)


FORMATS = {
    "ctranslate2": Format(export_ctranslate2, None, ctranslate2.POSITIONS, "ctranslate2"),
    "huggingface": Format(
        export_huggingface, export_huggingface_classifier, huggingface_marian.POSITIONS, "transformers"
    ),
    "onnx": Format(partial(export_graphs, ONNX), ONNX.export_classifier, graphs.POSITIONS, "onnx"),
    "torch": Format(partial(export_graphs, TORCH), TORCH.export_classifier, graphs.POSITIONS, "pytorch"),
    "argos": Format(export_argos, None, ctranslate2.POSITIONS, "argostranslate"),
}
QUANTISABLE = ("ctranslate2", "argos")
"""Formats that support quantisation."""


def export_model(
    run: Path, out: Path, to: str, quantization: str | None = None, texts: Sequence[str] | None = None
) -> list[str]:
    """Export the model of a run to a new folder, and return a summary of the verification.

    Args:
        run: A model folder, or a run that contains one.
        to: One of `FORMATS`.
        quantization: Data type of the weights, for formats that support quantisation.
        texts: Sentences for the verification. Defaults to random tokens.

    Raises:
        UserError: The format does not support the model, or the exported model gives other results; nothing is written.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to}: supported are {', '.join(FORMATS)}")
    if quantization is not None and to not in QUANTISABLE:
        raise UserError(f"--quantization is supported for {' and '.join(QUANTISABLE)} only, not for {to}")
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    folder, target_format = find_model_folder(run), FORMATS[to]
    input_type = model_input_type(folder)
    with replace_folder(out) as temporary:
        if input_type == "text":
            translator = Translator.load(folder)
            if translator.directions and to != "ctranslate2":
                raise UserError(f"{run}: has several directions, which only --to ctranslate2 supports")
            longest = longest_input(translator.model.config, target_format.positions)
            sources = sample_sources(translator, texts, longest=longest)
            options = [quantization] if to in QUANTISABLE else []
            summary = target_format.export_translator(translator, temporary, sources, *options)
            usage = translation_usage(to, translator, temporary)
        elif input_type == "images" and target_format.export_classifier is not None:
            summary = target_format.export_classifier(Classifier.load(folder), temporary)
            usage = classification_usage(to)
        else:
            raise UserError(f"{run}: models with {input_type} as input cannot be exported to {to}")
        (temporary / CARD).write_text(build_card(folder, target_format.library, usage), encoding="utf-8")
    return summary
