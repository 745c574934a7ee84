"""Image sets: images with classes, opened from whatever form they come in, and split for training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from regard.config import Settings
from regard.data.images.decoding import MAX_PIXELS, ImageError, Pixels
from regard.data.images.folders import read_folder
from regard.data.images.idx import find_idx, read_idx
from regard.data.images.sources import Listing, Source, find_shards, natural
from regard.data.images.tables import read_csv, read_parquet
from regard.data.images.tar import TARS, read_tars
from regard.errors import UserError

Indices = npt.NDArray[np.int64]
Split = Literal["train", "valid", "test"]
SAMPLED = 64
"""Images that are looked at where all would take too long."""


class ImageSettings(Settings):
    """How images are read."""

    channels: Literal[1, 3] | None = Field(
        None, description="3 for colour, 1 for grey; by default 1 where all of 64 images have no colours"
    )
    columns: tuple[str, str] | None = Field(
        None, description="columns of a .csv or .parquet with images (or their paths) and labels; found by their names"
    )
    hold_out: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of each class held out for validation where there is no valid split; 0: test validates",
    )
    max_bad: float = Field(
        0.01, ge=0, le=1, description="share of images that may be bad and are left out; with more, the set is refused"
    )
    max_pixels: int = Field(MAX_PIXELS, gt=0, le=2 * 89_478_485, description="most pixels that an image may have")


@dataclass(frozen=True)
class ImageSet:
    """Images with labels: `labels[i]` is the place in `classes` of the class of `read(i)`."""

    where: str
    source: Source
    rows: Indices
    labels: Indices
    classes: tuple[str, ...]
    channels: int
    pixels: int = MAX_PIXELS

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int, detail: int | None = None) -> Pixels:
        """An image as (height, width, channels); with `detail`, perhaps smaller, but its sides no shorter than that.

        Raises:
            ImageError: the image is bad; it is named.
        """
        return self.source.read(int(self.rows[index]), self.channels, self.pixels, detail)

    def name(self, index: int) -> str:
        """Where an image lies, as far as its set is concerned."""
        return self.source.names[int(self.rows[index])]

    def names(self) -> Iterator[str]:
        return (self.source.names[row] for row in self.rows.tolist())

    def select(self, chosen: Indices | Sequence[int]) -> ImageSet:
        """Some of the images, in the order given."""
        chosen = np.asarray(chosen, np.int64)
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen])

    def with_classes(self, classes: Sequence[str]) -> ImageSet:
        """The same images, with classes in the order of a model that has learned them.

        Raises:
            UserError: a class of these images is not among them.
        """
        known = {name: place for place, name in enumerate(classes)}
        present = np.unique(self.labels)
        if unknown := [self.classes[label] for label in present.tolist() if self.classes[label] not in known]:
            raise UserError(f"{self.where}: class {unknown[0]} is unknown; known are {', '.join(classes)}")
        table = np.array([known.get(name, -1) for name in self.classes], np.int64)
        return replace(self, labels=table[self.labels], classes=tuple(classes))

    def fingerprint(self) -> str:
        """A checksum of names, sizes, classes, and the content of a few images spread over the set.

        Neither where the set lies nor the times of its files matter.
        """
        digest = hashlib.sha256(repr((self.classes, self.channels)).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        for row in self.rows.tolist():
            digest.update(f"{self.source.names[row]}\0{self.source.size(row)}\0".encode("utf-8", "surrogateescape"))
        for index in _spread(len(self), SAMPLED):
            try:
                digest.update(self.source.content(int(self.rows[index])))
            except ImageError as error:
                digest.update(error.reason.encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Splits:
    """What a run reads: images to learn from, to validate with and, if there are any, to test with at the end."""

    train: ImageSet
    valid: ImageSet
    test: ImageSet | None
    validation: Literal["given", "held out", "test"]
    """Where the validation images come from; "test": they are the test images, so a score on them is not a new one."""
    ignored: int
    """Files that lay among the images and are none."""


def open_splits(path: Path, settings: ImageSettings) -> Splits:
    """Opens the images at a path for training; without a validation split, some of each class are held out.

    Raises:
        UserError: there are no images, fewer than two classes, a class without images to train on, or images that
            belong to no split beside others that do.
    """
    listing, everything = _open(path, settings)
    if len(everything.classes) < 2:
        raise UserError(f"{path}: only one class, {everything.classes[0]}; there must be two")
    if not any(listing.splits):
        train, valid = _hold_out(everything, settings.hold_out)
        return Splits(train, valid, None, "held out", listing.ignored)
    _refuse_strays(everything, listing)
    train, given, test = (_part(everything, listing, split) for split in ("train", "valid", "test"))
    missing = set(range(len(everything.classes))) - set(train.labels.tolist())
    if missing:
        name = everything.classes[min(missing)]
        raise UserError(f"{path}: class {name} has no training image; add some to train, or leave the class out")
    if len(given):
        return Splits(train, given, test if len(test) else None, "given", listing.ignored)
    if len(test) and not settings.hold_out:
        return Splits(train, test, test, "test", listing.ignored)
    train, valid = _hold_out(train, settings.hold_out)
    return Splits(train, valid, test if len(test) else None, "held out", listing.ignored)


def open_images(path: Path, settings: ImageSettings, split: Split | None = None) -> ImageSet:
    """Opens the images at a path: all of them, or those of a split.

    Raises:
        UserError: there are no images, or there is no such split.
    """
    listing, everything = _open(path, settings)
    if split is None:
        return everything
    part = _part(everything, listing, split)
    if not len(part):
        present = sorted({name for name in listing.splits if name})
        raise UserError(f"{path}: no split {split}; " + (f"it has {', '.join(present)}" if present else "it has none"))
    return part


def _open(path: Path, settings: ImageSettings) -> tuple[Listing, ImageSet]:
    """What is at a path, and all of its images.

    Raises:
        UserError: nothing that is known.
    """
    listing = _read(path, settings)
    if not listing.labels:
        raise UserError(f"{path}: not a single image in it")
    classes = listing.classes or tuple(sorted(set(listing.labels), key=natural))
    places = {name: place for place, name in enumerate(classes)}
    labels = np.array([places[label] for label in listing.labels], np.int64)
    rows = np.arange(len(labels))
    channels = settings.channels or (1 if _all_grey(listing.source, len(rows)) else 3)
    return listing, ImageSet(str(path), listing.source, rows, labels, classes, channels, settings.max_pixels)


def _read(path: Path, settings: ImageSettings) -> Listing:
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    name = path.name.lower()
    if path.is_dir():
        if pairs := find_idx(path):
            return read_idx(path, pairs)
        if shards := find_shards(path, (".parquet",)):
            return read_parquet(path, shards, settings.columns)
        if shards := find_shards(path, TARS):
            return read_tars(path, shards)
        return read_folder(path)
    if name.endswith((".csv", ".tsv")):
        return read_csv(path, settings.columns)
    if name.endswith(".parquet"):
        return read_parquet(path, [path], settings.columns)
    if name.endswith(TARS):
        return read_tars(path, [path])
    if pairs := find_idx(path):
        return read_idx(path, pairs)
    raise UserError(
        f"{path}: not a set of images; it must be a folder of classes, a .csv, a .parquet, a .tar (with .gz, .xz or "
        f".bz2 behind), a file like train-images-idx3-ubyte, or a folder of those"
    )


def _refuse_strays(everything: ImageSet, listing: Listing) -> None:
    """Does nothing where every image belongs to a split.

    Raises:
        UserError: some belong to none, and would be used for nothing.
    """
    strays = [row for row, split in enumerate(listing.splits) if split is None]
    if strays:
        raise UserError(
            f"{everything.where}: {len(strays)} of {len(everything)} images belong to no split, such as "
            f"{everything.name(strays[0])}; say train, valid or test of all images, or of none"
        )


def _part(everything: ImageSet, listing: Listing, split: Split) -> ImageSet:
    return everything.select(np.flatnonzero(np.array([name == split for name in listing.splits], bool)))


def _hold_out(images: ImageSet, share: float) -> tuple[ImageSet, ImageSet]:
    """Takes a share of each class away, at least one image; which, depends on their names alone.

    Raises:
        UserError: the share is 0, or a class has a single image.
    """
    if not share:
        raise UserError(f"{images.where}: has no valid or test split, so hold_out must be more than 0")
    order = [hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in images.names()]
    held: list[int] = []
    for label, name in enumerate(images.classes):
        members = np.flatnonzero(images.labels == label).tolist()
        if len(members) < 2:
            raise UserError(f"{images.where}: class {name} has {len(members)} images; it needs 2, one to validate with")
        wanted = min(max(1, round(share * len(members))), len(members) - 1)
        held += sorted(members, key=order.__getitem__)[:wanted]
    chosen = np.zeros(len(images), bool)
    chosen[held] = True
    return images.select(np.flatnonzero(~chosen)), images.select(np.flatnonzero(chosen))


def _all_grey(source: Source, count: int) -> bool:
    """Whether none of some images has colours; a bad one says nothing."""
    seen = []
    for row in _spread(count, SAMPLED):
        try:
            seen.append(source.grey(row))
        except ImageError:
            continue
    return bool(seen) and all(seen)


def _spread(count: int, wanted: int) -> list[int]:
    """Evenly spaced places, first and last among them."""
    return sorted(set(np.linspace(0, count - 1, min(count, wanted)).round().astype(int).tolist()))
