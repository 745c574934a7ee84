"""Folders of images: which are there, and what the folders above them say about class and split."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from regard.data.images.decoding import IMAGE_SUFFIXES
from regard.data.images.sources import Files, Listing, natural, split_of
from regard.errors import UserError

NOT_OURS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN"})
"""Folders that systems leave among the images."""


@dataclass
class Tree:
    """The names of all files below a folder, or in an archive, with / between the parts."""

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: int = 0


def is_hidden(name: str) -> bool:
    """Whether a file or folder is none of the user's images."""
    return name.startswith(".") or name in NOT_OURS


def list_images(folder: Path) -> list[Path]:
    """Every image below a folder, in natural order.

    Raises:
        UserError: it cannot be read or has none.
    """
    images = walk(folder).images
    if not images:
        raise UserError(f"{folder}: not a single image in it; known are {', '.join(sorted(IMAGE_SUFFIXES))}")
    return [folder / name for name in images]


def walk(folder: Path) -> Tree:
    """What lies below a folder; links are followed, hidden files left alone.

    Raises:
        UserError: a folder cannot be read.
    """
    tree = Tree()
    seen: set[tuple[int, int]] = set()

    def enter(place: Path, prefix: str) -> None:
        try:
            state = place.stat()
            entries = sorted(os.scandir(place), key=lambda entry: natural(entry.name))
        except OSError as error:
            raise UserError(f"{place}: cannot be read ({error.strerror})") from None
        if (state.st_dev, state.st_ino) in seen:  # a link to a folder that leads back
            return
        seen.add((state.st_dev, state.st_ino))
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                tree.folders.append(prefix + entry.name)
                enter(place / entry.name, f"{prefix}{entry.name}/")
            elif PurePosixPath(entry.name).suffix.lower() in IMAGE_SUFFIXES:
                tree.images.append(prefix + entry.name)
            else:
                tree.others += 1

    enter(folder, "")
    return tree


def read_folder(folder: Path) -> Listing:
    """The images of a folder of classes, with or without splits above the classes.

    Raises:
        UserError: there are no class folders, or one of them has no image to train on.
    """
    tree = walk(folder)
    kept, labels, splits = label_by_folder(tree, str(folder))
    ignored = tree.others + len(tree.images) - len(kept)
    return Listing(Files(folder, [tree.images[row] for row in kept]), labels, splits, ignored)


def label_by_folder(tree: Tree, where: str) -> tuple[list[int], list[str], list[str | None]]:
    """The places in `tree.images` of the images that lie in class folders, their classes and their splits.

    Raises:
        UserError: there are no class folders, or one of them has no image to train on.
    """
    outer = _outer_folders(tree.folders)
    splitting = any(split_of(parts[0]) for parts in _below(tree.folders, outer) if len(parts) == 2)
    kept: list[int] = []
    labels: list[str] = []
    splits: list[str | None] = []
    for row, parts in enumerate(_below(tree.images, outer)):
        split = split_of(parts[0]) if splitting and parts else None
        classed = parts[1:] if splitting else parts
        if len(classed) > 1 and (split or not splitting):
            kept.append(row)
            labels.append(classed[0])
            splits.append(split)
    if not kept:
        raise UserError(
            f"{where}: no images in class folders (CLASS/*.jpg, or train/CLASS/*.jpg and test/CLASS/*.jpg); "
            f"{len(tree.images)} images and {tree.others} other files are there"
        )
    found = set(zip(splits, labels, strict=True))
    for name, parts in zip(tree.folders, _below(tree.folders, outer), strict=True):
        split = split_of(parts[0]) if splitting and parts else None
        trains = split == "train" if splitting else True
        if trains and len(parts) == (2 if splitting else 1) and (split, parts[-1]) not in found:
            raise UserError(f"{where}/{name}: a class folder with no image in it; put some there or take it away")
    return kept, labels, splits


def _outer_folders(folders: Iterable[str]) -> tuple[str, ...]:
    """The folders that hold everything and are neither class nor split: an archive is often wrapped in one."""
    inner: dict[tuple[str, ...], set[str]] = {}
    for name in folders:
        *above, last = name.split("/")
        inner.setdefault(tuple(above), set()).add(last)
    outer: tuple[str, ...] = ()
    while len(inner.get(outer, ())) == 1:
        (only,) = inner[outer]
        if split_of(only) or (*outer, only) not in inner:
            break
        outer = (*outer, only)
    return outer


def _below(names: Iterable[str], outer: tuple[str, ...]) -> Iterator[list[str]]:
    """The parts of names below the outer folders; none, where a name does not lie there."""
    for name in names:
        parts = name.split("/")
        yield parts[len(outer) :] if tuple(parts[: len(outer)]) == outer else []
