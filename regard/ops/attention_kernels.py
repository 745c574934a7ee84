"""Triton kernels, each beside a reference in plain PyTorch that says what it means, and chosen only where it wins.

Files that end in _triton hold the kernels themselves. They are imported when the first kernel is launched, so that
everything else works where there is no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.dispatch import KERNELS_ENABLED as KERNELS_ENABLED
from regard.ops.dispatch import TRITON_INSTALLED as TRITON_INSTALLED

WIDTHS = (16, 32, 64, 128)
"""The widths of a head that fill whole tiles."""


def usable(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these queries, keys and values."""
    alike = q.dtype == k.dtype == v.dtype and q.shape[-1] == k.shape[-1] == v.shape[-1]
    wanted = q.dtype in (torch.bfloat16, torch.float16, torch.float32)
    near = all(x.shape[-2] * x.stride(-2) < 2**31 for x in (q, k, v))  # places within a head are 32-bit numbers
    return KERNELS_ENABLED and q.device.type == "cuda" and alike and wanted and q.shape[-1] in WIDTHS and near
