"""What a reader of any format finds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.images.sources import Source

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


def split_of_shard(path: Path) -> str | None:
    """The split that a file means by its own name or its folder's: train-00000-of-00002.parquet, val/3.tar."""
    words = [*re.split(r"[^a-z0-9]+", path.name.lower()), path.parent.name]
    return next((split for word in words if (split := split_of(word))), None)


def find_shards(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files with some suffixes in a folder, or in those of its folders that are splits or called data."""
    inner = [path for path in folder.iterdir() if path.is_dir() and (split_of(path.name) or path.name == "data")]
    found = [path for place in (folder, *inner) for path in place.iterdir() if path.name.lower().endswith(suffixes)]
    return sorted((path for path in found if not path.name.startswith(".")), key=lambda path: natural(str(path)))


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key that sorts 2 before 10, whatever stands round them."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part], name


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
