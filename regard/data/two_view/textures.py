"""Procedural textures: the colour is a function of the point in space, so that all views of a point agree.

A texture is the sum of several fields of noise, stripes, checks or blobs, each with its own scale, direction and colour
and composed of a few waves. The fields are defined in space, not on the faces of a box.

Shapes: B scenes, K surfaces, F fields, M waves of a field, P points.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.config import SceneSettings
from regard.data.two_view.random import SceneRandom

FIELDS, WAVES = 3, 4
NOISE, STRIPES, CHECKS, BLOBS = range(4)


@dataclass(frozen=True)
class Textures:
    """The textures of all surfaces."""

    waves: Tensor  # wave vectors and phases, (B, K, F, M, 4)
    kinds: Tensor  # kind of each field, (B, K, F)
    colours: Tensor  # RGB colour that a field adds, (B, K, F, 3)
    base: Tensor  # RGB colour of each surface, (B, K, 3)
    sharpness: float  # of edges

    def colour(self, points: Tensor, surface: Tensor) -> Tensor:
        """Return the colours of points (B, P, 3) on surfaces (B, P): (B, P, 3), between 0 and 1."""
        total = _gather(self.base, surface)
        for field in range(FIELDS):
            strength = self._field(field, points, surface)
            total = total + strength[..., None] * _gather(self.colours[:, :, field], surface)
        return 0.5 + 0.5 * total.tanh()

    def _field(self, field: int, points: Tensor, surface: Tensor) -> Tensor:
        vectors = _gather(self.waves[:, :, field].flatten(2), surface).view(*surface.shape, WAVES, 4)
        waves = ((points[..., None, :] * vectors[..., :3]).sum(-1) + vectors[..., 3]).cos()
        kind = _gather(self.kinds[:, :, field, None], surface)[..., 0]
        wave_sum = waves.sum(-1)
        first, second = (self.sharpness * waves[..., :2]).tanh().unbind(-1)
        blobs = (self.sharpness * (wave_sum - 0.7)).tanh()
        value = torch.where(kind == NOISE, wave_sum / math.sqrt(WAVES / 2), blobs)
        value = torch.where(kind == STRIPES, first, value)
        return torch.where(kind == CHECKS, first * second, value)


def random_textures(random: SceneRandom, settings: SceneSettings, centre: Tensor, axes: Tensor) -> Textures:
    """Draw textures that move with their boxes, given the centres (B, K, 3) and axes (B, K, 3, 3) of the boxes."""
    K, shape = centre.shape[1], (centre.shape[1], FIELDS, WAVES)
    shortest, longest = settings.wavelength
    wavelength = shortest * (longest / shortest) ** random.uniform(0, 1, K, FIELDS, 1)
    wavelength = wavelength * random.uniform(0.8, 1.25, *shape)
    vectors = (2 * math.pi / wavelength)[..., None] * random.unit_vectors(*shape)
    vectors = vectors @ axes[:, :, None]
    phase = random.uniform(0, 2 * math.pi, *shape) - (vectors @ centre[:, :, None, :, None]).squeeze(-1)
    kinds = random.uniform(0, BLOBS + 1, K, FIELDS).long().clamp(max=BLOBS)
    colours = random.unit_vectors(K, FIELDS) * random.uniform(0.4, 1.0, K, FIELDS, 1)
    base = random.uniform(-0.7, 0.7, K, 3)
    return Textures(torch.cat((vectors, phase[..., None]), -1), kinds, colours, base, settings.sharpness)


def _gather(table: Tensor, surface: Tensor) -> Tensor:
    """Select the row of a table (B, K, N) for the surface of each point: (B, P, N)."""
    return table.gather(1, surface[..., None].expand(-1, -1, table.shape[2]))
