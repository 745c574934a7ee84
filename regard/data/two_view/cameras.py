"""Pinhole cameras: pixels to rays, points to pixels.

The centre of pixel (x, y) is at (x + 0.5, y + 0.5). A ray has length 1 along the optical axis, so that its parameter is
the depth.

Shapes: B scenes, P points or pixels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.scene import SceneRandom, SceneSettings

FIXATION_DEPTH = 4.5
"""Approximate depth of the point that both cameras of a pair are directed at."""


@dataclass(frozen=True)
class Cameras:
    """One camera for each scene."""

    position: Tensor  # (B, 3)
    axes: Tensor  # directions right, down and forward as rows, (B, 3, 3)
    focal: Tensor  # focal length in pixels, (B,)
    size: tuple[int, int]  # height and width of the images

    def pixels(self) -> Tensor:
        """Return the centres (x, y) of all pixels in row-major order, (P, 2)."""
        height, width = self.size
        x, y = (torch.arange(count, device=self.position.device) + 0.5 for count in (width, height))
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)

    def rays(self, pixels: Tensor) -> Tensor:
        """Return the rays through pixels (P, 2) or (B, P, 2): (B, P, 3)."""
        height, width = self.size
        x = (pixels[..., :1] - width / 2) / self.focal[:, None, None]
        y = (pixels[..., 1:] - height / 2) / self.focal[:, None, None]
        return x * self.axes[:, None, 0] + y * self.axes[:, None, 1] + self.axes[:, None, 2]

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Project points (B, P, 3): pixels (B, P, 2), NaN for points behind the camera, and depths (B, P)."""
        height, width = self.size
        x, y, depth = ((points - self.position[:, None]) @ self.axes.transpose(1, 2)).unbind(-1)
        scale = self.focal[:, None] / depth
        pixels = torch.stack((x * scale + width / 2, y * scale + height / 2), -1)
        return torch.where(depth[..., None] > 0, pixels, torch.nan), depth

    def contains(self, pixels: Tensor) -> Tensor:
        """Return which pixels (..., 2) are inside the image; NaN is outside."""
        height, width = self.size
        x, y = pixels.unbind(-1)
        return (x >= 0) & (x < width) & (y >= 0) & (y < height)

    def moved_right(self, distance: Tensor) -> "Cameras":
        """Return the cameras shifted to the right by the given distances (B,)."""
        return Cameras(self.position + distance[:, None] * self.axes[:, 0], self.axes, self.focal, self.size)


def first_cameras(random: SceneRandom, settings: SceneSettings) -> Cameras:
    """Place cameras at one side of the room, directed across it."""
    position = torch.stack((random.uniform(-1, 1), random.uniform(-0.6, 0.6), random.uniform(-2.4, -1.8)), -1)
    yaw, pitch, roll = (random_angle(random, maximum) for maximum in (25, 12, 5))
    focal = torch.full_like(yaw, settings.size[1] / 2 / math.tan(math.radians(settings.fov) / 2))
    return Cameras(position, camera_axes(yaw, pitch, roll), focal, settings.size)


def second_cameras(random: SceneRandom, settings: SceneSettings, first: Cameras) -> Cameras:
    """Place cameras near the first ones, directed at about the same point, or away from it for disjoint pairs."""
    scale = random.uniform(0, 1).sqrt() if settings.gradual else torch.ones_like(first.focal)
    shift = scale[:, None] * random.uniform(0, settings.max_baseline, 1) * random.unit_vectors()
    depth = FIXATION_DEPTH * random.uniform(0.7, 1.4)
    maxima = (settings.max_turn, settings.max_turn, settings.max_roll)
    yaw, pitch, roll = (torch.deg2rad(scale * random.uniform(-maximum, maximum)) for maximum in maxima)
    right, down, forward = (shift.unsqueeze(-2) @ first.axes.transpose(1, 2)).squeeze(-2).unbind(-1)
    ahead = depth - forward
    yaw_to_target, pitch_to_target = torch.atan2(-right, ahead), torch.atan2(-down, torch.hypot(right, ahead))
    disjoint = random.bernoulli(settings.disjoint)
    yaw_away = torch.deg2rad(random.uniform(110, 250))
    yaw, pitch = torch.where(disjoint, yaw_away, yaw + yaw_to_target), pitch + pitch_to_target
    return Cameras(first.position + shift, camera_axes(yaw, pitch, roll) @ first.axes, first.focal, first.size)


def camera_axes(yaw: Tensor, pitch: Tensor, roll: Tensor) -> Tensor:
    """Return the axes of cameras turned by angles in radians to the right, down and clockwise, (B, 3, 3)."""
    one, zero = torch.ones_like(yaw), torch.zeros_like(yaw)

    def matrix(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    about_y = matrix((yaw.cos(), zero, -yaw.sin()), (zero, one, zero), (yaw.sin(), zero, yaw.cos()))
    about_x = matrix((one, zero, zero), (zero, pitch.cos(), -pitch.sin()), (zero, pitch.sin(), pitch.cos()))
    about_z = matrix((roll.cos(), roll.sin(), zero), (-roll.sin(), roll.cos(), zero), (zero, zero, one))
    return about_z @ about_x @ about_y


def random_angle(random: SceneRandom, max_degrees: float, *shape: int) -> Tensor:
    """Return angles between ±`max_degrees`, in radians, (B, *shape)."""
    return torch.deg2rad(random.uniform(-max_degrees, max_degrees, *shape))
