"""Dropout: an op that is fast on CPU, the module, and the random numbers of all kernels that drop elements.

Kernels store no mask. They derive from a seed and an element's row and column whether to drop it, so that the backward
pass finds the same mask again.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CPU_LEVELS = 2**16
"""On CPU, 16 random bits decide on an element, so p is rounded to a multiple of 1/65536."""
KERNEL_LEVELS = 2**24
"""In kernels, 24 random bits decide on an element."""


def drop(x: Tensor, p: float) -> Tensor:
    """Set elements of x to zero with probability p and scale the others by 1 / (1 - p).

    PyTorch draws 64 random bits per element on CPU; this op draws 16, which is several times faster.
    """
    dropped = round(p * CPU_LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < dropped < CPU_LEVELS:
        return F.dropout(x, p)
    keep = draw_int16(x.numel()).view(x.shape) >= dropped - CPU_LEVELS // 2
    return x * keep.to(x.dtype).div_(1 - p)


def draw_int16(count: int) -> Tensor:
    """Return uniformly distributed 16-bit integers from PyTorch's CPU generator."""
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(-(2**63), None)
    return draws.view(torch.int16)[:count]


class Dropout(nn.Dropout):
    """`nn.Dropout` by `drop`."""

    def forward(self, input: Tensor) -> Tensor:
        return drop(input, self.p) if self.training and self.p else input


# Random numbers of kernels


def draw_seed(device: torch.device) -> Tensor:
    """Return a random seed for a kernel, (1,), from PyTorch's generator of the device."""
    return torch.randint(2**31 - 1, (1,), device=device)


def drop_threshold(p: float) -> int:
    """Return the number below which a random 24-bit integer means "drop"."""
    return round(p * KERNEL_LEVELS)
