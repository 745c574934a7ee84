"""GELU of a norm, as convolutions are followed by it: one kernel forward and one backward, in training on a GPU.

By themselves the bias, the norm and GELU pass over the widest tensors of a model a dozen times, half of them in single
precision, and PyTorch's norm is made for rows far wider than the channels of a pixel. Nothing is kept for the way back
but what the convolution made: the rest is found again from a row that is read anyway.

Shapes: N rows, W width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.ops.column_sum import add_up
from regard.ops.dispatch import multiprocessors, on_device, tile_rows

TILE, WARPS = 1024, 4
"""Numbers that a program looks at together, at the least a row, and its threads, in groups of 32."""
PROGRAMS = 5
"""For each multiprocessor, which has room for no more: as many sums of gradients are made, then added up."""


def norm_gelu(x: Tensor, norm: nn.LayerNorm, added_bias: Tensor | None = None) -> Tensor:
    """GELU(norm(x + added_bias)), (…, W), by the formula."""
    return F.gelu(norm(x if added_bias is None else x + added_bias.to(x.dtype)))


def norm_gelu_by_kernel(x: Tensor, norm: nn.LayerNorm, added_bias: Tensor) -> Tensor:
    """`norm_gelu`, as precise as x."""
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _NormGelu.apply(rows, added_bias, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    return y.view(x.shape)


class _NormGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added_bias: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from regard.ops.triton import norm_gelu as kernels

        x = x.contiguous()
        y, tile = torch.empty_like(x), tile_rows(x.shape[1], TILE, WARPS)
        with on_device(x):
            kernels.norm_gelu[(-(-len(x) // tile["R"]),)](x, added_bias, weight, bias, y, len(x), eps, **tile)
        ctx.save_for_backward(x, added_bias, weight, bias)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.triton import norm_gelu as kernels

        x, added_bias, weight, bias = ctx.saved_tensors
        (N, W), grad, dx = x.shape, grad.contiguous(), torch.empty_like(x)
        tile = tile_rows(W, TILE, WARPS)
        programs = min(-(-N // tile["R"]), PROGRAMS * multiprocessors(x.device))
        sums = x.new_empty(programs, 3, W, dtype=torch.float32)
        with on_device(x):
            kernels.norm_gelu_backward[(programs,)](grad, x, added_bias, weight, bias, dx, sums, N, ctx.eps, **tile)
        of_weight, of_bias, of_added = add_up(sums.flatten(1)).view(3, W).unbind()
        return dx, of_added.to(added_bias.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype), None
