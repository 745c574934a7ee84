"""Whether there are Triton kernels to be launched, and where they go."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

INSTALLED = find_spec("triton") is not None
WANTED = os.environ.get("REGARD_KERNELS") != "0"
"""REGARD_KERNELS=0 leaves everything to PyTorch, to compare, or where Triton finds no compiler."""


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, wherever tensors are."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def multiprocessors(device: torch.device) -> int:
    """How many programs the device runs side by side at the least."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tile_rows(width: int, tile: int, warps: int) -> dict[str, int]:
    """How a kernel cuts rows of width W, padded to a power of two, P: R of them are looked at together.

    Args:
        width: of a row.
        tile: numbers that are looked at together, at the least a row.
        warps: threads for so many numbers, in groups of 32.
    """
    padded = max(16, 1 << (width - 1).bit_length())
    return {"W": width, "R": max(1, tile // padded), "P": padded, "num_warps": warps * max(1, padded // tile)}
