"""Tokenizers of imported models: a SentencePiece model, and a separate vocabulary with the ids."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from regard.data.text.subwords import SPACE_MARK
from regard.data.text.tokenizer import LANGUAGE_TOKEN, Tokenizer, check_surrogates
from regard.errors import UserError, import_optional, one_line
from regard.files import parse_json

SpecialTokens = Mapping[str, str]
"""Names of the tokens for padding ("pad"), start of the decoder ("bos"), END ("eos") and unknown tokens ("unk")."""
MARIAN: SpecialTokens = {"pad": "<pad>", "bos": "<pad>", "eos": "</s>", "unk": "<unk>"}
"""Special tokens of Marian models, whose decoder starts from padding."""
FILE_START = '{"sentencepiece":'
"""Beginning of a file written by `SentencePieceTokenizer.save`."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and a separate vocabulary with the ids. It may be lossy.

    This is how Marian models work: a token outside the vocabulary is unknown, even if SentencePiece has an id for it.

    Args:
        model: Content of the SentencePiece model file.
        ids: Id of every token, without gaps; contains the special tokens.
        name: Name of the tokenizer in error messages.
        special: Names of the special tokens.
    """

    def __init__(self, model: bytes, ids: Mapping[str, int], name: str, special: SpecialTokens = MARIAN) -> None:
        self._model, self._ids, self._special = model, dict(ids), dict(special)
        self._processor = _open_sentencepiece(model, name)
        if sorted(self._ids.values()) != list(range(len(self._ids))):
            raise UserError(f"{name}: the token ids have gaps or duplicates, but must be 0 to {len(self._ids) - 1}")
        for token in self._special.values():
            if token not in self._ids:
                raise UserError(f"{name}: the vocabulary has no token {token}")
        self._unknown = self._ids[self._special["unk"]]
        tokens = sorted(self._ids, key=self._ids.__getitem__)
        self._tokens = [token.replace(SPACE_MARK, " ") for token in tokens]
        try:
            self._bytes = [self._decode_token(token) for token in tokens]
            self._split("a")
        except (IndexError, ValueError, RuntimeError) as error:
            raise UserError(f"{name}: damaged SentencePiece model ({one_line(error)})") from None

    def _decode_token(self, token: str) -> bytes:
        if token in self._special.values() or LANGUAGE_TOKEN.fullmatch(token):
            return b""
        sentencepiece_id = self._processor.piece_to_id(token)
        if self._processor.is_byte(sentencepiece_id):
            return bytes([int(token[3:5], 16)])
        if self._processor.is_control(sentencepiece_id):
            return b""
        return token.replace(SPACE_MARK, " ").encode("utf-8")

    @property
    def kind(self) -> Literal["bpe", "word", "sentencepiece"]:
        """Always "sentencepiece"."""
        return "sentencepiece"

    @property
    def special_ids(self) -> dict[Literal["pad", "bos", "eos"], int]:
        pad, bos, eos = (self._ids[self._special[name]] for name in ("pad", "bos", "eos"))
        return {"pad": pad, "bos": bos, "eos": eos}

    @property
    def vocabulary(self) -> list[str]:
        """All tokens by id, spelled as in SentencePiece, so that other engines can use them with the same model."""
        return sorted(self._ids, key=self._ids.__getitem__)

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
        tokens = self._split(self._convert(text))
        if tokens and tokens[0] == SPACE_MARK:
            del tokens[0]
        elif tokens and tokens[0].removeprefix(SPACE_MARK) in self._ids:
            tokens[0] = tokens[0].removeprefix(SPACE_MARK)
        return [self._ids.get(token, self._unknown) for token in tokens]

    def _encode(self, text: str) -> list[int]:
        language, text = self._divide(text)
        return [*language, *(self._ids.get(token, self._unknown) for token in self._split(text))]

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
        model = base64.b64encode(self._model).decode("ascii")
        content = {"sentencepiece": model, "ids": self._ids, "special": self._special}
        return json.dumps(content, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, content: str, path: Path) -> "SentencePieceTokenizer":
        try:
            values = parse_json(content)
            model, ids = base64.b64decode(values["sentencepiece"], validate=True), values["ids"]
            special: SpecialTokens = dict(values.get("special", MARIAN))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); import it again.") from None
        if special.keys() != MARIAN.keys() or set(map(type, special.values())) != {str}:
            raise UserError(f"{path} is damaged (special must name {', '.join(MARIAN)}); import it again.")
        return cls(model, check_ids(ids, path), str(path), special)

    def fingerprint(self) -> str:
        special = "" if self._special == MARIAN else json.dumps(sorted(self._special.items()))
        content = json.dumps(sorted(self._ids.items())).encode("utf-8") + self._model + special.encode("utf-8")
        return hashlib.sha256(content).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self._model, self._ids, "the tokenizer", self._special)


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
