"""Tokenizers of imported models: a SentencePiece model, and a separate vocabulary with the ids."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from regard.data.text.subwords import SPACE_MARK
from regard.data.text.tokenizer import Tokenizer, check_surrogates
from regard.errors import UserError
from regard.runtime import import_optional, one_line, parse_json

FILE_START = '{"sentencepiece":'
"""Beginning of a file written by `SentencePieceTokenizer.save`."""
REQUIRED_TOKENS = ("<pad>", "</s>", "<unk>")
_LANGUAGE_TOKEN = re.compile(r">>[^<>\s]+<<")
"""A token that selects the target language of a multilingual model, such as ">>de<<"."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and a separate vocabulary with the ids. It may be lossy.

    This is how Marian models work: a token outside the vocabulary is unknown, even if SentencePiece has an id for it.

    Args:
        model: Content of the SentencePiece model file.
        ids: Id of every token, without gaps; contains `REQUIRED_TOKENS`.
        name: Name of the tokenizer in error messages.
    """

    def __init__(self, model: bytes, ids: Mapping[str, int], name: str) -> None:
        self._model, self._ids = model, dict(ids)
        self._processor = _open_sentencepiece(model, name)
        if sorted(self._ids.values()) != list(range(len(self._ids))):
            raise UserError(f"{name}: the token ids have gaps or duplicates, but must be 0 to {len(self._ids) - 1}")
        for token in REQUIRED_TOKENS:
            if token not in self._ids:
                raise UserError(f"{name}: the vocabulary has no token {token}")
        self._unknown = self._ids["<unk>"]
        tokens = sorted(self._ids, key=self._ids.__getitem__)
        self._tokens = [token.replace(SPACE_MARK, " ") for token in tokens]
        try:
            self._bytes = [self._decode_token(token) for token in tokens]
            self._split("a")
        except (IndexError, ValueError, RuntimeError) as error:
            raise UserError(f"{name}: damaged SentencePiece model ({one_line(error)})") from None

    def _decode_token(self, token: str) -> bytes:
        if token in REQUIRED_TOKENS or _LANGUAGE_TOKEN.fullmatch(token):
            return b""
        sentencepiece_id = self._processor.piece_to_id(token)
        if self._processor.is_byte(sentencepiece_id):
            return bytes([int(token[3:5], 16)])
        if self._processor.is_control(sentencepiece_id):
            return b""
        return token.replace(SPACE_MARK, " ").encode("utf-8")

    @property
    def kind(self) -> Literal["bpe", "word"]:
        """Not available, because only tokenizers trained by regard have a kind."""
        raise UserError("this is a SentencePiece tokenizer; a model with it can translate, but not be trained")

    @property
    def ids(self) -> dict[str, int]:
        """Id of every token, spelled as in SentencePiece."""
        return dict(self._ids)

    @property
    def model(self) -> bytes:
        """Content of the SentencePiece model file."""
        return self._model

    def encode(self, text: str) -> list[int]:
        check_surrogates(text, "the text")
        return self._encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for number, text in enumerate(texts):
            check_surrogates(text, f"text {number} of the batch")
        return [self._encode(text) for text in texts]

    def encode_continuation(self, text: str) -> list[int]:
        check_surrogates(text, "the text")
        tokens = self._split(text)
        if tokens and tokens[0] == SPACE_MARK:
            del tokens[0]
        elif tokens and tokens[0].removeprefix(SPACE_MARK) in self._ids:
            tokens[0] = tokens[0].removeprefix(SPACE_MARK)
        return [self._ids.get(token, self._unknown) for token in tokens]

    def _encode(self, text: str) -> list[int]:
        language = _LANGUAGE_TOKEN.match(text)
        if language and language[0] in self._ids:
            return [self._ids[language[0]], *self._encode(text[language.end() :])]
        return [self._ids.get(token, self._unknown) for token in self._split(text)]

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = self._processor.encode(text, out_type=str)
        return tokens

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        if tokens:
            raise UserError("tokens cannot be added to a SentencePiece tokenizer")
        return self

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """Not available, because the `tokenizers` library has no equivalent."""
        raise UserError("this is a SentencePiece tokenizer, which this format does not support")

    def _to_json(self) -> str:
        content = {"sentencepiece": base64.b64encode(self._model).decode("ascii"), "ids": self._ids}
        return json.dumps(content, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, content: str, path: Path) -> "SentencePieceTokenizer":
        try:
            values = parse_json(content)
            model, ids = base64.b64decode(values["sentencepiece"], validate=True), values["ids"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); import it again.") from None
        return cls(model, check_ids(ids, path), str(path))

    def fingerprint(self) -> str:
        content = json.dumps(sorted(self._ids.items())).encode("utf-8") + self._model
        return hashlib.sha256(content).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self._model, self._ids, "the tokenizer")


Tokenizer.formats[FILE_START] = SentencePieceTokenizer


def check_ids(values: Any, path: Path) -> dict[str, int]:
    """Return the vocabulary read from a JSON file."""
    if not isinstance(values, dict) or not all(type(number) is int for number in values.values()):
        raise UserError(f"{path}: a vocabulary must be a JSON object of tokens with integer ids")
    return values


def _open_sentencepiece(model: bytes, name: str) -> Any:
    sentencepiece = import_optional("sentencepiece", "export")
    if not model:
        raise UserError(f"{name}: the SentencePiece model is empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{name}: damaged or not a SentencePiece model ({one_line(error)})") from None
