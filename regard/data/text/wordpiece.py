"""Tokenizers of encoders such as BERT: they bring text into a form of their own, and only lead into the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from regard.errors import UserError


class WordPieceTokenizer:
    """A tokenizer of the `tokenizers` library with the pieces that it sets before and behind every text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()

    def __len__(self) -> int:
        """Counts the pieces up to the last id; ids between may be free."""
        return max(self._backend.get_vocab().values(), default=-1) + 1

    def encode_batch(self, texts: Sequence[str], first: int = 1) -> list[list[int]]:
        """Cut texts into pieces and give their ids, those before and behind included.

        Raises:
            UserError: If one of them is no Unicode text; `first` is the number of the first of them.
        """
        for number, text in enumerate(texts, first):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"sentence {number} holds a lone surrogate, half of a character; decode it anew")
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts))]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Show pieces as the tokenizer names them."""
        return [self._backend.id_to_token(index) or "" for index in ids]

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file."""
        path.write_text(self._backend.to_str(pretty=True), encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path) -> WordPieceTokenizer:
        """Read a tokenizer.json.

        Raises:
            UserError: If the file is missing or damaged.
        """
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read as text ({error})") from None
        try:
            return cls(tokenizers.Tokenizer.from_str(content))
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"{path}: damaged or not a tokenizer ({error})") from None
