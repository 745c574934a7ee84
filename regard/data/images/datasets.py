"""Image datasets: labelled images of one size in batches, from memory, a memory-mapped file, or decoded on access."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.images.image_sets import ImageSet
from regard.data.images.preprocessing import Pixels, Resize, prefetch
from regard.threads import available_cpus


class ImageDataset(Protocol):
    """Labelled images of one size."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> Tensor:
        """Index of the class of each image, (N,), on the CPU."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Tensor:
        """Return a batch of images, uint8 (B, C, H, W), on the CPU or on the device of the dataset."""
        ...


@dataclass(frozen=True)
class TensorImages:
    """Images in one tensor, in memory, memory-mapped or on a GPU."""

    classes: tuple[str, ...]
    labels: Tensor  # (N,)
    pixels: Tensor  # uint8 (N, C, H, W)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def take(self, indices: Tensor) -> Tensor:
        return self.pixels[indices.to(self.pixels.device)]

    def to(self, device: torch.device | str) -> "TensorImages":
        """Return the dataset with all pixels on a device."""
        return TensorImages(self.classes, self.labels, self.pixels.to(device))


class StreamedImages:
    """Images that several threads decode on every access."""

    def __init__(self, images: ImageSet, resize: Resize, threads: int | None = None) -> None:
        self.images, self.resize = images, resize
        self.classes, self.labels = images.classes, torch.from_numpy(images.labels)
        self.shape = (images.channels, resize.size, resize.size)
        self._pool = ThreadPoolExecutor(threads or available_cpus())

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> Tensor:
        """Return a batch of images, uint8 (B, C, H, W), on the CPU."""
        batch = np.empty((len(indices), *self.shape), np.uint8)
        decoded = self._pool.map(lambda index: read_resized(self.images, index, self.resize), indices.tolist())
        for row, pixels in enumerate(decoded):
            batch[row] = pixels.transpose(2, 0, 1)
        return torch.from_numpy(batch)


def read_resized(images: ImageSet, index: int, resize: Resize) -> Pixels:
    """Read and resize one image of a set: (size, size, channels)."""
    return resize(images.read(index, resize.min_side))


def prefetch_batches(dataset: ImageDataset, batches: Iterable[Tensor], ahead: int = 2) -> Iterator[Tensor]:
    """Yield the images of each batch of indices, loading up to `ahead` batches in the background."""
    return prefetch(dataset.take, batches, threads=1, ahead=ahead)
