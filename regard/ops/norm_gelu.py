"""A convolution followed by LayerNorm over the channels and GELU.

In training on a GPU, one kernel forward and one backward do all but the convolution. Separate operations pass over the
widest tensors of a model a dozen times, and PyTorch's LayerNorm is made for rows much wider than the channels of a
pixel. The backward pass recomputes everything from the output of the convolution.

Shapes: B batch, C channels, H, W height and width, N = B · H · W pixels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.dispatch import multiprocessors, on_device, tile_rows
from regard.ops.linear_backward import sum_partials

TILE, WARPS = 1024, 4
"""Elements that a program processes at once, at least one row, and its warps."""
PROGRAMS = 5
"""Programs of the backward kernel per multiprocessor: as many as it has room for."""


def conv_norm_gelu(x: Tensor, convolution: nn.Conv2d, norm: nn.LayerNorm) -> Tensor:
    """Return GELU(norm(convolution(x))), (B, C, H, W) to (B, H, W, C); the norm is over the channels."""
    if convolution.bias is None or not dispatch.add_norm_kernel_applies(x, norm):
        return F.gelu(norm(convolution(x).permute(0, 2, 3, 1)))
    y = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
    return norm_gelu_kernel(y.permute(0, 2, 3, 1), norm, convolution.bias)


def norm_gelu_kernel(x: Tensor, norm: nn.LayerNorm, x_bias: Tensor) -> Tensor:
    """Return GELU(norm(x + x_bias)), (..., C), in the dtype of x."""
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _NormGelu.apply(rows, x_bias, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    return y.view(x.shape)


class _NormGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from regard.ops.triton import norm_gelu as kernels

        x = x.contiguous()
        y, tile = torch.empty_like(x), tile_rows(x.shape[1], TILE, WARPS)
        with on_device(x):
            kernels.norm_gelu[(-(-len(x) // tile["R"]),)](x, x_bias, weight, bias, y, len(x), eps, **tile)
        ctx.save_for_backward(x, x_bias, weight, bias)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.triton import norm_gelu as kernels

        x, x_bias, weight, bias = ctx.saved_tensors
        (N, C), grad, dx = x.shape, grad.contiguous(), torch.empty_like(x)
        tile = tile_rows(C, TILE, WARPS)
        programs = min(-(-N // tile["R"]), PROGRAMS * multiprocessors(x.device))
        partials = x.new_empty(programs, 3, C, dtype=torch.float32)
        with on_device(x):
            kernels.norm_gelu_backward[(programs,)](grad, x, x_bias, weight, bias, dx, partials, N, ctx.eps, **tile)
        dweight, dbias, dx_bias = sum_partials(partials.flatten(1)).view(3, C).unbind()
        return dx, dx_bias.to(x_bias.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype), None
