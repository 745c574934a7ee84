"""Model folders, and those of another engine, read for a `Translator`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from regard.data.text.vocabularies import Vocabularies
from regard.decoding.generator import Generator
from regard.errors import UserError
from regard.interop.ctranslate2 import QUANTIZATIONS, to_ctranslate2
from regard.models.folder import (
    CONFIG,
    FOREIGN_CONFIG,
    build_on_meta,
    check_input_type,
    find_model_folder,
    load_model,
    read_config,
    save_config,
)
from regard.models.nat import NATransformer
from regard.models.transformer import EncoderDecoder, Transformer
from regard.ops.quantization import Precision, choose_precision
from regard.pipelines.ctranslate2 import CTranslate2Generator

Engine = Literal["regard", "ctranslate2"]


class Loaded(NamedTuple):
    """What a translator is made of."""

    model: Transformer | NATransformer
    vocabularies: Vocabularies
    languages: tuple[str, str]
    others: Sequence[Transformer | NATransformer] = ()
    generator: Generator | None = None
    precision: Precision = "float32"


def load_parts(
    path: Path, others: Sequence[Path], device: torch.device, engine: Engine | str | None, precision: str | None
) -> Loaded:
    """Reads a model folder and those that vote with it, for our own engine or another: see `Translator.load`."""
    if engine not in (None, *get_args(Engine)):
        raise UserError(f"engine: {engine!r} is none of {', '.join(get_args(Engine))}")
    if engine != "ctranslate2" and not is_exported(path):
        return _load_ours(path, others, device, choose_precision(precision, device))
    if engine == "regard":
        raise UserError(f"{path}: its weights are for the engine ctranslate2; give the run it was made from")
    if others:
        raise UserError("the engine ctranslate2 has no models that vote; use the engine regard")
    return _load_engine(path, device, precision)


def save_for_engine(loaded: Loaded, folder: Path, quantization: str, about: dict[str, Any]) -> None:
    """Writes what the engine ctranslate2 loads into an existing folder, and beside it the tokenizer.

    Raises:
        UserError: CTranslate2 cannot express this model, or is not installed.
    """
    to_ctranslate2(loaded.model, loaded.vocabularies.tokens, folder, quantization)
    loaded.vocabularies.save(folder)
    save_config(folder / FOREIGN_CONFIG, loaded.model, {"languages": list(loaded.languages)} | about)


def _load_ours(path: Path, others: Sequence[Path], device: torch.device, precision: Precision) -> Loaded:
    first = _load_one(find_model_folder(path), device)
    members = []
    for other in others:
        member = _load_one(find_model_folder(other), device)
        if member.vocabularies.fingerprint() != first.vocabularies.fingerprint():
            raise UserError(f"{other}: its tokenizer differs from that of {path}; an ensemble needs one for all")
        members.append(member.model)
    if device.type != "cpu":  # where smaller numbers are those of products alone
        for model in (first.model, *members):
            model.to(getattr(torch, precision))
    return first._replace(others=members, precision=precision)


def _load_one(folder: Path, device: torch.device) -> Loaded:
    check_input_type(folder, "text")
    vocabularies = Vocabularies.load(folder)
    model, about = load_model(folder, device)
    _check_rows(folder, model, vocabularies)
    return Loaded(model, vocabularies, _languages(folder / CONFIG, about))


def _load_engine(path: Path, device: torch.device, precision: str | None) -> Loaded:
    """A model that is an outline without weights: the engine has them."""
    if is_exported(path):
        if precision is not None:
            raise UserError(f"{path}: its precision was chosen when it was exported; leave precision away")
        about = read_config(path, FOREIGN_CONFIG)
        model, vocabularies = build_on_meta(about, path / FOREIGN_CONFIG), Vocabularies.load(path)
        _check_rows(path, model, vocabularies)
        generator = CTranslate2Generator(path, model.config, vocabularies.tokens, device)
        return Loaded(model, vocabularies, _languages(path / FOREIGN_CONFIG, about), generator=generator)
    if precision is not None and precision not in QUANTIZATIONS:
        raise UserError(
            f"precision: {precision!r} is none of {', '.join(QUANTIZATIONS)}, in which the engine ctranslate2 computes"
        )
    ours = _load_one(find_model_folder(path), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as room:
        save_for_engine(ours, Path(room), precision or "float32", {})
        return _load_engine(Path(room), device, None)


def is_exported(path: Path) -> bool:
    """Whether a folder holds the weights of another engine."""
    return (path / FOREIGN_CONFIG).is_file()


def _check_rows(folder: Path, model: EncoderDecoder, vocabularies: Vocabularies) -> None:
    rows = (model.config.source_vocab, model.config.target_vocab)
    if (len(vocabularies.source), len(vocabularies.target)) != rows:
        raise UserError(
            f"{folder}: the tokenizer has {len(vocabularies.source)} and {len(vocabularies.target)} pieces, the "
            f"model {rows[0]} and {rows[1]} rows; they were not saved together"
        )


def _languages(path: Path, about: dict[str, Any]) -> tuple[str, str]:
    languages = about.get("languages", ["source", "target"])
    if not isinstance(languages, list) or len(languages) != 2:
        raise UserError(f"{path}: languages must be two codes, such as en and zh, not {languages!r}")
    return str(languages[0]), str(languages[1])
