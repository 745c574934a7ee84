"""Tokenizers of imported encoders such as BERT, which normalise text and only encode it."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from regard.data.text.tokenizer import check_subword_prefix
from regard.errors import UserError, one_line
from regard.files import read_text


class WordPieceTokenizer:
    """A tokenizer of the `tokenizers` library, including the special tokens that it adds to every text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()

    def __len__(self) -> int:
        """Return the largest id plus one, of the vocabulary and of what is added to every text; some may be unused."""
        return max([*self._backend.get_vocab().values(), *self._backend.encode("").ids], default=-1) + 1

    def encode_batch(self, texts: Sequence[str], first: int = 1) -> list[list[int]]:
        """Return the ids of texts, including special tokens; errors number the texts from `first`."""
        for number, text in enumerate(texts, first):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"sentence {number} contains a lone surrogate, half of a character; decode it again")
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts))]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of every id."""
        return [self._backend.id_to_token(index) or "" for index in ids]

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file."""
        path.write_text(self._backend.to_str(pretty=True), encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path) -> "WordPieceTokenizer":
        """Read a tokenizer.json file."""
        content = read_text(path)
        try:
            check_subword_prefix(content)
            tokenizer = cls(tokenizers.Tokenizer.from_str(content))
            tokenizer.encode_batch(
                ["a", "", "\U00010900"]
            )  # fails if its rules contradict each other, or no [UNK] exists
            return tokenizer
        except Exception as error:  # the library raises no more specific class
            raise UserError(f"{path}: damaged or not a tokenizer ({one_line(error)})") from None
