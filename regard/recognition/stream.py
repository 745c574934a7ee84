"""Any number of image files, one after the other, in bounded memory; a bad one does not stop the others."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.recognition.classifier import BATCH, THREADS
from regard.recognition.reading import Reading
from regard.vision.ahead import work_ahead
from regard.vision.decoding import ImageError, Pixels
from regard.vision.folders import list_images

Row = NDArray[np.float32]
Work = Callable[[Sequence[Pixels]], Row]


def find_images(words: Iterable[str]) -> Iterator[Path]:
    """The image files that are meant: files as they are, all images below a folder, all that a pattern matches.

    Raises:
        UserError: a folder has no image in it.
    """
    for word in words:
        path = Path(word)
        if path.is_dir():
            yield from list_images(path)
        elif not path.exists() and glob.has_magic(word):
            found = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            yield from find_images(map(str, found)) if found else [path]
        else:
            yield path


def look_at(paths: Iterable[Path], reading: Reading, work: Work) -> Iterator[tuple[Path, Row | ImageError]]:
    """What `work` makes of each image, in order, or why it can make nothing of it."""

    def open_one(path: Path) -> tuple[Path, Pixels | ImageError]:
        try:
            return path, reading.open(path)
        except ImageError as error:
            return path, error

    opened = work_ahead(open_one, paths, threads=THREADS, waiting=2 * BATCH)
    while batch := list(islice(opened, BATCH)):
        good = [pixels for _, pixels in batch if not isinstance(pixels, ImageError)]
        rows = iter(work(good) if good else ())
        for path, pixels in batch:
            yield path, pixels if isinstance(pixels, ImageError) else next(rows)
