"""Image sets on disk, decoded once into one memory-mapped array.

The store has the arrays `pixels` (number, channels, size, size), `labels`, and `rows`, the indices of the images in
their set. `skipped.tsv` lists the images that could not be decoded. For a set that is too large to store, `pixels` is
missing: all images have been checked, but they are decoded whenever they are needed.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from regard.data.array_store import StoreWriter, open_store, read_description
from regard.data.images.datasets import ImageDataset, StreamedImages, TensorImages, read_resized
from regard.data.images.image_sets import ImageSet
from regard.data.images.preprocessing import ImageError, Resize, prefetch
from regard.errors import UserError
from regard.threads import available_cpus

SKIPPED = "skipped.tsv"
CHUNK = 64
"""Number of images that a thread decodes at a time."""
MAX_BYTES = 16 * 2**30
"""Sets with more bytes of pixels are not stored."""


def should_store(images: ImageSet, resize: Resize, folder: Path) -> bool:
    """Return whether the pixels of a set take at most 16 GiB and at most half of the free disk space."""
    size = len(images) * images.channels * resize.size**2
    return size <= min(MAX_BYTES, shutil.disk_usage(folder).free // 2)


def write_image_store(
    folder: Path,
    images: ImageSet,
    resize: Resize,
    *,
    max_bad: float,
    store_pixels: bool = True,
    threads: int | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Decode every image of a set and write the result; return the number of skipped images.

    Args:
        max_bad: Share of images that may be skipped because they cannot be decoded. If it is not 0, at least one may.
        store_pixels: Whether to store the pixels, or only check that the images can be decoded.
        threads: Number of decoding threads, by default one per core.
        on_progress: Called with the number of images processed so far.
    """
    # 0.29 · 100 is 28.999999999999996 in floating point.
    max_skipped = max(1, int(round(max_bad * len(images), 6))) if max_bad else 0
    kept: list[int] = []
    skipped: list[ImageError] = []
    with StoreWriter(folder) as store:
        row_shape = (images.channels, resize.size, resize.size)
        stored = store.add_array("pixels", np.uint8, row_shape) if store_pixels else None
        for start, pixels, errors in _decode_all(images, resize, threads or available_cpus()):
            end = start + len(pixels)
            skipped += errors.values()
            if len(skipped) > max_skipped:
                raise _too_many_bad(images, skipped, end)
            good = [index for index in range(start, end) if index not in errors]
            kept += good
            if stored is not None:
                stored.append(pixels[[index - start for index in good]])
            on_progress(end)
        chosen = images.select(kept)
        _check_classes(images, chosen, skipped)
        store.add_array("labels", np.int64).append(chosen.labels)
        store.add_array("rows", np.int64).append(chosen.rows)
        store.metadata |= {"classes": images.classes, "size": resize.size, "fit": resize.fit}
        store.metadata["images"] = images.fingerprint()
        lines = "".join(f"{error.name}\t{error.reason}\n" for error in skipped)
        (folder / SKIPPED).write_text("image\treason\n" + lines, encoding="utf-8", errors="surrogateescape")
    return len(skipped)


def open_image_store(folder: Path, images: ImageSet | None = None, threads: int | None = None) -> ImageDataset:
    """Open the images of a store.

    Args:
        images: Set that the store was made from; necessary only if the store has no pixels.
        threads: Number of decoding threads if the store has no pixels, by default one per core.

    Raises:
        DamagedStoreError: If a file is missing or does not match the description.
        UserError: If `images` is not the set that the store was made from.
    """
    store = open_store(folder, ("labels", "rows"), {"classes": list, "size": int, "fit": str, "images": str})
    if images is not None and images.fingerprint() != store.metadata["images"]:
        raise UserError(f"{images.where}: these are not the images that {folder} was made from; restore them")
    if "pixels" not in store.arrays:
        if images is None:
            raise UserError(f"{folder}: the store has no pixels, so the images themselves are needed")
        indices = np.flatnonzero(np.isin(images.rows, store.arrays["rows"]))
        return StreamedImages(images.select(indices), Resize(store.metadata["size"], store.metadata["fit"]), threads)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to these tensors
        pixels, labels = (torch.from_numpy(store.arrays[name]) for name in ("pixels", "labels"))
    return TensorImages(tuple(store.metadata["classes"]), labels, pixels)


def has_pixels(folder: Path) -> bool:
    """Return whether a store contains pixels."""
    return "pixels.npy" in read_description(folder)["arrays"]


def stored_names(folder: Path, images: ImageSet) -> list[str]:
    """Return the names of the images in a store that was made from `images`."""
    rows = open_store(folder, ("rows",), {}).arrays["rows"]
    return [images.source.names[row] for row in rows.tolist()]


Chunk = tuple[int, npt.NDArray[np.uint8], dict[int, ImageError]]
"""Index of the first image, pixels, and the errors of images that cannot be decoded by index."""


def _decode_all(images: ImageSet, resize: Resize, threads: int) -> Iterator[Chunk]:
    """Yield chunks of decoded images, and the errors of those that cannot be read."""

    def decode(start: int) -> Chunk:
        end = min(start + CHUNK, len(images))
        pixels = np.zeros((end - start, images.channels, resize.size, resize.size), np.uint8)
        errors = {}
        for index in range(start, end):
            try:
                pixels[index - start] = read_resized(images, index, resize).transpose(2, 0, 1)
            except ImageError as error:
                errors[index] = error
        return start, pixels, errors

    return prefetch(decode, range(0, len(images), CHUNK), threads=threads, ahead=2 * threads)


def _too_many_bad(images: ImageSet, skipped: list[ImageError], done: int) -> UserError:
    examples = "; ".join(str(error) for error in skipped[:3])
    return UserError(
        f"{images.where}: {len(skipped)} of the first {min(done, len(images)):,} images cannot be decoded, more than "
        f"allowed; repair them or increase data.max_bad; for example: {examples}"
    )


def _check_classes(images: ImageSet, kept: ImageSet, skipped: list[ImageError]) -> None:
    lost = np.setdiff1d(images.labels, kept.labels)
    if len(lost):
        name = images.classes[lost[0]]
        raise UserError(f"{images.where}: no image of class {name} can be decoded; for example: {skipped[0]}")
