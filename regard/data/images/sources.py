"""Image sources: where the encoded images of a set are stored, as separate files or as parts of larger files.

Methods raise an ImageError if an image cannot be read or decoded.
"""

import os
import re
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image

from regard.data.images.preprocessing import (
    MAX_IMAGE_BYTES,
    MAX_PIXELS,
    ImageError,
    Mode,
    Pixels,
    decode_image,
    is_grey,
    report_unreadable_image,
)
from regard.files import read_bytes

_SPLIT_NAMES = {
    "train": ("train", "training"),
    "valid": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "t10k"),
}


@dataclass(frozen=True)
class ImageSource(ABC):
    """Encoded images by row."""

    root: Path  # folder or file of the image set
    names: Sequence[str]  # name of each image, relative to the root

    @abstractmethod
    def size(self, row: int) -> int:
        """Return the number of bytes of an image, or -1 if it cannot be read."""

    @abstractmethod
    def content(self, row: int) -> bytes:
        """Return the encoded image."""

    @abstractmethod
    def title(self, row: int) -> str:
        """Return the name of an image in messages."""

    def is_grey(self, row: int) -> bool:
        """Return whether an image is greyscale."""
        return is_grey(self.content(row), self.title(row))

    def read(self, row: int, channels: int, max_pixels: int = MAX_PIXELS, min_side: int | None = None) -> Pixels:
        """Decode an image; arguments are as in `decode_image`."""
        mode: Mode = "L" if channels == 1 else "RGB"
        return decode_image(self.content(row), mode, self.title(row), max_pixels=max_pixels, min_side=min_side)


class FileSource(ImageSource):
    """Images in separate files."""

    def size(self, row: int) -> int:
        try:
            return (self.root / self.names[row]).stat().st_size
        except (OSError, ValueError):  # missing, or not a valid path
            return -1

    def content(self, row: int) -> bytes:
        path = self.root / self.names[row]
        with report_unreadable_image(path):
            return read_bytes(path, MAX_IMAGE_BYTES)

    def title(self, row: int) -> str:
        return str(self.root / self.names[row])


class Location(NamedTuple):
    """A part of a file that contains one image."""

    file: "Path | TempStorage"
    offset: int
    size: int

    def read(self) -> bytes:
        if isinstance(self.file, TempStorage):
            return self.file.read(self.offset, self.size)
        with self.file.open("rb", buffering=0) as stream:
            return os.pread(stream.fileno(), self.size, self.offset)


class TempStorage:
    """An unnamed temporary file for images from compressed archives; it is deleted when the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="regard-", buffering=0)  # noqa: SIM115 - stays open

    def append(self, stream: IO[bytes], limit: int = sys.maxsize) -> Location:
        """Copy at most `limit` bytes of a stream to the end of the file."""
        start = self._file.tell()
        while chunk := stream.read(min(2**20, limit)):
            self._file.write(chunk)
            limit -= len(chunk)
        return Location(self, start, self._file.tell() - start)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)


@dataclass(frozen=True)
class PackedSource(ImageSource):
    """Images that are parts of larger files."""

    locations: Sequence[Location]

    def size(self, row: int) -> int:
        return self.locations[row].size

    def content(self, row: int) -> bytes:
        try:
            content = self.locations[row].read()
        except OSError as error:
            raise ImageError(self.title(row), f"cannot be read ({error.strerror})") from None
        if len(content) < self.locations[row].size:
            raise ImageError(self.title(row), "its file has become shorter")
        return content

    def title(self, row: int) -> str:
        return f"{self.root}: {self.names[row]}"


@dataclass(frozen=True)
class RawSource(PackedSource):
    """Images stored as bare pixels of the given shapes (height, width, channels)."""

    shapes: Sequence[tuple[int, int, int]]

    def is_grey(self, row: int) -> bool:
        return self.shapes[row][2] == 1

    def read(self, row: int, channels: int, max_pixels: int = MAX_PIXELS, min_side: int | None = None) -> Pixels:
        array = np.frombuffer(self.content(row), np.uint8).reshape(self.shapes[row])
        if array.shape[2] == channels:
            return array
        if channels == 3:
            return array.repeat(3, 2)
        return np.asarray(Image.fromarray(array).convert("L"))[:, :, None]


@dataclass
class PackedImages:
    """Packed images while they are being listed; each list has one element per image."""

    storage: TempStorage = field(default_factory=TempStorage)
    names: list[str] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Listing:
    """The images of a set as a reader found them."""

    source: ImageSource
    labels: Sequence[str]  # class name of each image
    splits: Sequence[str | None]  # split of each image: train, valid, test or None
    ignored: int = 0  # number of other files among the images
    classes: tuple[str, ...] | None = None  # order of the classes, if the format defines one


def parse_split(name: str) -> str | None:
    """Return the split (train, valid or test) that a folder name or a word stands for, or None."""
    return next((split for split, names in _SPLIT_NAMES.items() if name.lower() in names), None)


def split_of_file(path: Path) -> str | None:
    """Return the split that the name of a file or its folder contains: train-00000-of-00002.parquet, val/3.tar."""
    words = [*re.split(r"[^a-z0-9]+", path.name.lower()), path.parent.name]
    return next((split for word in words if (split := parse_split(word))), None)


def find_shards(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files with the given suffixes in a folder, its split folders and its folder "data"."""
    inner = [path for path in folder.iterdir() if path.is_dir() and (parse_split(path.name) or path.name == "data")]
    paths = [path for parent in (folder, *inner) for path in parent.iterdir() if path.name.lower().endswith(suffixes)]
    visible = [path for path in paths if not path.name.startswith(".")]
    return sorted(visible, key=lambda path: natural_sort_key(str(path)))


def natural_sort_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key that orders "image2" before "image10"."""
    parts = [part.lstrip("0") or "0" if part.isdecimal() else part for part in re.split(r"(\d+)", name.casefold())]
    # Numbers are compared by their length and digits, because they may be too long to convert.
    return [(0, len(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part], name
