"""Images on the disk, decoded once: one array of pixels in a plain .npy file, mapped into memory, not loaded.

`pixels.npy` holds (number, channels, size, size), `labels.npy` their classes, `rows.npy` where they stand in their set;
`left-out.tsv` lists the bad images with reasons, and `store.json` describes all of it, with checksums. A set that is
too large for that is only checked: there is no `pixels.npy`, and images are decoded whenever they are asked for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regard.data.arrays import ArrayWriter
from regard.data.batching import prefetch
from regard.data.images.datasets import ImageDataset, Resize, StreamedImages, TensorImages, read_resized
from regard.data.images.decoding import ImageError
from regard.data.images.image_sets import ImageSet
from regard.errors import UserError

PIXELS, LABELS, ROWS, LEFT_OUT, DESCRIPTION = "pixels.npy", "labels.npy", "rows.npy", "left-out.tsv", "store.json"
FORMAT = 1
CHUNK = 64
"""Images that a thread decodes at a time."""
LARGEST = 16 * 2**30
"""Bytes of pixels beyond which a set is only checked, unless asked otherwise."""


class DamagedStoreError(Exception):
    """A store that does not hold what its description says."""


def should_store(images: ImageSet, frame: Resize, folder: Path) -> bool:
    """Whether the pixels of a set may be kept in a folder: they are no more than 16 GiB and half of what is free."""
    wanted = len(images) * images.channels * frame.size**2
    return wanted <= min(LARGEST, shutil.disk_usage(folder).free // 2)


def write_store(
    folder: Path,
    images: ImageSet,
    frame: Resize,
    *,
    max_bad: float,
    keep: bool = True,
    threads: int | None = None,
    watch: Callable[[int], None] = lambda done: None,
) -> int:
    """Decodes every image of a set once, by several threads, holding a few hundred of them; says how many are left out.

    Args:
        folder: Exists, is empty, and worth nothing before this function returns.
        images: What to decode.
        frame: What every image is brought to.
        max_bad: The share of images that may be bad; one always may, unless the share is 0.
        keep: Whether to keep the pixels, or only what was found out about the images.
        threads: How many; by default, one for each core.
        watch: Called with the number of images that are done.

    Raises:
        UserError: more images are bad than may be, or none of a class is left.
    """
    allowed = max(1, int(max_bad * len(images))) if max_bad else 0
    kept: list[int] = []
    left_out: list[ImageError] = []
    with ExitStack() as stack:
        file = (
            stack.enter_context(ArrayWriter(folder / PIXELS, np.uint8, (images.channels, frame.size, frame.size)))
            if keep
            else None
        )
        for start, pixels, errors in _decode_all(images, frame, threads or cpu_count() or 1):
            done = start + len(pixels)
            left_out += errors.values()
            if len(left_out) > allowed:
                raise _too_many_bad(images, left_out, done)
            good = [index for index in range(start, done) if index not in errors]
            kept += good
            if file is not None:
                file.append(pixels[[index - start for index in good]])
            watch(done)
    chosen = images.select(kept)
    _refuse_lost_classes(images, chosen, left_out)
    np.save(folder / LABELS, chosen.labels)
    np.save(folder / ROWS, chosen.rows)
    listed = "".join(f"{error.name}\t{error.reason}\n" for error in left_out)
    (folder / LEFT_OUT).write_text("image\treason\n" + listed, encoding="utf-8", errors="surrogateescape")
    description = {
        "format": FORMAT,
        "classes": images.classes,
        "channels": images.channels,
        "size": frame.size,
        "fit": frame.fit,
        "left_out": len(left_out),
        "set": images.fingerprint(),
        "pixels": None if file is None else file.describe(),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return len(left_out)


def open_store(folder: Path, images: ImageSet | None = None, threads: int | None = None) -> ImageDataset:
    """The images of a store; the set itself is needed only where the store keeps no pixels.

    A file whose size and time are as they were is trusted, any other read and compared.

    Raises:
        DamagedStoreError: something is missing or not what was written; says what.
        UserError: the set is not the one that the store was made from.
    """
    description = read_description(folder)
    classes = tuple(description["classes"])
    if images is not None and images.fingerprint() != description["set"]:
        raise UserError(f"{images.where}: its images are not those that {folder} was made from; put them back")
    labels, rows = _load(folder / LABELS), _load(folder / ROWS)
    if description["pixels"] is None:
        if images is None:
            raise UserError(f"{folder}: keeps no pixels, so the images themselves are needed")
        places = np.flatnonzero(np.isin(images.rows, rows))
        return StreamedImages(images.select(places), Resize(description["size"], description["fit"]), threads)
    pixels = _open_pixels(folder / PIXELS, description["pixels"])
    size = description["size"]
    if pixels.shape != (len(labels), description["channels"], size, size):
        raise DamagedStoreError(f"{PIXELS} holds {pixels.shape}, which is not what {DESCRIPTION} says")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes into it
        return TensorImages(classes, torch.from_numpy(labels), torch.from_numpy(pixels))


def read_description(folder: Path) -> dict[str, Any]:
    """What store.json says.

    Raises:
        DamagedStoreError: it is missing, damaged or of another version.
    """
    try:
        description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise DamagedStoreError(f"it is of format {description['format']}, not {FORMAT}")
        if not {"classes", "channels", "size", "fit", "set", "pixels", "left_out"} <= description.keys():
            raise DamagedStoreError(f"{DESCRIPTION} is incomplete")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{DESCRIPTION} cannot be read: {error}") from None
    return description


Chunk = tuple[int, npt.NDArray[np.uint8], dict[int, ImageError]]


def _decode_all(images: ImageSet, frame: Resize, threads: int) -> Iterator[Chunk]:
    """Chunks of decoded images, in order, with the errors of those that are bad; only a few chunks ahead."""

    def work(start: int) -> Chunk:
        stop = min(start + CHUNK, len(images))
        pixels = np.zeros((stop - start, images.channels, frame.size, frame.size), np.uint8)
        errors = {}
        for index in range(start, stop):
            try:
                pixels[index - start] = read_resized(images, index, frame).transpose(2, 0, 1)
            except ImageError as error:
                errors[index] = error
        return start, pixels, errors

    return prefetch(work, range(0, len(images), CHUNK), threads=threads, waiting=2 * threads)


def _too_many_bad(images: ImageSet, left_out: list[ImageError], done: int) -> UserError:
    first = "; ".join(str(error) for error in left_out[:3])
    return UserError(
        f"{images.where}: {len(left_out)} of the first {min(done, len(images)):,} images are bad, more than allowed; "
        f"mend them or allow a larger share (data.max_bad); the first are: {first}"
    )


def _refuse_lost_classes(before: ImageSet, after: ImageSet, left_out: list[ImageError]) -> None:
    lost = np.setdiff1d(before.labels, after.labels)
    if len(lost):
        raise UserError(f"{before.where}: every image of class {before.classes[lost[0]]} is bad, as in: {left_out[0]}")


def _open_pixels(path: Path, known: dict[str, Any]) -> npt.NDArray[np.uint8]:
    try:
        pixels: npt.NDArray[np.uint8] = np.load(path, mmap_mode="r")
        state = path.stat()
    except (OSError, ValueError) as error:
        raise DamagedStoreError(f"{path.name} cannot be read: {error}") from None
    if state.st_size != known["bytes"]:
        raise DamagedStoreError(f"{path.name} has {state.st_size} bytes, not {known['bytes']}")
    if state.st_mtime_ns != known["time"] and hashlib.sha256(pixels.data).hexdigest() != known["sha256"]:
        raise DamagedStoreError(f"{path.name} is not what was written")
    return pixels


def _load(path: Path) -> npt.NDArray[np.int64]:
    try:
        array: npt.NDArray[np.int64] = np.load(path)
    except (OSError, ValueError) as error:
        raise DamagedStoreError(f"{path.name} cannot be read: {error}") from None
    return array
