"""Products of a few rows with a weight, by one kernel of a GPU: bias and ReLU included.

In single precision, where a product has few rows, cuBLAS cuts its sums into parts and takes four kernels for it: it
clears, multiplies, scales, and adds the parts and the bias up. In a recording, where nothing else is waited for, four
kernels that hardly do anything take three times as long as one.

Shapes: N rows, D numbers of each that are read, W that are made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.launching import INSTALLED, WANTED, on_device

ENABLED = INSTALLED and WANTED
MOST_ROWS = 128
WIDEST = 4096
"""Wider products, as that with all words, have work for the whole device anyway."""


class Tiles(NamedTuple):
    """How the kernel cuts its work; the rows of a tile are as many as there are, 16 at the least and 32 at the most."""

    columns: int
    numbers: int
    warps: int
    stages: int
    precision: str


TILES = Tiles(16, 128, 8, 3, "ieee")


def usable(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel makes this product: in single precision, without gradients."""
    parts = (x, weight) if bias is None else (x, weight, bias)
    here = ENABLED and not torch.is_grad_enabled() and all(part.is_cuda for part in parts)
    precise = all(part.dtype == torch.float32 for part in parts)
    few = 0 < x.numel() <= MOST_ROWS * x.shape[-1] and len(weight) <= WIDEST
    return here and precise and few and weight.stride(-1) == 1


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x · weightᵀ + bias, or max(0, ·) of it, (…, D) to (…, W)."""
    from regard.rows import product_triton as kernels

    rows = x.reshape(-1, x.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    (N, D), W = rows.shape, len(weight)
    y = x.new_empty(N, W)
    R = 16 if N <= 16 else 32
    columns, numbers, warps, stages, precision = TILES
    with on_device(x):
        kernels.multiply[(-(-W // columns), -(-N // R))](
            rows, weight, bias, y, N, W, D, rows.stride(0), weight.stride(0),
            BIASED=bias is not None, RELU=relu, R=R, C=columns, K=numbers, PRECISION=precision,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return y.view(*x.shape[:-1], W)
