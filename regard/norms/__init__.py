"""Add & Norm: what a sublayer adds is dropped here and there, added to its input, and the sum is normalised.

On a GPU that is one pass over memory, in which several small kernels are one: in training, and where it only infers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import kernels
from regard.norms import learning

ENABLED = kernels.INSTALLED and kernels.WANTED
WIDEST = 8192
"""The widest row that one program of the kernel for inference holds."""


def add_norm(x: Tensor, added: Tensor, norm: nn.LayerNorm, dropout: float = 0.0) -> Tensor:
    """norm(x + dropout(added)); where kernels of ours make it, it is as precise as x, whatever autocast would make it.

    Args:
        x: what a sublayer read, (…, W).
        added: what it made of it, likewise.
        norm: of the width W.
        dropout: of what is added; pass 0 outside training.
    """
    if _learns(x, added, norm):
        return learning.add_norm(x, added, norm.weight, norm.bias, norm.eps, dropout)
    added = F.dropout(added, dropout) if dropout else added
    if _infers(x, added, norm):
        return add_norm_by_kernel(x, added, norm)
    y: Tensor = norm(x + added)
    return y


def add_norm_by_kernel(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> Tensor:
    """`add_norm` without gradients; x and what is added lie in memory without gaps."""
    from regard.norms import inference_triton

    y, W = torch.empty_like(x), x.shape[-1]
    inference_triton.add_norm[(x.numel() // W,)](
        x, added, norm.weight, norm.bias, y, W, norm.eps, P=1 << (W - 1).bit_length(), num_warps=4
    )
    return y


def _learns(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> bool:
    if not (ENABLED and x.is_cuda and torch.is_grad_enabled()) or norm.weight is None or norm.bias is None:
        return False
    known = {x.dtype, added.dtype} <= {torch.bfloat16, torch.float16, torch.float32}
    return known and x.shape == added.shape and x.numel() > 0 and x.shape[-1] <= learning.WIDEST


def _infers(x: Tensor, added: Tensor, norm: nn.LayerNorm) -> bool:
    here = ENABLED and x.is_cuda and x.device.index == torch.cuda.current_device() and not torch.is_grad_enabled()
    if not here or torch.compiler.is_compiling() or norm.weight is None or norm.bias is None:
        return False
    alike = x.dtype == added.dtype == norm.weight.dtype and x.shape == added.shape and 0 < x.shape[-1] <= WIDEST
    return alike and x.numel() > 0 and x.is_contiguous() and added.is_contiguous()
