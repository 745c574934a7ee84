"""Selects an implementation for every op: the plain PyTorch formula, a Triton kernel or a fused block.

All conditions on device, dtype, shape, grad mode and compiler are defined here. Environment variables, read at import:

- `REGARD_KERNELS=0` disables all Triton kernels, for comparison or where Triton finds no C compiler.
- `REGARD_FUSED=0` disables all fused blocks (`regard.ops.fused`).
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor, nn

TRITON_INSTALLED = find_spec("triton") is not None
KERNELS_ENABLED = TRITON_INSTALLED and os.environ.get("REGARD_KERNELS") != "0"
FUSED_ENABLED = os.environ.get("REGARD_FUSED") != "0"
INTERPRETED = False
"""Use kernels for CPU tensors too. Set by tests that run Triton's interpreter (TRITON_INTERPRET=1)."""
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HALF_DTYPES = (torch.bfloat16, torch.float16)
MAX_ROW_WIDTH = 4096
"""Widest row of the training kernels, which hold rows in registers."""
MAX_INFERENCE_ROW_WIDTH = 8192


def kernels_available(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device."""
    return KERNELS_ENABLED and (device.type == "cuda" or INTERPRETED)


def kernels_apply(*tensors: Tensor) -> bool:
    """Return whether all tensors have a device and dtype that Triton kernels support, and at least one element."""
    return KERNELS_ENABLED and all(
        (x.is_cuda or INTERPRETED) and x.dtype in KERNEL_DTYPES and x.numel() > 0 for x in tensors
    )


def training_kernels_apply(*tensors: Tensor) -> bool:
    """Return whether kernels with a backward pass are used: in grad mode, unless torch.compile fuses the formula."""
    return kernels_apply(*tensors) and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def inference_kernels_apply(*tensors: Tensor) -> bool:
    """Return whether kernels without a backward pass are used: without grad mode and outside torch.compile."""
    return kernels_apply(*tensors) and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def mixed_precision_training(x: Tensor) -> bool:
    """Return whether linear layers on x use our own backward pass: training on a GPU under autocast."""
    on_gpu = x.is_cuda or INTERPRETED
    return on_gpu and torch.is_grad_enabled() and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers compute on x: autocast's, or x's own without autocast."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


# Conditions of single kernels


def add_norm_kernel_applies(x: Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether Add & Norm of x, (..., W), is one kernel forward and one backward."""
    affine = norm.weight is not None and norm.bias is not None
    return training_kernels_apply(x) and affine and x.shape[-1] <= MAX_ROW_WIDTH


def add_norm_inference_kernel_applies(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether Add & Norm of two contiguous tensors of one dtype is one kernel without a backward pass."""
    if not inference_kernels_apply(x) or norm.weight is None or norm.bias is None:
        return False
    same = x.dtype == residual.dtype == norm.weight.dtype and x.shape == residual.shape
    contiguous = x.is_contiguous() and residual.is_contiguous()
    on_current_device = not x.is_cuda or x.device.index == torch.cuda.current_device()
    return same and contiguous and on_current_device and x.shape[-1] <= MAX_INFERENCE_ROW_WIDTH


def embedding_kernel_applies(tokens: Tensor, table: Tensor) -> bool:
    """Return whether tokens are embedded by kernel; only training profits, and only float32 tables are supported."""
    trained = table.requires_grad and table.dtype == torch.float32 and table.shape[1] <= MAX_ROW_WIDTH
    return training_kernels_apply(table) and trained and tokens.numel() > 0


def feed_forward_backward_kernel_applies(grad: Tensor, weight: Tensor, activated: Tensor, columns: int) -> bool:
    """Return whether the matmul with fused ReLU backward applies; its tiles of `columns` are tuned for Hopper GPUs."""
    tensors = grad, weight, activated
    half = grad.dtype in HALF_DTYPES and grad.dtype == weight.dtype == activated.dtype
    if not (grad.is_cuda and half and kernels_apply(*tensors)):
        return False
    aligned = all(x.data_ptr() % 16 == 0 for x in tensors) and weight.shape[0] % 8 == 0
    return aligned and weight.shape[1] % columns == 0 and torch.cuda.get_device_capability(grad.device) == (9, 0)


# Launching


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Make the device of x current: Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tile_rows(width: int, tile: int, warps: int) -> dict[str, int]:
    """Return the tile of a kernel that processes complete rows.

    Args:
        width: Width W of a row; it is padded to a power of two, P.
        tile: Elements that a program processes at once. It processes R rows, at least one.
        warps: Warps per `tile` elements.
    """
    padded = max(16, 1 << (width - 1).bit_length())
    return {"W": width, "R": max(1, tile // padded), "P": padded, "num_warps": warps * max(1, padded // tile)}
