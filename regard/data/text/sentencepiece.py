"""Tokenizers that come with models of others: cut by the `sentencepiece` library, numbered by a vocabulary beside it.

That is how Marian's models have it: a piece that its vocabulary does not hold is unknown, whatever SentencePiece's own
number for it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from regard.data.text.tokenizer import FOREIGN, SPACE_MARK, Tokenizer, check_surrogates
from regard.errors import UserError

SPECIALS = ("<pad>", "</s>", "<unk>")
_LANGUAGE = re.compile(r">>[^<>\s]+<<")
"""How a text says into which language it is to be translated, where a model has several."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and the ids of its pieces. Unlike ours it may change a text, and know no way to spell it.

    Args:
        model: SentencePiece's own file, as bytes.
        ids: of every piece, from 0 without gaps, with `SPECIALS` among them.
        name: what to call it in an error.
    """

    def __init__(self, model: bytes, ids: Mapping[str, int], name: str) -> None:
        """Loads the model.

        Raises:
            UserError: it is damaged, the ids are not as they should be, or the library is not installed.
        """
        self._model, self._ids = model, dict(ids)
        self._processor = _open(model, name)
        if sorted(self._ids.values()) != list(range(len(self._ids))):
            raise UserError(f"{name}: the ids of the pieces have gaps or doubles, but must run from 0")
        for piece in SPECIALS:
            if piece not in self._ids:
                raise UserError(f"{name}: the vocabulary has no piece {piece}")
        self._unknown = self._ids["<unk>"]
        named = sorted(self._ids, key=self._ids.__getitem__)
        self._pieces = [piece.replace(SPACE_MARK, " ") for piece in named]
        self._bytes = [self._spell(piece) for piece in named]

    def _spell(self, piece: str) -> bytes:
        """What a piece stands for in a text: nothing where it is a special one, or a single byte."""
        if piece in SPECIALS or _LANGUAGE.fullmatch(piece):
            return b""
        number = self._processor.piece_to_id(piece)
        if self._processor.is_byte(number):
            return bytes([int(piece[3:5], 16)])
        if self._processor.is_control(number):
            return b""
        return piece.replace(SPACE_MARK, " ").encode("utf-8")

    @property
    def kind(self) -> Literal["bpe", "word"]:
        """Unknown: such a tokenizer is not learned here.

        Raises:
            UserError: always, for whoever asks wants to train with it.
        """
        raise UserError("the tokenizer is one of SentencePiece; a model with it can translate, but not be trained here")

    @property
    def ids(self) -> dict[str, int]:
        """The id of every piece, as SentencePiece calls it."""
        return dict(self._ids)

    @property
    def model(self) -> bytes:
        """SentencePiece's own file."""
        return self._model

    def encode(self, text: str) -> list[int]:
        check_surrogates(text, "the text")
        return self._number(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for number, text in enumerate(texts):
            check_surrogates(text, f"text {number} of the batch")
        return [self._number(text) for text in texts]

    def encode_continuation(self, text: str) -> list[int]:
        check_surrogates(text, "the text")
        pieces = self._cut(text)
        if pieces and pieces[0] == SPACE_MARK:
            del pieces[0]
        elif pieces and pieces[0].removeprefix(SPACE_MARK) in self._ids:
            pieces[0] = pieces[0].removeprefix(SPACE_MARK)
        return [self._ids.get(piece, self._unknown) for piece in pieces]

    def _number(self, text: str) -> list[int]:
        language = _LANGUAGE.match(text)
        if language and language[0] in self._ids:
            return [self._ids[language[0]], *self._number(text[language.end() :])]
        return [self._ids.get(piece, self._unknown) for piece in self._cut(text)]

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def with_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        if tokens:
            raise UserError("a tokenizer of SentencePiece takes no new tokens")
        return self

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """Refused: the `tokenizers` library has it otherwise.

        Raises:
            UserError: always.
        """
        raise UserError("the tokenizer is one of SentencePiece, which this format has no place for")

    def save(self, path: Path) -> None:
        content = {"sentencepiece": base64.b64encode(self._model).decode("ascii"), "ids": self._ids}
        try:
            path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); give a writable path.") from error

    @classmethod
    def parse(cls, content: str, path: Path) -> SentencePieceTokenizer:
        """What `save` has written into a file.

        Raises:
            UserError: the file is damaged.
        """
        assert content.startswith(FOREIGN)
        try:
            values = json.loads(content)
            model, ids = base64.b64decode(values["sentencepiece"], validate=True), values["ids"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); import it again.") from None
        return cls(model, check_ids(ids, path), str(path))

    def fingerprint(self) -> str:
        decisive = json.dumps(sorted(self._ids.items())).encode("utf-8") + self._model
        return hashlib.sha256(decisive).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self._model, self._ids, "the tokenizer")


def check_ids(values: Any, path: Path) -> dict[str, int]:
    """The ids of pieces as a file holds them.

    Raises:
        UserError: they are not pieces with whole numbers.
    """
    if not isinstance(values, dict) or not all(type(number) is int for number in values.values()):
        raise UserError(f"{path}: a vocabulary is pieces with their ids, which are whole numbers")
    return values


def _open(model: bytes, name: str) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UserError("this needs the package sentencepiece; to get it, run: pip install 'regard[export]'") from None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{name}: damaged or not a model of SentencePiece ({' '.join(str(error).split())})") from None
