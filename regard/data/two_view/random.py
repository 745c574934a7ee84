"""Counter-based random numbers: those of a scene depend only on the seed and its index, not on batch or device."""

import math

import torch
from torch import Tensor

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
