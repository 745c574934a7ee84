"""Idx files, as MNIST is published: bare pixels in one file, labels in another beside it, plain or with .gz."""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from regard.data.images.sources import Listing, Raw, Spool, natural, split_of_shard
from regard.errors import UserError

BYTES = 8
"""The code for numbers of one byte, the only ones that images have."""


def find_idx(path: Path) -> list[tuple[Path, Path]]:
    """Files of images, each with the file of its labels: those in a folder, or one that is given.

    Raises:
        UserError: labels are missing.
    """
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir() if path.is_dir() else [path], key=lambda file: natural(file.name)):
        if re.search(r"images.*idx[34]", file.name, re.I) and not file.name.startswith("."):
            found.setdefault(file.name.lower().removesuffix(".gz"), file)  # a set may lie there twice, also unpacked
    return [(file, _labels_beside(file)) for file in found.values()]


def read_idx(path: Path, pairs: list[tuple[Path, Path]]) -> Listing:
    """The images of idx files.

    Raises:
        UserError: a file is damaged, or has not as many labels as images.
    """
    spool = Spool()
    names: list[str] = []
    which: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    labels: list[str] = []
    splits: list[str | None] = []
    shapes = []
    files: list[Path | Spool] = []
    for number, (images, labelled) in enumerate(pairs):
        (count, *shape), start, file = _open(images, spool)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)):
            raise UserError(f"{images}: holds arrays of {shape}; images are height × width, or that × 1 or 3")
        (labels_count, *rest), begin, other = _open(labelled, spool)
        if rest or labels_count != count:
            raise UserError(f"{labelled}: has {labels_count} labels, but {images.name} {count} images")
        size = math.prod(shape)
        names += [f"{images.name}[{index}]" for index in range(count)]
        which += [number] * count
        offsets += range(start, start + count * size, size)
        sizes += [size] * count
        labels += map(str, _read(other, begin, count))
        splits += [split_of_shard(images) if len(pairs) > 1 else None] * count
        shapes.append((shape[0], shape[1], shape[2] if len(shape) == 3 else 1))
        files.append(file)
    source = Raw(path if path.is_dir() else path.parent, names, files, which, offsets, sizes, shapes)
    return Listing(source, labels, splits)


def _labels_beside(images: Path) -> Path:
    name = re.sub("idx[34]", "idx1", re.sub("images", "labels", images.name, flags=re.I), flags=re.I)
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        if (images.parent / candidate).is_file():
            return images.parent / candidate
    raise UserError(f"{images}: its labels are missing; {name} must lie beside it")


def _open(path: Path, spool: Spool) -> tuple[list[int], int, Path | Spool]:
    """The dimensions of an idx file, where its numbers begin, and in what: a compressed one is unpacked first."""
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as stream:
                start, length = spool.append(stream)
            spool.finish()
            head = io.BytesIO(spool.read(start, 64))
            file: Path | Spool = spool
        else:
            start, length, file = 0, path.stat().st_size, path
            with path.open("rb") as plain:
                head = io.BytesIO(plain.read(64))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: truncated, damaged or not readable ({error})") from None
    dimensions = list(_dimensions(head, path))
    begin = head.tell()
    if length != begin + math.prod(dimensions):
        raise UserError(
            f"{path}: has {length:,} bytes, but {begin + math.prod(dimensions):,} by its header; fetch it again"
        )
    return dimensions, start + begin, file


def _dimensions(head: IO[bytes], path: Path) -> Iterator[int]:
    magic = head.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != BYTES or not 1 <= magic[3] <= 4:
        raise UserError(f"{path}: not an idx file of bytes (it begins with {magic.hex(' ')})")
    for _ in range(magic[3]):
        yield int.from_bytes(head.read(4), "big")


def _read(file: Path | Spool, start: int, size: int) -> bytes:
    if isinstance(file, Spool):
        return file.read(start, size)
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(size)
