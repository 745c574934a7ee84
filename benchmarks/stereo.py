"""Stereo photographs with measured disparities in the layout of the Middlebury datasets of 2003 to 2006.

Every scene is a folder with two views and a disparity map for each, in which 0 means unknown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.preprocessing import decode_image
from regard.errors import UserError


class Layout(NamedTuple):
    """File names of a scene, and the number of units of a disparity map per pixel."""

    left: str
    right: str
    left_disparity: str
    right_disparity: str
    units: int


LAYOUTS = (
    Layout("view1.png", "view5.png", "disp1.png", "disp5.png", 3),
    Layout("im2.png", "im6.png", "disp2.png", "disp6.png", 4),
)
MAX_DIFFERENCE = 1.0
"""Maximum difference of the two disparity maps, in pixels, for surfaces that both views show."""


@dataclass(frozen=True)
class StereoPair:
    """A pair of rectified photographs: left pixel x corresponds to right pixel x - disparity."""

    name: str
    left: Tensor  # pixels between 0 and 1, (3, H, W)
    right: Tensor  # pixels between 0 and 1, (3, H, W)
    disparity: Tensor  # of the left view in pixels, (H, W)
    known: Tensor  # where the disparity was measured, (H, W)
    covisible: Tensor  # where it was measured and the right view shows the same surface, (H, W)

    def resized(self, height: int) -> "StereoPair":
        """Return the pair at another height; disparities are scaled and sampled without interpolation."""
        scale = height / self.left.shape[-2]
        size = (height, round(self.left.shape[-1] * scale))

        def interpolate(view: Tensor) -> Tensor:
            return F.interpolate(view[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)

        def sample(values: Tensor) -> Tensor:
            return F.interpolate(values[None, None].float(), size, mode="nearest-exact")[0, 0]

        disparity = sample(self.disparity) * (size[1] / self.left.shape[-1])
        left, right = interpolate(self.left), interpolate(self.right)
        return StereoPair(self.name, left, right, disparity, sample(self.known) > 0, sample(self.covisible) > 0)


def read_scenes(folder: Path) -> list[StereoPair]:
    """Read all scenes in a folder, sorted by name."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of stereo scenes")
    scenes = [
        read_scene(path, layout)
        for path in sorted(folder.iterdir())
        for layout in LAYOUTS
        if (path / layout.left).is_file()
    ]
    if not scenes:
        raise UserError(f"{folder}: contains no scene, a folder with {' or '.join(layout.left for layout in LAYOUTS)}")
    return scenes


def read_scene(folder: Path, layout: Layout) -> StereoPair:
    """Read one scene."""
    left, right = (torch.tensor(decode_image(folder / name)).permute(2, 0, 1) / 255 for name in layout[:2])
    disparity, right_disparity = (
        torch.tensor(decode_image(folder / name, "L"))[:, :, 0] / layout.units for name in layout[2:4]
    )
    known = disparity > 0
    column = torch.arange(disparity.shape[1]) - disparity.round().long()
    matched = right_disparity.gather(1, column.clamp(min=0))
    covisible = known & (column >= 0) & (matched > 0) & ((matched - disparity).abs() <= MAX_DIFFERENCE)
    return StereoPair(folder.name, left, right, disparity, known, covisible)
