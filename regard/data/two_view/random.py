"""Random numbers by hashing: those of a scene depend on its seed and its number alone, not on batch or device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_STEP, _FIRST, _SECOND = (
    value - 2**64 if value >= 2**63 else value
    for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64, as signed numbers
)


class Draws:
    """Random numbers for many scenes at once; each call goes on where the last one ended.

    Args:
        seed: of all scenes.
        scenes: their numbers, (B,).
    """

    def __init__(self, seed: int, scenes: Tensor) -> None:
        self.scenes = _mix(_mix(scenes.long() * _STEP + 1) + seed % 2**62 * 2)
        self.drawn = 0

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Numbers from low to high, (B, *shape)."""
        count = math.prod(shape)
        places = torch.arange(self.drawn, self.drawn + count, device=self.scenes.device)
        self.drawn += count
        bits = _shift(_mix(self.scenes[:, None] + (places + 1) * _STEP), 40)
        return (bits.float() * 2.0**-24 * (high - low) + low).view(len(self.scenes), *shape)

    def directions(self, *shape: int) -> Tensor:
        """Unit vectors, evenly over the sphere, (B, *shape, 3)."""
        z, angle = self.uniform(-1, 1, *shape), self.uniform(0, 2 * math.pi, *shape)
        radius = (1 - z * z).clamp(min=0).sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin(), z), -1)

    def happens(self, share: float) -> Tensor:
        """True for this share of the scenes, (B,)."""
        return self.uniform(0, 1, 1)[:, 0] < share


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros coming in from the left: torch's own shift would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
