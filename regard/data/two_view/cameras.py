"""Pinhole cameras: pixels to rays, points to pixels.

A pixel (x, y) has its centre at (x + 0.5, y + 0.5). Rays are as long as a step of one along the optical axis, so that
the parameter of a ray is the depth.

Shapes: B scenes, P points or pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.config import SceneSettings
from regard.data.two_view.random import Draws

FIXATION = 4.5
"""How far away the point is that both cameras of a pair look at, more or less."""


@dataclass(frozen=True)
class Cameras:
    """One camera for each scene.

    Args:
        place: where they are, (B, 3).
        axes: their right, down and forward, one a row, (B, 3, 3).
        focal: in pixels, (B,).
        size: height and width of their images.
    """

    place: Tensor
    axes: Tensor
    focal: Tensor
    size: tuple[int, int]

    def pixels(self) -> Tensor:
        """The centres (x, y) of all pixels, row after row, (P, 2)."""
        height, width = self.size
        x, y = (torch.arange(count, device=self.place.device) + 0.5 for count in (width, height))
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)

    def rays(self, pixels: Tensor) -> Tensor:
        """Directions through pixels, (P, 2) or (B, P, 2), as long as one step forward, (B, P, 3)."""
        height, width = self.size
        x = (pixels[..., :1] - width / 2) / self.focal[:, None, None]
        y = (pixels[..., 1:] - height / 2) / self.focal[:, None, None]
        return x * self.axes[:, None, 0] + y * self.axes[:, None, 1] + self.axes[:, None, 2]

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where points (B, P, 3) appear, (B, P, 2), and how deep they lie, (B, P); no pixel where that is not ahead."""
        height, width = self.size
        x, y, depth = ((points - self.place[:, None]) @ self.axes.transpose(1, 2)).unbind(-1)
        scale = self.focal[:, None] / depth
        pixels = torch.stack((x * scale + width / 2, y * scale + height / 2), -1)
        return torch.where(depth[..., None] > 0, pixels, torch.nan), depth

    def contains(self, pixels: Tensor) -> Tensor:
        """Which of these places lie within the image; NaN does not."""
        height, width = self.size
        x, y = pixels.unbind(-1)
        return (x >= 0) & (x < width) & (y >= 0) & (y < height)

    def moved(self, right: Tensor) -> Cameras:
        """The same cameras, so far (B,) to the right."""
        return Cameras(self.place + right[:, None] * self.axes[:, 0], self.axes, self.focal, self.size)


def first_cameras(draws: Draws, settings: SceneSettings) -> Cameras:
    """Cameras at one side of the room that look across it."""
    place = torch.stack((draws.uniform(-1, 1), draws.uniform(-0.6, 0.6), draws.uniform(-2.4, -1.8)), -1)
    yaw, pitch, roll = (_radians(draws.uniform(-most, most)) for most in (25, 12, 5))
    focal = torch.full_like(yaw, settings.size[1] / 2 / math.tan(math.radians(settings.fov) / 2))
    return Cameras(place, camera_axes(yaw, pitch, roll), focal, settings.size)


def second_cameras(draws: Draws, settings: SceneSettings, first: Cameras) -> Cameras:
    """Cameras moved aside, which look at about the same point; some look away from all that the first ones see."""
    scale = draws.uniform(0, 1).sqrt() if settings.gradual else torch.ones_like(first.focal)
    away = scale[:, None] * draws.uniform(0, settings.max_baseline, 1) * draws.directions()
    depth = FIXATION * draws.uniform(0.7, 1.4)
    most = (settings.max_turn, settings.max_turn, settings.max_roll)
    yaw, pitch, roll = (_radians(scale * draws.uniform(-angle, angle)) for angle in most)
    aside, down, along = (away.unsqueeze(-2) @ first.axes.transpose(1, 2)).squeeze(-2).unbind(-1)
    ahead = depth - along
    toward_yaw, toward_pitch = torch.atan2(-aside, ahead), torch.atan2(-down, torch.hypot(aside, ahead))
    apart = draws.happens(settings.disjoint)
    turned = _radians(draws.uniform(110, 250))
    yaw, pitch = torch.where(apart, turned, yaw + toward_yaw), pitch + toward_pitch
    return Cameras(first.place + away, camera_axes(yaw, pitch, roll) @ first.axes, first.focal, first.size)


def camera_axes(yaw: Tensor, pitch: Tensor, roll: Tensor) -> Tensor:
    """Right, down and forward of cameras turned by so many radians to the right, down and clockwise, (B, 3, 3)."""
    one, none = torch.ones_like(yaw), torch.zeros_like(yaw)

    def rows(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    about_y = rows((yaw.cos(), none, -yaw.sin()), (none, one, none), (yaw.sin(), none, yaw.cos()))
    about_x = rows((one, none, none), (none, pitch.cos(), -pitch.sin()), (none, pitch.sin(), pitch.cos()))
    about_z = rows((roll.cos(), roll.sin(), none), (-roll.sin(), roll.cos(), none), (none, none, one))
    return about_z @ about_x @ about_y


def _radians(degrees: Tensor) -> Tensor:
    return degrees * (math.pi / 180)
