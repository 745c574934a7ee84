"""Sentence pairs."""

from typing import NamedTuple

Links = list[tuple[int, int]]
"""Word alignment of a pair: indices of linked source and target words, counted from 0."""


class Pair(NamedTuple):
    """A source text and a target text, for example a sentence and its translation."""

    source: str
    target: str


class PairRecord(NamedTuple):
    """A pair with the file and line (or row) that it was read from and, if available, its word alignment."""

    pair: Pair
    file: str
    line: int
    links: Links | None = None
