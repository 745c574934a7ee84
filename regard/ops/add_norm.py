"""Add & Norm: what a sublayer adds is dropped here and there, added to its input, and the sum is normalised.

On a GPU that is one pass over memory, in which several small kernels are one: in training, and where it only infers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.ops import add_norm_training as learning
from regard.ops import dispatch
from regard.ops.dropout import drop


def add_norm(
    x: Tensor, added: Tensor, norm: nn.LayerNorm, dropout: float = 0.0, added_bias: Tensor | None = None
) -> Tensor:
    """norm(x + dropout(added + added_bias)); on a GPU in training as precise as x, whatever autocast would make it.

    Args:
        x: what a sublayer read, (…, W).
        added: what it made of it, likewise.
        norm: of the width W.
        dropout: of what is added; pass 0 outside training.
        added_bias: what the sublayer has not added yet, (W,).
    """
    if dispatch.add_norm_kernel_applies(x, norm) and added.dtype in dispatch.KERNEL_DTYPES and added.shape == x.shape:
        return learning.add_norm(x, added, norm.weight, norm.bias, norm.eps, dropout, added_bias)
    added = added if added_bias is None else added + added_bias.to(added.dtype)
    added = drop(added, dropout) if dropout else added
    if dispatch.add_norm_inference_kernel_applies(x, added, norm):
        return add_norm_by_kernel(x, added, norm)
    y: Tensor = norm(x + added)
    return y.to(x.dtype) if x.is_cuda and torch.is_grad_enabled() else y


def sum_and_norm(
    x: Tensor,
    added: Tensor | None,
    norm: nn.LayerNorm,
    dropout: float = 0.0,
    added_bias: Tensor | None = None,
    factors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x + dropout(added + added_bias) and its norm, for a product to read; or x and its norm, where none is added.

    Only where all of it `joins`; x is what flows on, so that its gradient is made in the same pass. With factors, (B,),
    what is added to each row of the batch is multiplied by one of them.
    """
    half = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if half else x.dtype
    return learning.sum_and_norm(x, added, norm.weight, norm.bias, norm.eps, dropout, added_bias, dtype, factors)


def add_norm_by_kernel(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> Tensor:
    """`add_norm` without gradients; x and what is added lie in memory without gaps."""
    from regard.ops.triton import add_norm_inference as inference_triton

    y, W = torch.empty_like(x), x.shape[-1]
    inference_triton.add_norm[(x.numel() // W,)](
        x, added, norm.weight, norm.bias, y, W, norm.eps, P=1 << (W - 1).bit_length(), num_warps=4
    )
    return y
