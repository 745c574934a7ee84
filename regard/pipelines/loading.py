"""Model folders, read for a `Translator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.data.text.vocabularies import Vocabularies
from regard.decoding.generator import Generator
from regard.errors import UserError
from regard.models.folder import (
    CONFIG,
    FOREIGN_CONFIG,
    build_on_meta,
    check_input_type,
    find_model_folder,
    load_model,
    model_kind,
    read_config,
)
from regard.models.nat import NATransformer
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.quantization import Precision, choose_precision
from regard.pipelines.ctranslate2 import CTranslate2Generator

TranslationModel = Transformer | NATransformer


class TranslatorParts(NamedTuple):
    """The arguments of `Translator`."""

    model: TranslationModel
    vocabularies: Vocabularies
    languages: tuple[str, str]
    others: Sequence[TranslationModel] = ()
    generator: Generator | None = None
    precision: Precision = "float32"


def load_parts(path: Path, others: Sequence[Path], device: torch.device, precision: str | None) -> TranslatorParts:
    """Load a model folder, an ensemble, or a CTranslate2 export; see `Translator.load`."""
    if is_exported(path):
        if others:
            raise UserError("CTranslate2 has no ensembles; give training runs instead of an exported model")
        if precision is not None:
            raise UserError(f"{path}: its precision was chosen when it was exported; omit precision")
        return _load_exported(path, device)
    chosen = choose_precision(precision, device)
    first = _load_folder(find_model_folder(path), device)
    members = []
    for other in others:
        member = _load_folder(find_model_folder(other), device)
        if member.vocabularies.fingerprint() != first.vocabularies.fingerprint():
            raise UserError(f"{other}: its tokenizer differs from that of {path}; an ensemble shares one tokenizer")
        members.append(member.model)
    if device.type != "cpu":  # on CPU, the precision applies to linear layers only
        for model in (first.model, *members):
            model.to(getattr(torch, chosen))
    return first._replace(others=members, precision=chosen)


def is_exported(path: Path) -> bool:
    """Return whether a folder was written by `regard export --to ctranslate2`."""
    return (path / FOREIGN_CONFIG).is_file()


def check_reranker(path: Path) -> None:
    """Check that a folder or run contains an autoregressive model, without reading its weights.

    Raises:
        UserError: there is no such folder, or its model is of another kind.
    """
    try:
        folder = find_model_folder(path)
        check_input_type(folder, "text")
        kind = model_kind(folder, read_config(folder))
    except UserError as error:
        raise UserError(f"rerank: {error}") from None
    if kind != TransformerConfig.model_fields["kind"].default:
        raise UserError(f"rerank: {path} is non-autoregressive; give an autoregressive model")


def _load_folder(folder: Path, device: torch.device) -> TranslatorParts:
    check_input_type(folder, "text")
    vocabularies = Vocabularies.load(folder)
    model, metadata = load_model(folder, device)
    _check_vocabulary_sizes(folder, model, vocabularies)
    return TranslatorParts(model, vocabularies, _parse_languages(folder / CONFIG, metadata))


def _load_exported(folder: Path, device: torch.device) -> TranslatorParts:
    """Load a CTranslate2 export. Its model is on the meta device: the weights are in the engine."""
    metadata = read_config(folder, FOREIGN_CONFIG)
    model, vocabularies = build_on_meta(metadata, folder / FOREIGN_CONFIG), Vocabularies.load(folder)
    _check_vocabulary_sizes(folder, model, vocabularies)
    generator = CTranslate2Generator(folder, vocabularies.tokens, device, metadata.get("longest"))
    languages = _parse_languages(folder / FOREIGN_CONFIG, metadata)
    return TranslatorParts(model, vocabularies, languages, generator=generator)


def _check_vocabulary_sizes(folder: Path, model: TranslationModel, vocabularies: Vocabularies) -> None:
    rows = (model.config.source_vocab, model.config.target_vocab)
    sizes = (len(vocabularies.source), len(vocabularies.target))
    if sizes != rows:
        raise UserError(
            f"{folder}: the tokenizer has {sizes[0]} and {sizes[1]} tokens, but the embeddings have {rows[0]} and "
            f"{rows[1]} rows; they were not saved together"
        )


def _parse_languages(path: Path, metadata: Mapping[str, Any]) -> tuple[str, str]:
    languages = metadata.get("languages", ["source", "target"])
    if not isinstance(languages, list) or len(languages) != 2:
        raise UserError(f"{path}: languages must be two codes, such as en and zh, not {languages!r}")
    return str(languages[0]), str(languages[1])
