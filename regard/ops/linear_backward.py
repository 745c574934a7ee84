"""Backward pass of linear layers: gradients of biases as column sums, fused with the backward pass of activations.

Several programs sum the rows of a column, then one program sums their results: always the same rows in the same order,
so that sums are bit-identical every time.

Shapes: M rows, K output features, N input features (the activated ones), P programs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.ops import dispatch
from regard.ops.dispatch import multiprocessors, on_device

Activation = Literal["relu", "gelu"]
ROWS, COLUMNS, WARPS = 32, 128, 4
"""Tile and warps of a program of the column-sum kernel."""
PROGRAMS = 8
"""Programs of the column-sum kernel per multiprocessor."""


class MatmulTile(NamedTuple):
    """Tile of the matmul with fused ReLU backward."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    programs: int  # per multiprocessor


MATMUL_TILE = MatmulTile(rows=128, columns=128, depth=64, stages=3, warps=4, programs=2)
"""The fastest on an H200 according to benchmarks/kernels.py: one program stores while another multiplies."""


def sum_columns(x: Tensor) -> Tensor:
    """Return the sum over all rows, (M, N) to (N,), in float32 or better."""
    return _sum_by_kernel(x.contiguous()) if dispatch.kernels_apply(x) else x.sum(0, dtype=_sum_dtype(x))


def activation_backward(grad: Tensor, saved: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Return the gradient of an activation's input, (M, N), and its column sums, (N,).

    Args:
        grad: Gradient of the output.
        saved: Output of ReLU, or input of GELU.
        activation: Name of the activation.
    """
    if dispatch.kernels_apply(grad, saved):
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        return out, _sum_by_kernel(grad, saved.contiguous(), out, activation)
    out = torch.where(saved > 0, grad, 0) if activation == "relu" else torch.ops.aten.gelu_backward(grad, saved)
    return out, out.sum(0, dtype=_sum_dtype(out))


def matmul_activation_backward(
    grad: Tensor, weight: Tensor, saved: Tensor, activation: Activation, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Differentiate y = (scale · activation(x)) @ weightᵀ with respect to x.

    For ReLU one kernel multiplies, applies the activation's derivative and sums the columns. For GELU, whose derivative
    takes more arithmetic, two kernels are faster.

    Args:
        grad: Gradient of y, (M, K).
        weight: Weight, (K, N).
        saved: Output of ReLU, or input of GELU, (M, N).
        activation: Name of the activation.
        scale: Factor on the activation. After ReLU, this includes dropout: dropped elements are zero in `saved`.

    Returns:
        The gradient of x, (M, N), and its column sums, (N,), in float32 or better.
    """
    columns = MATMUL_TILE.columns
    if activation == "relu" and dispatch.feed_forward_backward_kernel_applies(grad, weight, saved, columns):
        return matmul_relu_backward_kernel(grad, weight, saved, scale)
    product = grad @ weight if scale == 1 else torch.addmm(grad.new_zeros(1), grad, weight, beta=0, alpha=scale)
    return activation_backward(product, saved, activation)


def matmul_relu_backward_kernel(
    grad: Tensor, weight: Tensor, activated: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`matmul_activation_backward` for ReLU by one kernel, and another that sums the partial column sums."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

    from regard.ops.triton import linear_backward as kernels

    grad, weight, activated = grad.contiguous(), weight.contiguous(), activated.contiguous()
    (M, K), N, tile = grad.shape, weight.shape[1], MATMUL_TILE
    row_tiles = -(-M // tile.rows)
    out, partials = torch.empty_like(activated), grad.new_empty(row_tiles, N, dtype=torch.float32)
    programs = min(row_tiles * (N // tile.columns), tile.programs * multiprocessors(grad.device))
    with on_device(grad):
        kernels.matmul_relu_backward[(programs,)](
            TensorDescriptor.from_tensor(grad, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(weight, [tile.depth, tile.columns]),
            activated.view(torch.int32), out, partials, M,
            N=N, K=K, SCALE=scale, R=tile.rows, C=tile.columns, D=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, sum_partials(partials)


def sum_partials(partials: Tensor) -> Tensor:
    """Sum the rows of a small float32 tensor, (P, N) to (N,), by one kernel."""
    from regard.ops.triton import linear_backward as kernels

    P, N = partials.shape
    total = partials.new_empty(N)
    with on_device(partials):
        kernels.sum_partials[(-(-N // 16),)](partials, total, P, N, R=512, C=16, num_warps=8)
    return total


def _sum_by_kernel(
    grad: Tensor, saved: Tensor | None = None, out: Tensor | None = None, activation: Activation | None = None
) -> Tensor:
    from regard.ops.triton import linear_backward as kernels

    M, N = grad.shape
    rows = ROWS if saved is None else ROWS // 2  # with an activation a program holds two tensors in its registers
    column_tiles = -(-N // COLUMNS)
    programs = max(1, min(-(-M // rows), PROGRAMS * multiprocessors(grad.device) // column_tiles))
    partials = grad.new_empty(programs, N, dtype=torch.float32)
    with on_device(grad):
        kernels.sum_columns[(column_tiles, programs)](
            grad, saved, out, partials, M, N, ACTIVATION=activation or "", R=rows, C=COLUMNS, num_warps=WARPS
        )
    return sum_partials(partials)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
