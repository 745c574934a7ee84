"""Pairs of views by number, without end: rendered, or cut from photographs.

Pair i is the same whenever it is asked for, so that a place in the data is a number. Those from `HELD_OUT` on are never
trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from regard.data.images.decoding import IMAGE_SUFFIXES, decode_image
from regard.data.two_view import SceneSettings, render_pairs
from regard.data.two_view.random import SceneRandom
from regard.errors import UserError

HELD_OUT = 2**40
PIXELS = 256 * 96 * 96
"""Of scenes rendered at a time, which bounds the memory that it takes."""


def in_parts(numbers: Tensor, size: int) -> Iterator[Tensor]:
    """The numbers, so many at a time."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def in_renderings(numbers: Tensor, settings: SceneSettings) -> Iterator[Tensor]:
    """The numbers of scenes, as many at a time as are rendered at once."""
    return in_parts(numbers, max(1, PIXELS // math.prod(settings.size)))


class PairSource(Protocol):
    """Views in pairs, (B, 3, H, W) each, by their numbers (B,), on the device of these."""

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]: ...


class ScenePairs:
    """Rendered scenes."""

    def __init__(self, settings: SceneSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        parts = in_renderings(numbers, self.settings)
        rendered = [render_pairs(self.settings, self.seed, part).views for part in parts]
        first, second = (torch.cat([views[i].image for views in rendered]) for i in (0, 1))
        return first, second


class PhotoPairs:
    """Crops at the same place of both photographs of a pair.

    Args:
        folders: one for each pair, with two images, the first view first by name.
        size: height and width of a crop.
        seed: of the crops.
        held_out: how many of the last folders are for validation alone.
    """

    def __init__(self, folders: list[Path], size: tuple[int, int], seed: int, held_out: int) -> None:
        self.size, self.seed, self.train = size, seed, len(folders) - held_out
        self.images = [_read_pair(folder) for folder in folders]
        for folder, images in zip(folders, self.images, strict=True):
            if images.shape[-2] < size[0] or images.shape[-1] < size[1]:
                raise UserError(
                    f"{folder}: images of {images.shape[-2]}×{images.shape[-1]} pixels are smaller than the views "
                    f"of {size[0]}×{size[1]} that data.scenes.size asks for"
                )

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        draws = SceneRandom(self.seed, numbers)
        which, down, across = draws.uniform(0, 1, 3).T.tolist()
        height, width = self.size
        crops = []
        for number, share, y, x in zip(numbers.tolist(), which, down, across, strict=True):
            held = number >= HELD_OUT
            first, count = (self.train, len(self.images) - self.train) if held else (0, self.train)
            images = self.images[first + min(count - 1, int(share * count))]
            top, left = (int(place * (room + 1)) for place, room in (
                (y, images.shape[-2] - height), (x, images.shape[-1] - width)
            ))  # fmt: skip
            crops.append(images[:, :, top : top + height, left : left + width])
        both = torch.stack(crops, 1).to(numbers.device).float() / 255
        return both[0], both[1]


def find_pairs(folder: Path) -> list[Path]:
    """The folders with two images in a folder, by name.

    Raises:
        UserError: there are fewer than two, or one holds another number of images.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; data.images holds a folder with two images for every pair")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in found:
        images_of(path)
    if len(found) < 2:
        raise UserError(
            f"{folder}: {len(found)} folders with two images in it; there must be one to learn from and one to hold out"
        )
    return found


def images_of(folder: Path) -> list[Path]:
    """The two images of a pair.

    Raises:
        UserError: there are more or fewer.
    """
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if len(images) != 2:
        raise UserError(
            f"{folder}: {len(images)} images; a pair is a folder with just two, the first view first by name"
        )
    return images


def _read_pair(folder: Path) -> Tensor:
    """Both images of a pair, (2, 3, H, W), as bytes."""
    one, other = (torch.tensor(decode_image(path)).permute(2, 0, 1) for path in images_of(folder))
    if one.shape != other.shape:
        sizes = " and ".join(f"{image.shape[1]}×{image.shape[2]}" for image in (one, other))
        raise UserError(f"{folder}: its images are of {sizes} pixels; the two of a pair must have the same size")
    return torch.stack((one, other))
