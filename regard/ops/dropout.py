"""Dropout, for a CPU as well: there PyTorch draws 64 random bits for each number, one after the other, and that takes
longer than many a product. Here they decide on four numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANCES = 2**16
"""Probabilities are numbers of so many, since 16 bits decide: 0.1 is 0.10001, which nobody will see."""


def drop(x: Tensor, p: float) -> Tensor:
    """x, in which each number is 0 with probability p, and has grown so much otherwise that the mean stays."""
    dropped = round(p * CHANCES)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < dropped < CHANCES:
        return F.dropout(x, p)
    keep = draw_bits(x.numel()).view(x.shape) >= dropped - CHANCES // 2
    return x * keep.to(x.dtype).div_(1 - p)


def draw_bits(number: int) -> Tensor:
    """So many random integers of 16 bits, by PyTorch's generator for the CPU."""
    draws = torch.empty(-(-number // 4), dtype=torch.int64, device="cpu").random_(-(2**63), None)
    return draws.view(torch.int16)[:number]


class Dropout(nn.Dropout):
    """`drop`, in training."""

    def forward(self, input: Tensor) -> Tensor:
        return drop(input, self.p) if self.training and self.p else input
