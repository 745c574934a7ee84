"""Image sets: labelled images in any supported format, and their splits for training.

Errors are UserErrors, which name the file, or ImageErrors for images that cannot be decoded.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from regard.config import Settings
from regard.data.images.folders import read_folder
from regard.data.images.idx import find_idx, read_idx
from regard.data.images.preprocessing import MAX_PIXELS, ImageError, Pixels
from regard.data.images.sources import ImageSource, Listing, find_shards, natural_sort_key
from regard.data.images.tables import read_csv, read_parquet
from regard.data.images.tar import TAR_SUFFIXES, read_tars
from regard.errors import UserError
from regard.files import report_unreadable

Indices = npt.NDArray[np.int64]
Split = Literal["train", "valid", "test"]
SAMPLES = 64
"""Number of images that are inspected to find out properties of a set."""


class ImageSettings(Settings):
    """How images are read."""

    channels: Literal[1, 3] | None = Field(None, description="3: colour, 1: grey; by default detected from 64 images")
    columns: tuple[str, str] | None = Field(None, description="columns of images and labels; by default found by name")
    hold_out: float = Field(0.1, ge=0, lt=1, description="validation fraction without a valid split; 0: use test split")
    max_bad: float = Field(0.01, ge=0, le=1, description="fraction of images that may fail to decode and are skipped")
    max_pixels: int = Field(MAX_PIXELS, gt=0, le=2 * 89_478_485, description="maximum number of pixels of an image")


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of any size, decoded on access: `classes[labels[i]]` is the class of `read(i)`."""

    where: str  # path of the set, for messages
    source: ImageSource
    rows: Indices  # row of each image in the source
    labels: Indices
    classes: tuple[str, ...]
    channels: int  # 1 for grey, 3 for colour
    max_pixels: int = MAX_PIXELS

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """Decode an image: (height, width, channels). `min_side` is as in `decode_image`."""
        return self.source.read(int(self.rows[index]), self.channels, self.max_pixels, min_side)

    def median_side(self, at_least: int) -> int | None:
        """Return the median shorter side of evenly spaced images in pixels; None if none can be decoded.

        Sides longer than `at_least` may be reduced to it, which makes decoding faster.
        """
        sides = []
        for index in _evenly_spaced(len(self), SAMPLES):
            with suppress(ImageError):
                sides.append(min(self.read(index, at_least).shape[:2]))
        return sorted(sides)[len(sides) // 2] if sides else None

    def name(self, index: int) -> str:
        """Return the name of an image relative to the set."""
        return self.source.names[int(self.rows[index])]

    def names(self) -> Iterator[str]:
        return (self.source.names[row] for row in self.rows.tolist())

    def select(self, indices: Indices | Sequence[int]) -> "ImageSet":
        """Return the set of the given images, in this order."""
        indices = np.asarray(indices, np.int64)
        return replace(self, rows=self.rows[indices], labels=self.labels[indices])

    def with_classes(self, classes: Sequence[str]) -> "ImageSet":
        """Return the same images with labels that refer to `classes`."""
        new_labels = {name: label for label, name in enumerate(classes)}
        used = np.unique(self.labels).tolist()
        if unknown := [self.classes[label] for label in used if self.classes[label] not in new_labels]:
            raise UserError(f"{self.where}: class {unknown[0]} is unknown; the known classes are {', '.join(classes)}")
        table = np.array([new_labels.get(name, -1) for name in self.classes], np.int64)
        return replace(self, labels=table[self.labels], classes=tuple(classes))

    def fingerprint(self) -> str:
        """Return a checksum of the names, sizes and classes of all images and the contents of evenly spaced ones.

        It does not depend on the location of the set or on file times.
        """
        checksum = hashlib.sha256(repr((self.classes, self.channels)).encode())
        checksum.update(self.labels.astype("<i8").tobytes())
        for row in self.rows.tolist():
            checksum.update(f"{self.source.names[row]}\0{self.source.size(row)}\0".encode("utf-8", "surrogateescape"))
        for index in _evenly_spaced(len(self), SAMPLES):
            try:
                checksum.update(self.source.content(int(self.rows[index])))
            except ImageError as error:
                checksum.update(error.reason.encode())
        return checksum.hexdigest()


@dataclass(frozen=True)
class Splits:
    """Training, validation and, if available, test images."""

    train: ImageSet
    valid: ImageSet
    test: ImageSet | None
    validation: Literal["given", "held out", "test"]  # origin of the validation images
    ignored: int  # number of files among the images that are not images


def open_splits(path: Path, settings: ImageSettings) -> Splits:
    """Open images for training; if there is no validation split, images of each class are held out."""
    listing, images = _open(path, settings)
    if len(images.classes) < 2:
        raise UserError(f"{path}: has only one class, {images.classes[0]}; at least two are necessary")
    if not any(listing.splits):
        train, valid = _hold_out(images, settings.hold_out)
        return Splits(train, valid, None, "held out", listing.ignored)
    _check_splits(images, listing)
    train, valid, test = (_select_split(images, listing, split) for split in ("train", "valid", "test"))
    missing = set(range(len(images.classes))) - set(train.labels.tolist())
    if missing:
        name = images.classes[min(missing)]
        raise UserError(f"{path}: class {name} has no training images; add some to train, or remove the class")
    if len(valid):
        return Splits(train, valid, test if len(test) else None, "given", listing.ignored)
    if len(test) and not settings.hold_out:
        return Splits(train, test, test, "test", listing.ignored)
    train, valid = _hold_out(train, settings.hold_out)
    return Splits(train, valid, test if len(test) else None, "held out", listing.ignored)


def open_images(path: Path, settings: ImageSettings, split: Split | None = None) -> ImageSet:
    """Open all images, or those of a split."""
    listing, images = _open(path, settings)
    if split is None:
        return images
    selected = _select_split(images, listing, split)
    if not len(selected):
        present = sorted({name for name in listing.splits if name})
        raise UserError(f"{path}: no split {split}; it has {', '.join(present) if present else 'no splits'}")
    return selected


def _open(path: Path, settings: ImageSettings) -> tuple[Listing, ImageSet]:
    listing = _read_listing(path, settings)
    if not listing.labels:
        raise UserError(f"{path}: contains no images")
    classes = listing.classes or tuple(sorted(set(listing.labels), key=natural_sort_key))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[name] for name in listing.labels], np.int64)
    rows = np.arange(len(labels))
    channels = settings.channels or (1 if _all_grey(listing.source, len(rows)) else 3)
    return listing, ImageSet(str(path), listing.source, rows, labels, classes, channels, settings.max_pixels)


def _read_listing(path: Path, settings: ImageSettings) -> Listing:
    """List the images of a file or folder; its content or suffix determines the format."""
    with report_unreadable(path):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
    name = path.name.lower()
    if path.is_dir():
        if pairs := find_idx(path):
            return read_idx(path, pairs)
        if shards := find_shards(path, (".parquet",)):
            return read_parquet(path, shards, settings.columns)
        if shards := find_shards(path, TAR_SUFFIXES):
            return read_tars(path, shards)
        return read_folder(path)
    if name.endswith((".csv", ".tsv")):
        return read_csv(path, settings.columns)
    if name.endswith(".parquet"):
        return read_parquet(path, [path], settings.columns)
    if name.endswith(TAR_SUFFIXES):
        return read_tars(path, [path])
    if pairs := find_idx(path):
        return read_idx(path, pairs)
    raise UserError(
        f"{path}: not an image set; it must be a folder of class folders, a .csv, .tsv, .parquet or .tar file (also "
        f".tar.gz, .tar.xz, .tar.bz2), an idx file such as train-images-idx3-ubyte, or a folder of such files"
    )


def _check_splits(images: ImageSet, listing: Listing) -> None:
    without = [row for row, split in enumerate(listing.splits) if split is None]
    if without:
        raise UserError(
            f"{images.where}: {len(without)} of {len(images)} images belong to no split, for example "
            f"{images.name(without[0])}; assign train, valid or test to all images or to none"
        )


def _select_split(images: ImageSet, listing: Listing, split: Split) -> ImageSet:
    return images.select(np.flatnonzero(np.array([name == split for name in listing.splits], bool)))


def _hold_out(images: ImageSet, fraction: float) -> tuple[ImageSet, ImageSet]:
    """Divide images into training and validation images.

    The choice depends on the image names only, so that it stays the same when images of other classes are added.
    """
    if not fraction:
        raise UserError(f"{images.where}: has no valid or test split, so hold_out must be greater than 0")
    hashes = [hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in images.names()]
    is_held_out = np.zeros(len(images), bool)
    for label, name in enumerate(images.classes):
        members = np.flatnonzero(images.labels == label).tolist()
        if len(members) < 2:
            raise UserError(
                f"{images.where}: class {name} has {len(members)} images; it needs 2, one of them for validation"
            )
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        is_held_out[sorted(members, key=hashes.__getitem__)[:count]] = True
    return images.select(np.flatnonzero(~is_held_out)), images.select(np.flatnonzero(is_held_out))


def _all_grey(source: ImageSource, count: int) -> bool:
    """Return whether all sampled images that can be decoded are grey."""
    grey = []
    for row in _evenly_spaced(count, SAMPLES):
        with suppress(ImageError):
            grey.append(source.is_grey(row))
    return bool(grey) and all(grey)


def _evenly_spaced(count: int, wanted: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, min(count, wanted)).round().astype(int).tolist()))
