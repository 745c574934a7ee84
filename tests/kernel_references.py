"""Formulas of kernels without another implementation: Add & Norm in training, and the random numbers of dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.ops import add_norm as module
from regard.ops.dropout import drop_threshold


def use_add_norm_reference(patch: pytest.MonkeyPatch) -> None:
    """Compute `sum_and_norm` by formulas instead of kernels, also in float64."""
    patch.setattr(module, "_run_forward_kernel", add_norm_forward)
    patch.setattr(module, "_run_backward_kernel", add_norm_backward)


def add_norm_forward(a: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, its norm, and mean and 1/deviation of its rows, (2, N)."""
    total = a.x
    if a.update is not None:
        update = a.update if a.update_bias is None else a.update + a.update_bias
        total = (a.x + drop_and_scale(update, a.seed, a.scales, a.dropout)).to(a.x.dtype)
    y, mean, rstd = torch.native_layer_norm(total, [total.shape[-1]], a.weight, a.bias, a.eps)
    return total, y.to(a.dtype), torch.stack((mean[:, 0], rstd[:, 0]))


def add_norm_backward(ctx: Any, total_grad: Tensor | None, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of x, the update, weight, bias and, if there is one, the update's bias."""
    total, (mean, rstd), weight, seed, scales = ctx.saved_tensors
    normalised = (total - mean[:, None]) * rstd[:, None]
    g = grad * weight
    d = (g - normalised * (g * normalised).mean(1, keepdim=True) - g.mean(1, keepdim=True)) * rstd[:, None]
    dx = d if total_grad is None else d + total_grad
    gradients = (grad * normalised).sum(0), grad.sum(0)
    if ctx.update_dtype is None:
        return dx, None, *gradients
    dupdate = drop_and_scale(dx.clone(), seed, scales, ctx.dropout)
    return dx, dupdate.to(ctx.update_dtype), *gradients, *([] if ctx.update_bias_dtype is None else [dupdate.sum(0)])


def drop_and_scale(x: Tensor, seed: Tensor | None, scales: Tensor | None, dropout: float) -> Tensor:
    if seed is not None:
        dropped = kernel_drop_mask(seed, 1, len(x), x.shape[1], dropout)[0]
        x = torch.where(dropped, 0, x / (1 - dropout))
    return x if scales is None else x * scales.repeat_interleave(len(x) // len(scales))[:, None]


def kernel_drop_mask(seed: Tensor, heads: int, rows: int, columns: int, p: float) -> Tensor:
    """Return which elements kernels drop for a seed, (heads, rows, columns)."""
    row = torch.arange(heads * rows, device=seed.device).view(heads, rows, 1)
    column = torch.arange(columns, device=seed.device)
    return (_hash((_hash(row ^ seed) + column * 0x9E3779B9) & 0xFFFFFFFF) >> 8) < drop_threshold(p)


def _hash(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)
