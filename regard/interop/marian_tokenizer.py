"""The tokenizers of a Marian folder of transformers: source.spm and target.spm, numbered by vocab.json.

They come in and go out as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.data.text.sentencepiece import SentencePieceTokenizer, check_ids
from regard.errors import UserError

SOURCE, TARGET, VOCABULARY, TARGET_VOCABULARY = "source.spm", "target.spm", "vocab.json", "target_vocab.json"


def has_marian_tokenizer(folder: Path) -> bool:
    """Whether the tokenizer of a folder is SentencePiece's."""
    return (folder / SOURCE).is_file()


def from_marian_tokenizer(folder: Path) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """The tokenizer of each side; the same object where they are the same.

    Raises:
        UserError: a file is missing or damaged; it is named.
    """
    separate = (folder / TARGET_VOCABULARY).is_file()
    ids = _read_ids(folder / VOCABULARY)
    target_ids = _read_ids(folder / TARGET_VOCABULARY) if separate else ids
    models = _read(folder / SOURCE), _read(folder / TARGET)
    source = SentencePieceTokenizer(models[0], ids, str(folder / SOURCE))
    if models[0] == models[1] and not separate:
        return source, source
    return source, SentencePieceTokenizer(models[1], target_ids, str(folder / TARGET))


def to_marian_tokenizer(
    source: SentencePieceTokenizer, target: SentencePieceTokenizer, folder: Path, longest: int
) -> None:
    """Writes the files that `MarianTokenizer` loads; `longest` is the most tokens of the model."""
    separate = source.ids != target.ids
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "model_max_length": longest}
    vocabularies = {VOCABULARY: source.ids} | ({TARGET_VOCABULARY: target.ids} if separate else {})
    for name, content in (vocabularies | {"tokenizer_config.json": about}).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    (folder / SOURCE).write_bytes(source.model)
    (folder / TARGET).write_bytes(target.model)


def _read_ids(path: Path) -> dict[str, int]:
    try:
        values: Any = json.loads(_read(path).decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged or not JSON ({error})") from None
    return check_ids(values, path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
