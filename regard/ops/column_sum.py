"""Sums of columns: the gradient of a bias is that of all rows of what it was added to.

A column is added up by many programs, each of which has some of its rows, and then their sums are: always the same
rows in the same order, so that a sum is the same to the bit every time.

Shapes: N rows, W columns, P programs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.dispatch import kernels_apply, multiprocessors, on_device

ROWS, COLUMNS, WARPS = 32, 128, 4
"""What a program reads at once, and its threads, in groups of 32."""
PROGRAMS = 8
"""For each multiprocessor of the device."""


def sum_columns(x: Tensor) -> Tensor:
    """The sum of all rows, (N, W) to (W,), in single precision or better."""
    return sum_by_kernel(x) if kernels_apply(x) else x.sum(0, dtype=_precise(x))


def sum_by_kernel(x: Tensor) -> Tensor:
    """`sum_columns` in a pass over x and another over sums of its parts."""
    return _launch(x.contiguous())


def pass_relu(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of what max(0, ·) made y of, (N, W), and the sum of its rows."""
    if kernels_apply(grad, y):
        return pass_relu_by_kernel(grad, y)
    passed = torch.where(y > 0, grad, 0)
    return passed, passed.sum(0, dtype=_precise(passed))


def pass_relu_by_kernel(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`pass_relu` in one pass, but for the sums of parts."""
    return _pass(grad, y, "relu")


def pass_gelu(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, (N, W), of which GELU was made, and the sum of its rows."""
    if kernels_apply(grad, x):
        return pass_gelu_by_kernel(grad, x)
    passed = torch.ops.aten.gelu_backward(grad, x)
    return passed, passed.sum(0, dtype=_precise(passed))


def pass_gelu_by_kernel(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`pass_gelu` in one pass, but for the sums of parts."""
    return _pass(grad, x, "gelu")


def add_up(parts: Tensor) -> Tensor:
    """The sum of all rows of a few hundred, (P, W) in float32, in one launch."""
    from regard.ops.triton import column_sum as kernels

    P, W = parts.shape
    total = parts.new_empty(W)
    with on_device(parts):
        kernels.add_up[(-(-W // 16),)](parts, total, P, W, R=512, C=16, num_warps=8)
    return total


def _pass(grad: Tensor, y: Tensor, through: str) -> tuple[Tensor, Tensor]:
    grad = grad.contiguous()
    passed = torch.empty_like(grad)
    return passed, _launch(grad, y.contiguous(), passed, through)


def _launch(x: Tensor, y: Tensor | None = None, passed: Tensor | None = None, through: str = "") -> Tensor:
    from regard.ops.triton import column_sum as kernels

    N, W = x.shape
    rows = ROWS if y is None else ROWS // 2  # of which it must hold two numbers for one, and run beside as many others
    across = -(-W // COLUMNS)
    programs = max(1, min(-(-N // rows), PROGRAMS * multiprocessors(x.device) // across))
    parts = x.new_empty(programs, W, dtype=torch.float32)
    with on_device(x):
        kernels.sum_columns[(across, programs)](
            x, y, passed, parts, N, W, THROUGH=through, R=rows, C=COLUMNS, num_warps=WARPS
        )
    return add_up(parts)


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
