"""Idx files, the format of MNIST: pixels in one file, labels in another, plain or compressed with gzip.

Damaged files and missing labels raise a UserError.
"""

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import IO, cast

from regard.data.images.sources import Listing, Location, RawSource, TempStorage, natural_sort_key, split_of_file
from regard.errors import UserError
from regard.files import check_regular

UNSIGNED_BYTE = 8
"""Type code of idx files with one byte per number."""
MAX_DIMENSIONS = 4


def find_idx(path: Path) -> list[tuple[Path, Path]]:
    """Return image files with their label files: all in a folder, or the given one."""
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir() if path.is_dir() else [path], key=lambda file: natural_sort_key(file.name)):
        if re.search(r"images.*idx[34]", file.name, re.I) and not file.name.startswith("."):
            found.setdefault(file.name.lower().removesuffix(".gz"), file)  # a file may exist with and without .gz
    return [(file, _label_file(file)) for file in found.values()]


def read_idx(path: Path, pairs: list[tuple[Path, Path]]) -> Listing:
    """List the images of pairs of image files and label files."""
    storage = TempStorage()
    names: list[str] = []
    locations: list[Location] = []
    labels: list[str] = []
    splits: list[str | None] = []
    shapes: list[tuple[int, int, int]] = []
    for image_file, label_file in pairs:
        (count, *shape), image_data = _open(image_file, storage)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or 0 in shape:
            raise UserError(f"{image_file}: has arrays of shape {shape}; images have height × width (× 1 or 3)")
        (label_count, *rest), label_data = _open(label_file, storage)
        if rest or label_count != count:
            raise UserError(f"{label_file}: has {label_count} labels, but {image_file.name} has {count} images")
        size, (file, start, _) = math.prod(shape), image_data
        names += [f"{image_file.name}[{index}]" for index in range(count)]
        locations += [Location(file, start + index * size, size) for index in range(count)]
        labels += map(str, label_data.read())
        splits += [split_of_file(image_file) if len(pairs) > 1 else None] * count
        shapes += [(shape[0], shape[1], shape[2] if len(shape) == 3 else 1)] * count
    return Listing(RawSource(path if path.is_dir() else path.parent, names, locations, shapes), labels, splits)


def _label_file(image_file: Path) -> Path:
    name = re.sub("idx[34]", "idx1", re.sub("images", "labels", image_file.name, flags=re.I), flags=re.I)
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        if (image_file.parent / candidate).is_file():
            return image_file.parent / candidate
    raise UserError(f"{image_file}: the labels are missing; {name} must be in the same folder")


def _open(path: Path, storage: TempStorage) -> tuple[list[int], Location]:
    """Return the dimensions of an idx file and the location of its numbers; a compressed file is unpacked first."""
    check_regular(path)
    compressed = path.suffix.lower() == ".gz"
    try:
        with cast(IO[bytes], gzip.open(path, "rb") if compressed else path.open("rb")) as stream:
            dimensions = _parse_header(stream.read(4 + 4 * MAX_DIMENSIONS), path)
            start = 4 + 4 * len(dimensions)
            expected = start + math.prod(dimensions)
            stream.seek(0)
            # One byte more shows that the file is too long, however much more it unpacks to.
            complete = storage.append(stream, expected + 1) if compressed else Location(path, 0, path.stat().st_size)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: truncated, damaged or not readable ({error})") from None
    if complete.size != expected:
        size = "more" if compressed and complete.size > expected else f"{complete.size:,}"
        raise UserError(f"{path}: has {size} bytes, but its header requires {expected:,}; download it again")
    return dimensions, Location(complete.file, complete.offset + start, expected - start)


def _parse_header(header: bytes, path: Path) -> list[int]:
    """Return the dimensions of an idx file."""
    if len(header) < 4 or header[:2] != b"\0\0" or header[2] != UNSIGNED_BYTE or not 1 <= header[3] <= MAX_DIMENSIONS:
        raise UserError(f"{path}: not an idx file of bytes (it begins with {header[:4].hex(' ')})")
    return [int.from_bytes(header[i : i + 4], "big") for i in range(4, 4 + 4 * header[3], 4)]
