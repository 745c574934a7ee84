"""What defines a rendered scene: its settings, and random numbers that depend only on the seed and its index."""

import math
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings


class SceneSettings(Settings):
    """Properties of rendered scenes. A room is about eight units of length across."""

    size: tuple[int, int] = Field((64, 64), description="height and width of the views in pixels")
    objects: int = Field(6, ge=0, le=64, description="number of boxes and panels in the room")
    wavelength: tuple[float, float] = Field((0.5, 2.0), description="shortest and longest wavelength of the textures")
    sharpness: float = Field(2.0, gt=0, description="sharpness of the edges of stripes, checks and blobs")
    shading: bool = Field(True, description="whether the brightness of a face depends on its direction")
    fov: float = Field(60.0, gt=1, lt=170, description="horizontal field of view in degrees")
    max_baseline: float = Field(1.0, ge=0, le=1.2, description="maximum distance between the two cameras")
    max_turn: float = Field(10.0, ge=0, le=60, description="maximum yaw and pitch of the second camera in degrees")
    max_roll: float = Field(5.0, ge=0, le=180, description="maximum roll of the second camera in degrees")
    gradual: bool = Field(False, description="whether the distance of the views varies from none to the maximum")
    disjoint: float = Field(0.05, ge=0, le=1, description="fraction of pairs whose views do not overlap")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.size) < 1:
            raise ValueError(f"size: a view must have at least one pixel, not {self.size[0]} × {self.size[1]}")
        if not 0 < self.wavelength[0] <= self.wavelength[1]:
            raise ValueError(f"wavelength: must be two numbers above 0, smaller first, not {list(self.wavelength)}")
        return self


# Constants of SplitMix64 as signed 64-bit integers.
_INCREMENT, _FACTOR1, _FACTOR2 = (
    value - 2**64 if value >= 2**63 else value for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class SceneRandom:
    """Random numbers for the scenes with the given indices, (B,); every call returns new numbers."""

    def __init__(self, seed: int, scenes: Tensor) -> None:
        self.keys = _mix(_mix(scenes.long() * _INCREMENT + 1) + seed % 2**62 * 2)
        self.used = 0

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers from low to high, (B, *shape)."""
        count = math.prod(shape)
        counters = torch.arange(self.used + 1, self.used + count + 1, device=self.keys.device)
        self.used += count
        bits = _shift_right(_mix(self.keys[:, None] + counters * _INCREMENT), 40)
        return (bits.float() * 2.0**-24 * (high - low) + low).view(len(self.keys), *shape)

    def unit_vectors(self, *shape: int) -> Tensor:
        """Return uniformly distributed unit vectors, (B, *shape, 3)."""
        z, angle = self.uniform(-1, 1, *shape), self.uniform(0, 2 * math.pi, *shape)
        radius = (1 - z * z).clamp(min=0).sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin(), z), -1)

    def bernoulli(self, probability: float) -> Tensor:
        """Return True with the given probability, (B,)."""
        return self.uniform(0, 1, 1)[:, 0] < probability


def _mix(x: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64."""
    x = (x ^ _shift_right(x, 30)) * _FACTOR1
    x = (x ^ _shift_right(x, 27)) * _FACTOR2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift in zeros; the operator of torch would repeat the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
