"""Our tokenizer as `transformers` has it (`PreTrainedTokenizerFast`), and back; and the one of BERT."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import BertWordPieceTokenizer, decoders, normalizers, processors

from regard.data.text.sentencepiece import SentencePieceTokenizer, check_ids
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.errors import UserError
from regard.runtime import import_optional

FILE, WORDPIECE_VOCABULARY, SETTINGS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"


def to_fast_tokenizer(tokenizer: Tokenizer, longest: int) -> Any:
    """Theirs, which ends a text with END and decodes without loss; `longest` is the most tokens of the model."""
    pad, bos, eos, unk = Tokenizer.SPECIAL_TOKENS
    backend = tokenizer.to_tokenizers()
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=[(eos, Tokenizer.EOS)]
    )
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return import_optional("transformers", "hf").PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        model_max_length=longest,
        padding_side="right",
        split_special_tokens=True,  # "<eos>" in a text is five characters
        clean_up_tokenization_spaces=False,
    )


def from_fast_tokenizer(folder: Path) -> Tokenizer:
    """Ours, from a folder into which `to_fast_tokenizer` was saved.

    Raises:
        UserError: the file is missing or damaged, or holds a tokenizer of another make.
    """
    path = folder / FILE
    try:
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: damaged or not a tokenizer ({error})") from None
    content = json.loads(backend.to_str())
    content["normalizer"], content["post_processor"], content["decoder"] = (
        {"type": "Prepend", "prepend": " "},
        None,
        None,
    )
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in Tokenizer.SPECIAL_TOKENS]
    with tempfile.TemporaryDirectory() as room:
        plain = Path(room) / FILE
        plain.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        try:
            return Tokenizer.load(plain)
        except UserError as error:
            raise UserError(str(error).replace(str(plain), str(path))) from None


def read_word_pieces(folder: Path) -> WordPieceTokenizer:
    """The tokenizer of a folder of BERT: tokenizer.json, or else vocab.txt with the settings beside it.

    Raises:
        UserError: both are missing, or the one that is read is damaged.
    """
    if (folder / FILE).exists():
        return WordPieceTokenizer.load(folder / FILE)
    path, settings = folder / WORDPIECE_VOCABULARY, folder / SETTINGS
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{folder}: no tokenizer in it; looked for {FILE} and {WORDPIECE_VOCABULARY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error})") from None
    vocabulary = {piece: index for index, piece in enumerate(lines) if piece}
    for piece in ("[UNK]", "[CLS]", "[SEP]"):
        if piece not in vocabulary:
            raise UserError(f"{path}: {piece} is missing")
    lowercase = True
    if settings.is_file():
        try:
            said = json.loads(settings.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{settings}: damaged or not JSON ({error})") from None
        lowercase = not isinstance(said, dict) or said.get("do_lower_case") is not False
    return WordPieceTokenizer(BertWordPieceTokenizer(vocabulary, lowercase=lowercase)._tokenizer)


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
