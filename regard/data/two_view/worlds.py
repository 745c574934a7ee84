"""What stands in a scene: a room, and boxes and panels in it, as oriented boxes; and what rays hit.

Shapes: B scenes, K boxes of which the first is the room, P rays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.cameras import camera_axes
from regard.data.two_view.config import SceneSettings
from regard.data.two_view.random import Draws
from regard.data.two_view.textures import Textures, paint

PANELS = 0.4
"""The share of objects that are flat."""
TILES = 24
"""Of the room: each wall, the floor and the ceiling is four tiles, so that no two parts of a room look alike."""


@dataclass(frozen=True)
class World:
    """The boxes of each scene; one is seen from outside, but the first, which is the room, from inside.

    Args:
        centre: (B, K, 3).
        axes: the directions of their edges, one a row, (B, K, 3, 3).
        half: half of their edges' lengths, (B, K, 3).
        brightness: of the two faces across each axis, (B, K, 3).
        textures: what is painted on the tiles of the room and on each other box, (B, 24 + K - 1) of them.
    """

    centre: Tensor
    axes: Tensor
    half: Tensor
    brightness: Tensor
    textures: Textures

    def colour(self, points: Tensor, hits: Hits) -> Tensor:
        """The colours of points (B, P, 3) that were hit, (B, P, 3)."""
        lightness = self.brightness.flatten(1).gather(1, hits.box * 3 + hits.axis)
        return self.textures.colour(points, self._surface(points, hits)) * lightness[..., None]

    def _surface(self, points: Tensor, hits: Hits) -> Tensor:
        """Which texture a point has: a tile of the room is known by the wall's axis and the octant of the point."""
        x, y, z = ((points - self.centre[:, :1]) @ self.axes[:, 0].transpose(1, 2) > 0).long().unbind(-1)
        return torch.where(hits.box == 0, hits.axis * 8 + 4 * x + 2 * y + z, hits.box + TILES - 1)


@dataclass(frozen=True)
class Hits:
    """Where rays meet the first surface: at which multiple of the ray, of which box, and across which of its axes."""

    distance: Tensor  # (B, P)
    box: Tensor  # (B, P)
    axis: Tensor  # (B, P)


def build_worlds(draws: Draws, settings: SceneSettings) -> World:
    """Rooms with objects at random places, sizes and orientations."""
    K = settings.objects
    room = torch.stack((draws.uniform(3.8, 4.8), draws.uniform(2.0, 2.8), draws.uniform(3.8, 4.8)), -1)
    still = torch.zeros_like(room[:, 0])
    room_axes = camera_axes(_angles(draws, 45), still, still)
    sideways, upward, along = draws.uniform(-2.2, 2.2, K), draws.uniform(-1.4, 1.4, K), draws.uniform(-0.6, 2.6, K)
    half = draws.uniform(0.25, 0.9, K, 3)
    flat = draws.uniform(0, 1, K) < PANELS
    half = torch.where(flat[..., None] & (torch.arange(3, device=half.device) == 2), 0.02, half)
    axes = camera_axes(_angles(draws, 180, K), _angles(draws, 30, K), _angles(draws, 30, K))
    centre = torch.cat((torch.zeros_like(room)[:, None], torch.stack((sideways, upward, along), -1)), 1)
    axes = torch.cat((room_axes[:, None], axes), 1)
    light = draws.directions()
    brightness = 0.55 + 0.45 * (axes @ light[:, None, :, None]).squeeze(-1).abs()
    if not settings.shading:
        brightness = torch.ones_like(brightness)
    tiles = torch.zeros(TILES, dtype=torch.long, device=centre.device)
    owners = torch.cat((tiles, torch.arange(1, K + 1, device=centre.device)))
    textures = paint(draws, settings, centre[:, owners], axes[:, owners])
    return World(centre, axes, torch.cat((room[:, None], half), 1), brightness, textures)


def cast(world: World, origin: Tensor, rays: Tensor) -> Hits:
    """The first surface on each ray, (B, P, 3), from its scene's origin, (B, 3)."""
    distance, axis = _leave(world, origin, rays)
    box = torch.zeros_like(axis)
    for k in range(1, world.centre.shape[1]):
        near, far = _between(world, k, origin, rays)
        enter, side = near.max(-1)
        closer = (enter > 0) & (enter <= far.amin(-1)) & (enter < distance)
        distance = torch.where(closer, enter, distance)
        axis = torch.where(closer, side, axis)
        box = box.masked_fill(closer, k)
    return Hits(distance, box, axis)


def _leave(world: World, origin: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays meet the walls of the room: the distance, and the axis across which the wall lies."""
    _, far = _between(world, 0, origin, rays)
    distance, axis = far.min(-1)
    return distance, axis


def _between(world: World, k: int, origin: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
    """Where each ray enters and leaves the three slabs whose common part is box k, (B, P, 3) each."""
    axes = world.axes[:, k]
    start = (axes @ (origin - world.centre[:, k])[..., None]).squeeze(-1)[:, None]
    along = rays @ axes.transpose(1, 2)
    one, other = ((side * world.half[:, None, k] - start) / along for side in (-1, 1))
    return torch.minimum(one, other), torch.maximum(one, other)


def _angles(draws: Draws, most: float, *shape: int) -> Tensor:
    return draws.uniform(-most, most, *shape) * (math.pi / 180)
