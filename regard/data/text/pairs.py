"""The unit of parallel text."""

from typing import NamedTuple

Links = list[tuple[int, int]]
"""Linked words of a pair: the number of the source word and that of the target word, from 0."""


class Pair(NamedTuple):
    """A text and its counterpart, for example a sentence and its translation."""

    source: str
    target: str


class PairRecord(NamedTuple):
    """A pair, the file and line (or row) that it comes from, and the links between its words where they are known."""

    pair: Pair
    file: str
    line: int
    links: Links | None = None
