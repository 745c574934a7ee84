"""Add & Norm: the output of a sublayer is added to its input and the sum is normalised.

Separate operations for bias, dropout, sum and norm read and write the residual stream a dozen times. On a GPU, one
kernel does all of it in the forward pass and one in the backward pass. Dropout stores only its seed.

Shapes: N rows, W width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.dispatch import multiprocessors, on_device, tile_rows
from regard.ops.dropout import draw_seed, drop_threshold
from regard.ops.linear_backward import sum_partials

TILE, WARPS = 1024, 2
"""Elements that a program processes at once, at least one row, and its warps."""
PROGRAMS = 8
"""Programs of the backward kernel per multiprocessor; each computes a part of the gradients of the parameters."""


def add_norm(x: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return norm(x + update), (..., W), in the dtype of x."""
    if dispatch.add_norm_inference_kernel_applies(x, update, norm):
        return add_norm_inference_kernel(x, update, norm)
    if dispatch.add_norm_kernel_applies(x, norm) and update.dtype in dispatch.KERNEL_DTYPES and update.shape == x.shape:
        return sum_and_norm(x, update, norm, dtype=x.dtype)[1]
    y: Tensor = norm(x + update)
    return y.to(x.dtype)


def add_norm_inference_kernel(x: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
    """`add_norm` of contiguous tensors without gradients."""
    from regard.ops.triton import add_norm as kernels

    y, W = torch.empty_like(x), x.shape[-1]
    kernels.add_norm_inference[(x.numel() // W,)](
        x, update, norm.weight, norm.bias, y, W, norm.eps, P=1 << (W - 1).bit_length(), num_warps=4
    )
    return y


def sum_and_norm(
    x: Tensor,
    update: Tensor | None,
    norm: nn.LayerNorm,
    *,
    update_bias: Tensor | None = None,
    dropout: float = 0.0,
    scales: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x + scales · dropout(update + update_bias) and its LayerNorm by kernel, for training.

    The backward pass returns newly allocated gradients of x and the update, which the caller may overwrite.

    Args:
        x: Residual stream, (..., W). The sum has its dtype.
        update: Output of a sublayer, of the same shape; None: the sum is x.
        norm: LayerNorm of width W with weight and bias.
        update_bias: Bias of the linear layer that computed the update, (W,).
        dropout: Dropout probability of the update.
        scales: Factors of the update, (B,), each for an equal share of the rows.
        dtype: dtype of the norm; by default that of the linear layer that follows.
    """
    seed = draw_seed(x.device) if dropout else None
    W = x.shape[-1]
    rows = x.reshape(-1, W), None if update is None else update.reshape(-1, W)
    dtype = dispatch.matmul_dtype(x) if dtype is None else dtype
    arguments = _Arguments(*rows, update_bias, norm.weight, norm.bias, seed, scales, norm.eps, dropout, dtype)
    total, y = _SumAndNorm.apply(*arguments)  # type: ignore[no-untyped-call]
    return total.view(x.shape), y.view(x.shape)


class _Arguments(NamedTuple):
    x: Tensor
    update: Tensor | None
    update_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    seed: Tensor | None
    scales: Tensor | None
    eps: float
    dropout: float
    dtype: torch.dtype


class _SumAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        a = _Arguments(*arguments)
        total, y, statistics = _run_forward_kernel(a)
        ctx.save_for_backward(total, statistics, a.weight, a.seed, a.scales)
        ctx.dropout = a.dropout
        ctx.update_dtype = None if a.update is None else a.update.dtype
        ctx.update_bias_dtype = None if a.update_bias is None else a.update_bias.dtype
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        total, _, weight, _, _ = ctx.saved_tensors
        grad = torch.zeros_like(total) if grad is None else grad.contiguous()
        total_grad = None if total_grad is None else total_grad.contiguous()
        dx, dupdate, dweight, dbias, *dupdate_bias = _run_backward_kernel(ctx, total_grad, grad)
        of_update_bias = dupdate_bias[0].to(ctx.update_bias_dtype) if dupdate_bias else None
        return dx, dupdate, of_update_bias, dweight.to(weight.dtype), dbias.to(weight.dtype), *(None,) * 5


def _run_forward_kernel(a: _Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, its norm, and mean and 1/deviation of its rows, (2, N)."""
    from regard.ops.triton import add_norm as kernels

    x, update = a.x.contiguous(), None if a.update is None else a.update.contiguous()
    N, W = x.shape
    y, total = torch.empty_like(x, dtype=a.dtype), x if update is None else torch.empty_like(x)
    statistics = x.new_empty(2, N, dtype=torch.float32)
    tile = tile_rows(W, TILE, WARPS)
    with on_device(x):
        kernels.add_norm[(-(-N // tile["R"]),)](
            x, update, a.update_bias, a.weight, a.bias, a.seed, a.scales, y, total, statistics,
            N, _rows_per_scale(N, a.scales), a.eps, drop_threshold(a.dropout), 1 / (1 - a.dropout),
            ADD=update is not None, ADD_BIAS=a.update_bias is not None, DROP=a.dropout > 0,
            SCALE=a.scales is not None, **tile,
        )  # fmt: skip
    return total, y, statistics


def _run_backward_kernel(ctx: Any, total_grad: Tensor | None, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of x, the update, weight, bias and, if there is one, the update's bias."""
    from regard.ops.triton import add_norm as kernels

    total, statistics, weight, seed, scales = ctx.saved_tensors
    dx = torch.empty_like(total)
    dupdate = None if ctx.update_dtype is None else torch.empty_like(total, dtype=ctx.update_dtype)
    N, W = total.shape
    tile = tile_rows(W, TILE, WARPS)
    programs = max(1, min(-(-N // tile["R"]), PROGRAMS * multiprocessors(total.device)))
    partials = total.new_empty(programs, 2 if ctx.update_bias_dtype is None else 3, W, dtype=torch.float32)
    with on_device(total):
        kernels.add_norm_backward[(programs,)](
            grad, total_grad, total, statistics, weight, seed, scales, dx, dupdate, partials,
            N, _rows_per_scale(N, scales), drop_threshold(ctx.dropout), 1 / (1 - ctx.dropout),
            ADD_GRAD=total_grad is not None, ADD=dupdate is not None, SUMS=partials.shape[1], DROP=ctx.dropout > 0,
            SCALE=scales is not None, **tile,
        )  # fmt: skip
    return dx, dupdate, *sum_partials(partials.flatten(1)).view(-1, W).unbind()


def _rows_per_scale(rows: int, scales: Tensor | None) -> int:
    return rows if scales is None else rows // len(scales)
