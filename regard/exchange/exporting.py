"""A trained model in the format of another program: written, verified, and only then left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.exchange.ctranslate2 import write_ctranslate2
from regard.exchange.verification import sample_sources
from regard.models.card import CARD, describe_folder
from regard.models.folder import find_model, replacing, what_is_read

Format = Literal["ctranslate2"]
FORMATS: tuple[str, ...] = get_args(Format)


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
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    folder = find_model(run)
    if what_is_read(folder) != "text":
        raise UserError(f"{run}: the format {to} is for models that translate")
    translator = Translator.load(folder)
    sources = sample_sources(translator, texts)
    with replacing(out) as fresh:
        said = write_ctranslate2(translator, fresh, sources, quantization)
        (fresh / CARD).write_text(describe_folder(folder), encoding="utf-8")
    return said
