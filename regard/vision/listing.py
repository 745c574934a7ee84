"""What a reader of any format finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.vision.sources import Source

_SPLITS = {
    name: split
    for split, names in {
        "train": "train training",
        "valid": "val valid validation dev",
        "test": "test testing t10k",
    }.items()
    for name in names.split()
}
"""What people call the parts of a set, and what they are called here."""


def split_of(name: str) -> str | None:
    """The split that a folder or a word of a file's name means: train, valid, test or none."""
    return _SPLITS.get(name.lower())


@dataclass(frozen=True)
class Listing:
    """Images with the names of their classes and, where there are any, of their splits."""

    source: Source
    labels: Sequence[str]
    splits: Sequence[str | None]
    ignored: int = 0
    """Files that lay among the images and are none."""
    classes: tuple[str, ...] | None = None
    """Where the format states an order of its own."""
