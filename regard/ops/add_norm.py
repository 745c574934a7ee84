"""Add & Norm: what a sublayer adds is dropped here and there, added to its input, and the sum is normalised.

On a GPU that is one pass over memory, in which several small kernels are one: in training, and where it only infers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.ops import add_norm_training as learning
from regard.ops import attention_kernels as kernels
from regard.ops.dropout import drop

ENABLED = kernels.INSTALLED and kernels.WANTED
WIDEST = 8192
"""The widest row that one program of the kernel for inference holds."""
KNOWN = (torch.bfloat16, torch.float16, torch.float32)


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
    if joins(x, norm) and _fits(added, x):
        return learning.add_norm(x, added, norm.weight, norm.bias, norm.eps, dropout, added_bias)
    added = added if added_bias is None else added + added_bias.to(added.dtype)
    added = drop(added, dropout) if dropout else added
    if _infers(x, added, norm):
        return add_norm_by_kernel(x, added, norm)
    y: Tensor = norm(x + added)
    return y.to(x.dtype) if _learns(x, norm) else y


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


def joins(x: Tensor, norm: nn.LayerNorm) -> bool:
    """Whether all that happens to x here is one kernel, in training; a compiler joins the plain formula itself."""
    return _learns(x, norm) and not torch.compiler.is_compiling()


def add_norm_by_kernel(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> Tensor:
    """`add_norm` without gradients; x and what is added lie in memory without gaps."""
    from regard.ops.triton import add_norm_inference as inference_triton

    y, W = torch.empty_like(x), x.shape[-1]
    inference_triton.add_norm[(x.numel() // W,)](
        x, added, norm.weight, norm.bias, y, W, norm.eps, P=1 << (W - 1).bit_length(), num_warps=4
    )
    return y


def _learns(x: Tensor, norm: nn.LayerNorm) -> bool:
    if not (ENABLED and x.is_cuda and torch.is_grad_enabled()) or norm.weight is None or norm.bias is None:
        return False
    return x.dtype in KNOWN and x.numel() > 0 and x.shape[-1] <= learning.WIDEST


def _fits(added: Tensor, x: Tensor) -> bool:
    return added.dtype in KNOWN and added.shape == x.shape


def _infers(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> bool:
    here = ENABLED and x.is_cuda and x.device.index == torch.cuda.current_device() and not torch.is_grad_enabled()
    if not here or torch.compiler.is_compiling() or norm.weight is None or norm.bias is None:
        return False
    alike = x.dtype == added.dtype == norm.weight.dtype and x.shape == added.shape and 0 < x.shape[-1] <= WIDEST
    return alike and x.numel() > 0 and x.is_contiguous() and added.is_contiguous()
