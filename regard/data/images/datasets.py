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

from regard.data.batching import prefetch
from regard.data.images.decoding import Pixels
from regard.data.images.image_sets import ImageSet


@dataclass(frozen=True)
class Resize:
    """Resize an image to a square with bicubic interpolation.

    Args:
        size: Side length in pixels.
        fit: "crop" takes the central square of the image, "squash" the complete image.
    """

    size: int
    fit: Literal["crop", "squash"] = "crop"

    @property
    def min_side(self) -> int:
        """Shorter side to which a JPEG may be reduced while decoding without a visible difference."""
        return 2 * self.size

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the resized image, or `pixels` itself if the size is already right."""
        height, width, channels = pixels.shape
        size = self.size
        if (height, width) == (size, size):
            return pixels
        side = min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side) if self.fit == "crop" else (0, 0, width, height)
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        resized = image.resize((size, size), Image.Resampling.BICUBIC, box)
        return np.asarray(resized).reshape(size, size, channels)


class ImageDataset(Protocol):
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
class TensorImages:
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

    def to(self, device: torch.device | str) -> TensorImages:
        """All images at once on a device, where they fit."""
        return TensorImages(self.classes, self.labels, self.pixels.to(device))


class StreamedImages:
    """Images that are decoded whenever they are asked for, by several threads."""

    def __init__(self, images: ImageSet, resize: Resize, threads: int | None = None) -> None:
        self.images, self.resize = images, resize
        self.classes, self.labels = images.classes, torch.from_numpy(images.labels)
        self.shape = (images.channels, resize.size, resize.size)
        self._pool = ThreadPoolExecutor(threads or cpu_count())

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> Tensor:
        """The images at some places.

        Raises:
            ImageError: one of them has become bad; it is named.
        """
        batch = np.empty((len(indices), *self.shape), np.uint8)
        pixels = self._pool.map(lambda index: read_resized(self.images, index, self.resize), indices.tolist())
        for place, one in enumerate(pixels):
            batch[place] = one.transpose(2, 0, 1)
        return torch.from_numpy(batch)


def read_resized(images: ImageSet, index: int, resize: Resize) -> Pixels:
    """Read and resize one image of a set: (size, size, channels).

    Raises:
        ImageError: If the image cannot be decoded.
    """
    return resize(images.read(index, resize.min_side))


def prefetch_batches(pictures: ImageDataset, plan: Iterable[Tensor], batches: int = 2) -> Iterator[Tensor]:
    """The batches of a plan, in its order, some of them made in the background while others are used."""
    return prefetch(pictures.take, plan, threads=1, ahead=batches)
