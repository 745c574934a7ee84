"""Any number of image files, one after the other, in bounded memory; a bad one does not stop the others."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import prefetch
from regard.data.images.decoding import Pixels
from regard.data.images.folders import list_images
from regard.errors import UserError
from regard.pipelines.classifier import BATCH, THREADS
from regard.pipelines.preprocessing import ImagePreprocessing

Row = NDArray[np.float32]
Work = Callable[[Sequence[Pixels]], Row]


def find_images(words: Iterable[str]) -> Iterator[Path | UserError]:
    """The image files that are meant: files as they are, all images below a folder, all that a pattern matches.

    A folder without an image in it, or one that cannot be read, is a refusal in its place.
    """
    for word in words:
        path = Path(word)
        if path.is_dir():
            yield from _images_below(path)
        elif not path.exists() and glob.has_magic(word):
            found = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            yield from find_images(map(str, found)) if found else [path]
        else:
            yield path


def _images_below(folder: Path) -> list[Path | UserError]:
    try:
        return [*list_images(folder)]
    except UserError as error:
        return [error]


def look_at(
    found: Iterable[Path | UserError], preprocessing: ImagePreprocessing, work: Work
) -> Iterator[tuple[Path, Row] | UserError]:
    """Each image with what `work` makes of it, in order, or why it can make nothing of it."""

    def open_one(path: Path | UserError) -> tuple[Path, Pixels] | UserError:
        try:
            return path if isinstance(path, UserError) else (path, preprocessing.open(path))
        except UserError as error:
            return error

    opened = prefetch(open_one, found, threads=THREADS, ahead=2 * BATCH)
    while batch := list(islice(opened, BATCH)):
        good = [one[1] for one in batch if not isinstance(one, UserError)]
        rows = iter(work(good) if good else ())
        for one in batch:
            yield one if isinstance(one, UserError) else (one[0], next(rows))
