"""Images of one size with labels, taken in batches: from a mapped file, from memory, or decoded when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regard.data.images.decoding import Pixels
from regard.data.images.prefetch import work_ahead
from regard.data.images.sets import ImageSet

GAP = 2
"""A JPEG may be decoded no smaller than this many times the size that is wanted: less would be seen."""


@dataclass(frozen=True)
class Frame:
    """What every image is brought to: a square of `size` pixels, of its centre or of all of it."""

    size: int
    fit: Literal["crop", "squash"] = "crop"


class Pictures(Protocol):
    """Images of one size, with labels."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Tensor:
        """(number,), on the CPU."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Tensor:
        """The images at some places, on the CPU or where all images are: uint8 (batch, channels, height, width)."""
        ...


@dataclass(frozen=True)
class Resident:
    """All images in one tensor: in memory, in a mapped file, or on a GPU."""

    classes: tuple[str, ...]
    labels: Tensor
    pixels: Tensor
    """uint8 (number, channels, height, width)"""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def take(self, indices: Tensor) -> Tensor:
        return self.pixels[indices.to(self.pixels.device)]

    def to(self, device: torch.device | str) -> Resident:
        """All images at once on a device, where they fit."""
        return Resident(self.classes, self.labels, self.pixels.to(device))


class Streamed:
    """Images that are decoded whenever they are asked for, by several threads."""

    def __init__(self, images: ImageSet, frame: Frame, threads: int | None = None) -> None:
        self.images, self.frame = images, frame
        self.classes, self.labels = images.classes, torch.from_numpy(images.labels)
        self.shape = (images.channels, frame.size, frame.size)
        self._pool = ThreadPoolExecutor(threads or cpu_count())

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> Tensor:
        """The images at some places.

        Raises:
            ImageError: one of them has become bad; it is named.
        """
        batch = np.empty((len(indices), *self.shape), np.uint8)
        pixels = self._pool.map(lambda index: read_framed(self.images, index, self.frame), indices.tolist())
        for place, one in enumerate(pixels):
            batch[place] = one.transpose(2, 0, 1)
        return torch.from_numpy(batch)


def read_framed(images: ImageSet, index: int, frame: Frame) -> Pixels:
    """One image of a set in its frame: (size, size, channels).

    Raises:
        ImageError: the image is bad; it is named.
    """
    return fit(images.read(index, GAP * frame.size), frame)


def fit(pixels: Pixels, frame: Frame) -> Pixels:
    """Brings an image of any size into a frame; one that has that size already stays as it is."""
    height, width, channels = pixels.shape
    size = frame.size
    if (height, width) == (size, size):
        return pixels
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side) if frame.fit == "crop" else (0, 0, width, height)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    resized = image.resize((size, size), Image.Resampling.BICUBIC, box)
    return np.asarray(resized).reshape(size, size, channels)


def take_ahead(pictures: Pictures, plan: Iterable[Tensor], batches: int = 2) -> Iterator[Tensor]:
    """The batches of a plan, in its order, some of them made in the background while others are used."""
    return work_ahead(pictures.take, plan, threads=1, waiting=batches)
