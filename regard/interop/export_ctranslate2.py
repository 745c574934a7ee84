"""Model folders for CTranslate2: written, verified, and loaded as a `Translator`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from regard.errors import UserError
from regard.interop.ctranslate2 import POSITIONS, QUANTIZATIONS, to_ctranslate2
from regard.interop.lengths import longest_input
from regard.interop.verification import GeneratorPeer, Tokens, check, compare
from regard.models.folder import FOREIGN_CONFIG, save_config
from regard.pipelines.translator import Translator, is_exported

Engine = Literal["regard", "ctranslate2"]


def save_ctranslate2(
    translator: Translator, folder: Path, quantization: str = "float32", metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the files of CTranslate2 and the tokenizer to an existing folder, which `Translator.load` can load.

    Raises:
        UserError: CTranslate2 does not support the model, or is not installed.
    """
    if len(translator.models) > 1:
        raise UserError("CTranslate2 has no ensembles; give one model")
    to_ctranslate2(translator.model, translator.vocabularies.tokens, folder, quantization)
    translator.vocabularies.save(folder)
    about = {"languages": list(translator.languages), "longest": longest_input(translator.model.config, POSITIONS)}
    save_config(folder / FOREIGN_CONFIG, translator.model, about | dict(metadata or {}))


def load_translator(
    path: str | Path,
    *others: str | Path,
    device: str | torch.device = "cpu",
    engine: Engine | str | None = None,
    precision: str | None = None,
) -> Translator:
    """Load a translator that runs in regard or in CTranslate2.

    Args:
        path: a model folder, a training run, or a folder written by `regard export --to ctranslate2`.
        others: further models of an ensemble.
        device: device of the models.
        engine: "regard", or "ctranslate2", which is often faster on CPU but has fewer options. By default, the engine
            that the folder was written for.
        precision: see `Translator.load`. CTranslate2 has `QUANTIZATIONS`.

    Raises:
        UserError: as `Translator.load`, or the engine does not support an option.
    """
    if engine not in (None, *get_args(Engine)):
        raise UserError(f"engine: {engine!r} is none of {', '.join(get_args(Engine))}")
    if engine == "regard" and is_exported(Path(path)):
        raise UserError(f"{path}: its weights are for the engine ctranslate2; give the run it was exported from")
    if engine != "ctranslate2" or is_exported(Path(path)):
        return Translator.load(path, *others, device=device, precision=precision)
    if others:
        raise UserError("CTranslate2 has no ensembles; use the engine regard")
    if precision is not None and precision not in QUANTIZATIONS:
        raise UserError(f"precision: {precision!r} is none of {', '.join(QUANTIZATIONS)}, which CTranslate2 supports")
    with tempfile.TemporaryDirectory() as folder:
        save_ctranslate2(Translator.load(path), Path(folder), precision or "float32")
        return Translator.load(folder, device=device)


def write_ctranslate2(
    translator: Translator, folder: Path, sources: Sequence[Tokens], quantization: str | None
) -> list[str]:
    """Write the files and verify them; return the results of the verification as sentences.

    Float32 weights must give the same results; the difference of quantised weights is only reported.

    Raises:
        UserError: CTranslate2 does not support the model, or its results differ.
    """
    save_ctranslate2(translator, folder, quantization or "float32")
    if quantization in (None, "float32"):
        return [_verify(translator, folder, sources)]
    with tempfile.TemporaryDirectory() as exact_folder:
        save_ctranslate2(translator, Path(exact_folder))
        exact = _verify(translator, Path(exact_folder), sources)
    quantised = compare(translator, GeneratorPeer(Translator.load(folder).generator), sources)
    return [exact, quantised.as_quantised]


def _verify(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> str:
    agreement = compare(translator, GeneratorPeer(Translator.load(folder).generator), sources)
    check(agreement, "the model in CTranslate2")
    return str(agreement)
