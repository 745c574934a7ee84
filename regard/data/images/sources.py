"""Where the images of a set lie: files of their own, or stretches of larger files."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from regard.data.images.decoding import MAX_PIXELS, ImageError, Mode, Pixels, decode_image, is_grey


class Source(Protocol):
    """Images in an order of their own, with names by which a person finds them."""

    @property
    def names(self) -> Sequence[str]:
        """Relative to where the set lies, so that a set may move."""
        ...

    def size(self, row: int) -> int:
        """Bytes."""
        ...

    def content(self, row: int) -> bytes:
        """The bytes as they are stored.

        Raises:
            ImageError: they cannot be read.
        """
        ...

    def grey(self, row: int) -> bool:
        """Whether an image has no colours.

        Raises:
            ImageError: it cannot be read.
        """
        ...

    def read(self, row: int, channels: int, pixels: int = MAX_PIXELS, detail: int | None = None) -> Pixels:
        """One image; `detail` as in `decode`.

        Raises:
            ImageError: it cannot be read or decoded.
        """
        ...


@dataclass(frozen=True)
class Files:
    """Each image a file."""

    folder: Path
    names: Sequence[str]

    def size(self, row: int) -> int:
        try:
            return (self.folder / self.names[row]).stat().st_size
        except OSError:
            return -1  # the reason is said when it is read

    def content(self, row: int) -> bytes:
        path = self.folder / self.names[row]
        try:
            return path.read_bytes()
        except OSError as error:
            raise ImageError(str(path), f"cannot be read ({error.strerror})") from None

    def grey(self, row: int) -> bool:
        path = self.folder / self.names[row]
        return is_grey(path, str(path))

    def read(self, row: int, channels: int, pixels: int = MAX_PIXELS, detail: int | None = None) -> Pixels:
        return decode_image(
            self.folder / self.names[row], "L" if channels == 1 else "RGB", max_pixels=pixels, min_side=detail
        )


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes: ...


class Spool:
    """A nameless temporary file, gone with the process: compressed images are unpacked there and not into memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="regard-")  # noqa: SIM115 - lives as long as the images are read
        self._end = 0

    def append(self, stream: Readable) -> tuple[int, int]:
        """Copies a stream; where it begins and how long it is."""
        start = self._end
        shutil.copyfileobj(stream, self._file, 2**20)
        self._end = self._file.tell()
        return start, self._end - start

    def finish(self) -> None:
        """Everything is there from now on."""
        self._file.flush()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)


@dataclass(frozen=True)
class Packed:
    """Each image a stretch of a file that holds many."""

    where: Path
    names: Sequence[str]
    files: Sequence[Path | Spool]
    which: Sequence[int]
    """In which of the files each image lies."""
    offsets: Sequence[int]
    sizes: Sequence[int]

    def size(self, row: int) -> int:
        return self.sizes[row]

    def content(self, row: int) -> bytes:
        file, offset, size = self.files[self.which[row]], self.offsets[row], self.sizes[row]
        try:
            if isinstance(file, Spool):
                content = file.read(offset, size)
            else:
                with file.open("rb", buffering=0) as stream:
                    content = os.pread(stream.fileno(), size, offset)
        except OSError as error:
            raise ImageError(self.title(row), f"cannot be read ({error.strerror})") from None
        if len(content) < size:
            raise ImageError(self.title(row), "its file has become shorter")
        return content

    def title(self, row: int) -> str:
        """What an image is called in a message."""
        return f"{self.where}: {self.names[row]}"

    def grey(self, row: int) -> bool:
        return is_grey(self.content(row), self.title(row))

    def read(self, row: int, channels: int, pixels: int = MAX_PIXELS, detail: int | None = None) -> Pixels:
        mode: Mode = "L" if channels == 1 else "RGB"
        return decode_image(self.content(row), mode, self.title(row), max_pixels=pixels, min_side=detail)


@dataclass(frozen=True)
class Raw(Packed):
    """Stretches of bare pixels: (height, width, channels) of the images of each file."""

    shapes: Sequence[tuple[int, int, int]]

    def grey(self, row: int) -> bool:
        return self.shapes[self.which[row]][2] == 1

    def read(self, row: int, channels: int, pixels: int = MAX_PIXELS, detail: int | None = None) -> Pixels:
        array = np.frombuffer(self.content(row), np.uint8).reshape(self.shapes[self.which[row]])
        if array.shape[2] == channels:
            return array
        if channels == 3:
            return array.repeat(3, 2)
        return np.asarray(Image.fromarray(array).convert("L"))[:, :, None]


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
