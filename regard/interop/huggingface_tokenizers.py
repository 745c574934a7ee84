"""Tokenizer files of transformers: regard's own as a fast tokenizer, WordPiece of BERT, SentencePiece of Marian."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import BertWordPieceTokenizer, decoders, normalizers, processors

from regard.data.text.sentencepiece import SentencePieceTokenizer, check_ids
from regard.data.text.tokenizer import LEADING_SPACE, Tokenizer, check_subword_prefix, same_normaliser
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.errors import UserError, import_optional, one_line
from regard.files import MissingFileError, read_bytes, read_text
from regard.interop.files import read_json_object, read_optional_json, write_json

FAST_TOKENIZER, WORDPIECE_VOCABULARY, TOKENIZER_CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
MARIAN_SOURCE, MARIAN_TARGET = "source.spm", "target.spm"
MARIAN_VOCABULARY, MARIAN_TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
_FAST_NORMALIZER = normalizers.Sequence([normalizers.NFC(), LEADING_SPACE])


def to_fast_tokenizer(tokenizer: Tokenizer, max_length: int) -> Any:
    """Convert a regard tokenizer to a `PreTrainedTokenizerFast` that appends END and decodes losslessly."""
    pad, bos, eos, unk = Tokenizer.SPECIAL_TOKENS
    backend = tokenizer.to_tokenizers()
    backend.normalizer = _FAST_NORMALIZER
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
        model_max_length=max_length,
        padding_side="right",
        split_special_tokens=True,  # "<eos>" in a text is five characters
        clean_up_tokenization_spaces=False,
    )


def from_fast_tokenizer(folder: Path) -> Tokenizer:
    """Load a regard tokenizer that was saved by `to_fast_tokenizer`."""
    path = folder / FAST_TOKENIZER
    try:
        content = read_text(path)
        check_subword_prefix(content)
        backend = tokenizers.Tokenizer.from_str(content)
    except UserError:
        raise
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: damaged or not a tokenizer ({one_line(error)})") from None
    if same_normaliser(backend.normalizer, _FAST_NORMALIZER):
        backend.normalizer = LEADING_SPACE  # `Tokenizer` normalises to NFC itself
    state = json.loads(backend.to_str())
    state["post_processor"] = state["decoder"] = None
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in Tokenizer.SPECIAL_TOKENS]
    return Tokenizer.parse(json.dumps(state, ensure_ascii=False), path)


def read_wordpiece(folder: Path) -> WordPieceTokenizer:
    """Load the tokenizer of a BERT folder: tokenizer.json, otherwise vocab.txt with its config."""
    if (folder / FAST_TOKENIZER).exists():
        return WordPieceTokenizer.load(folder / FAST_TOKENIZER)
    path = folder / WORDPIECE_VOCABULARY
    try:
        lines = read_text(path).split("\n")
    except MissingFileError:
        raise UserError(f"{folder}: no tokenizer; neither {FAST_TOKENIZER} nor {WORDPIECE_VOCABULARY} exists") from None
    vocabulary = {token: index for index, token in enumerate(lines) if token}
    for token in ("[UNK]", "[CLS]", "[SEP]"):
        if token not in vocabulary:
            raise UserError(f"{path}: {token} is missing")
    lowercase = read_optional_json(folder / TOKENIZER_CONFIG).get("do_lower_case") is not False
    return WordPieceTokenizer(BertWordPieceTokenizer(vocabulary, lowercase=lowercase)._tokenizer)


def from_marian_tokenizer(folder: Path) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """Load the source and target tokenizers of a Marian folder; one object if they are identical."""
    separate = (folder / MARIAN_TARGET_VOCABULARY).exists()
    vocabulary, target_vocabulary = folder / MARIAN_VOCABULARY, folder / MARIAN_TARGET_VOCABULARY
    ids = check_ids(read_json_object(vocabulary), vocabulary)
    target_ids = check_ids(read_json_object(target_vocabulary), target_vocabulary) if separate else ids
    source_model, target_model = read_bytes(folder / MARIAN_SOURCE), read_bytes(folder / MARIAN_TARGET)
    source = SentencePieceTokenizer(source_model, ids, str(folder / MARIAN_SOURCE))
    if source_model == target_model and not separate:
        return source, source
    return source, SentencePieceTokenizer(target_model, target_ids, str(folder / MARIAN_TARGET))


def to_marian_tokenizer(
    source: SentencePieceTokenizer, target: SentencePieceTokenizer, folder: Path, max_length: int
) -> None:
    """Write the files that `MarianTokenizer` loads."""
    separate = source.ids != target.ids
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "model_max_length": max_length}
    files: dict[str, Any] = {MARIAN_VOCABULARY: source.ids, TOKENIZER_CONFIG: config}
    if separate:
        files[MARIAN_TARGET_VOCABULARY] = target.ids
    for name, content in files.items():
        write_json(folder / name, content)
    (folder / MARIAN_SOURCE).write_bytes(source.model)
    (folder / MARIAN_TARGET).write_bytes(target.model)
