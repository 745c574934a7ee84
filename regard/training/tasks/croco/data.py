"""Pairs of views by number, without end: rendered, or cropped from photographs.

A pair depends only on its number, so that a position in the data is a number. Pairs from `HELD_OUT` on are reserved for
validation.

Shapes: B pairs, H height, W width.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from regard.data.images.preprocessing import IMAGE_SUFFIXES, decode_image
from regard.data.two_view.config import SceneSettings
from regard.data.two_view.pairs import render_pairs
from regard.data.two_view.random import SceneRandom
from regard.errors import UserError

HELD_OUT = 2**40
MAX_RENDERED_PIXELS = 256 * 96 * 96
"""Number of pixels that are rendered at once, which limits the memory of the renderer."""


def chunks(numbers: Tensor, size: int) -> Iterator[Tensor]:
    """Split numbers into chunks of at most this size."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def rendering_chunks(numbers: Tensor, settings: SceneSettings) -> Iterator[Tensor]:
    """Split the numbers of scenes into chunks that are rendered at once."""
    return chunks(numbers, max(1, MAX_RENDERED_PIXELS // math.prod(settings.size)))


class PairSource(Protocol):
    """Pairs of views by number."""

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return both views of the pairs with these numbers (B,), each (B, 3, H, W), on the device of the numbers."""


class ScenePairs:
    """Rendered scenes."""

    def __init__(self, settings: SceneSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        parts = rendering_chunks(numbers, self.settings)
        rendered = [render_pairs(self.settings, self.seed, part).views for part in parts]
        first, second = (torch.cat([views[i].image for views in rendered]) for i in (0, 1))
        return first, second


class PhotoPairs:
    """Crops of photographs, at the same position in both; the last `held_out` folders are reserved for validation."""

    def __init__(self, folders: list[Path], size: tuple[int, int], seed: int, held_out: int) -> None:
        self.size, self.seed, self.train = size, seed, len(folders) - held_out
        self.images = [_read_pair(folder) for folder in folders]
        for folder, images in zip(folders, self.images, strict=True):
            if images.shape[-2] < size[0] or images.shape[-1] < size[1]:
                raise UserError(
                    f"{folder}: images of {images.shape[-2]}×{images.shape[-1]} pixels are smaller than "
                    f"data.scenes.size {size[0]}×{size[1]}"
                )

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        draws = SceneRandom(self.seed, numbers)
        which, down, across = draws.uniform(0, 1, 3).T.tolist()
        height, width = self.size
        crops = []
        for number, share, y, x in zip(numbers.tolist(), which, down, across, strict=True):
            held_out = number >= HELD_OUT
            first, count = (self.train, len(self.images) - self.train) if held_out else (0, self.train)
            images = self.images[first + min(count - 1, int(share * count))]
            top, left = int(y * (images.shape[-2] - height + 1)), int(x * (images.shape[-1] - width + 1))
            crops.append(images[:, :, top : top + height, left : left + width])
        both = torch.stack(crops, 1).to(numbers.device).float() / 255
        return both[0], both[1]


def find_pairs(folder: Path) -> list[Path]:
    """Return the folders with two images in a folder, sorted."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; data.images contains one folder with two images per pair")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in found:
        find_images(path)
    if len(found) < 2:
        raise UserError(
            f"{folder}: {len(found)} folders with two images; training and validation need at least one each"
        )
    return found


def find_images(folder: Path) -> list[Path]:
    """Return the two images of a pair."""
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if len(images) != 2:
        raise UserError(f"{folder}: {len(images)} images; a pair is a folder with two images in alphabetical order")
    return images


def list_photographs(folder: Path | None) -> dict[str, Path]:
    """Return every photograph of a folder of pairs, by the names of its folder and file."""
    if folder is None:
        return {}
    return {f"{pair.name}/{image.name}": image for pair in find_pairs(folder) for image in find_images(pair)}


def _read_pair(folder: Path) -> Tensor:
    """Read both images of a pair, (2, 3, H, W), uint8."""
    one, other = (torch.tensor(decode_image(path)).permute(2, 0, 1) for path in find_images(folder))
    if one.shape != other.shape:
        sizes = " and ".join(f"{image.shape[1]}×{image.shape[2]}" for image in (one, other))
        raise UserError(f"{folder}: images of {sizes} pixels; both images of a pair must have the same size")
    return torch.stack((one, other))
