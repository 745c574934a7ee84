"""Procedural textures: colours that follow from a point in space, so that all views of a point agree.

Every object is made of several fields, each one of noise, stripes, checks or blobs with a scale, a direction and a
colour of its own, made from a few waves. They are laid out in space, not on the faces: a carved block, not wallpaper.

Shapes: B scenes, K surfaces, F fields, M waves of a field, P points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.config import SceneSettings
from regard.data.two_view.random import Draws

FIELDS, WAVES = 3, 4
NOISE, STRIPES, CHECKS = 0, 1, 2  # and blobs
KINDS = 4


@dataclass(frozen=True)
class Textures:
    """What the surfaces of each scene look like.

    Args:
        waves: the wave vectors in the directions of space, and the phase, (B, K, F, M, 4).
        kinds: of the fields, (B, K, F).
        colours: that each field adds, red, green and blue, (B, K, F, 3).
        ground: what they are added to, (B, K, 3).
        sharpness: of the edges.
    """

    waves: Tensor
    kinds: Tensor
    colours: Tensor
    ground: Tensor
    sharpness: float

    def colour(self, points: Tensor, surface: Tensor) -> Tensor:
        """The colours of points (B, P, 3) on surfaces (B, P), between 0 and 1, (B, P, 3)."""
        mixed = _of(self.ground, surface)
        for field in range(FIELDS):
            mixed = mixed + self._field(field, points, surface)[..., None] * _of(self.colours[:, :, field], surface)
        return 0.5 + 0.5 * mixed.tanh()

    def _field(self, field: int, points: Tensor, surface: Tensor) -> Tensor:
        vectors = _of(self.waves[:, :, field].flatten(2), surface).view(*surface.shape, WAVES, 4)
        waves = ((points[..., None, :] * vectors[..., :3]).sum(-1) + vectors[..., 3]).cos()
        kind = _of(self.kinds[:, :, field, None], surface)[..., 0]
        together = waves.sum(-1)
        first, second = (self.sharpness * waves[..., :2]).tanh().unbind(-1)
        blobs = (self.sharpness * (together - 0.7)).tanh()
        value = torch.where(kind == NOISE, together / math.sqrt(WAVES / 2), blobs)
        value = torch.where(kind == STRIPES, first, value)
        return torch.where(kind == CHECKS, first * second, value)


def paint(draws: Draws, settings: SceneSettings, centre: Tensor, axes: Tensor) -> Textures:
    """Textures for surfaces of boxes at these centres (B, K, 3) with these axes (B, K, 3, 3), with which they turn."""
    K, shape = centre.shape[1], (centre.shape[1], FIELDS, WAVES)
    shortest, longest = settings.wavelength
    length = shortest * (longest / shortest) ** draws.uniform(0, 1, K, FIELDS, 1)
    length = length * draws.uniform(0.8, 1.25, *shape)
    vectors = (2 * math.pi / length)[..., None] * draws.directions(*shape)
    vectors = vectors @ axes[:, :, None]
    phase = draws.uniform(0, 2 * math.pi, *shape) - (vectors @ centre[:, :, None, :, None]).squeeze(-1)
    kinds = draws.uniform(0, KINDS, K, FIELDS).long().clamp(max=KINDS - 1)
    colours = draws.directions(K, FIELDS) * draws.uniform(0.4, 1.0, K, FIELDS, 1)
    ground = draws.uniform(-0.7, 0.7, K, 3)
    return Textures(torch.cat((vectors, phase[..., None]), -1), kinds, colours, ground, settings.sharpness)


def _of(table: Tensor, surface: Tensor) -> Tensor:
    """The row (B, K, N) of each point's surface, (B, P, N)."""
    return table.gather(1, surface[..., None].expand(-1, -1, table.shape[2]))
