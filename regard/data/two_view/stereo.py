"""Stereo photographs with measured disparities, laid out as Middlebury's 2003 to 2006 sets are.

Each scene is a folder with two views and a disparity map for each, in which 0 means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.decoding import decode_image
from regard.errors import UserError


class Layout(NamedTuple):
    """The names of a scene's files, and how many units of a disparity map make a pixel."""

    left: str
    right: str
    left_disparity: str
    right_disparity: str
    units: int


LAYOUTS = (
    Layout("view1.png", "view5.png", "disp1.png", "disp5.png", 3),
    Layout("im2.png", "im6.png", "disp2.png", "disp6.png", 4),
)
AGREEMENT = 1.0
"""Pixels by which the two disparity maps may differ where neither view's surface is hidden from the other."""


@dataclass(frozen=True)
class StereoPair:
    """A pair of rectified photographs: left pixel x is right pixel x less its disparity.

    Args:
        name: of the scene.
        left: pixels between 0 and 1, (3, H, W).
        right: the same.
        disparity: of the left view in pixels, (H, W).
        known: where it was measured.
        covisible: where it was, and the other view shows the same surface.
    """

    name: str
    left: Tensor
    right: Tensor
    disparity: Tensor
    known: Tensor
    covisible: Tensor

    def resized(self, height: int) -> StereoPair:
        """The pair at another height; disparities shrink as the views do, and are never mixed."""
        scale = height / self.left.shape[-2]
        size = (height, round(self.left.shape[-1] * scale))

        def shrink(view: Tensor) -> Tensor:
            return F.interpolate(view[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)

        def choose(values: Tensor) -> Tensor:
            return F.interpolate(values[None, None].float(), size, mode="nearest-exact")[0, 0]

        across = size[1] / self.left.shape[-1]
        return StereoPair(
            self.name,
            shrink(self.left),
            shrink(self.right),
            choose(self.disparity) * across,
            choose(self.known) > 0,
            choose(self.covisible) > 0,
        )


def read_scenes(folder: Path) -> list[StereoPair]:
    """All scenes in a folder, by name.

    Raises:
        UserError: there is none, or a file of one is missing or damaged.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of stereo scenes")
    found = [
        read_scene(path, layout)
        for path in sorted(folder.iterdir())
        for layout in LAYOUTS
        if (path / layout.left).is_file()
    ]
    if not found:
        raise UserError(f"{folder}: no scene in it, a folder with {' or '.join(layout.left for layout in LAYOUTS)}")
    return found


def read_scene(folder: Path, layout: Layout) -> StereoPair:
    """One scene.

    Raises:
        UserError: a file is missing or damaged.
    """
    left, right = (torch.tensor(decode_image(folder / name)).permute(2, 0, 1) / 255 for name in layout[:2])
    mine, other = (torch.tensor(decode_image(folder / name, "L"))[:, :, 0] / layout.units for name in layout[2:4])
    known = mine > 0
    column = torch.arange(mine.shape[1]) - mine.round().long()
    there = other.gather(1, column.clamp(min=0))
    covisible = known & (column >= 0) & (there > 0) & ((there - mine).abs() <= AGREEMENT)
    return StereoPair(folder.name, left, right, mine, known, covisible)
