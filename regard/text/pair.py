"""The unit of parallel text."""

from typing import NamedTuple


class Pair(NamedTuple):
    """A text and its counterpart, for example a sentence and its translation."""

    source: str
    target: str
