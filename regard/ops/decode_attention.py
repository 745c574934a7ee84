"""Attention of a few queries to many keys, as in a step of decoding: the kernel reads every key and value once.

Where there is little to do at all, as for one short sentence, it is not the work that counts but how many kernels it
takes, and this one takes more queries, too, some at a time.

A row's keys may be fewer than there is room for, and how many there are may be known to the device alone: what lies
behind the last is never read. The meaning of it is `attend(path="reference")` with the same mask.

Shapes: B batch, H heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks import Mask, Padded
from regard.ops.dispatch import on_device
from regard.ops.operator import dense_last, strides

TILE = 16
"""So many queries read keys and values together."""


def decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """The context, (B, H, T, D), heads beside each other in memory as the projection behind will have them."""
    from regard.ops.triton import decode_attention as few_triton

    q, k, v = dense_last(q), dense_last(k), dense_last(v)
    (B, H, T, D), S = q.shape, k.shape[-2]
    lengths = mask.keys.lengths if isinstance(mask.keys, Padded) else None
    allowed = None if mask.allowed is None else mask.allowed.expand(B, H, T, S).view(torch.uint8)
    context = q.new_empty(B, T, H, D).transpose(1, 2)
    precise = q.dtype == torch.float32
    with on_device(q):
        few_triton.attend[(B * H, -(-T // TILE))](
            q, k, v, context, lengths, allowed,
            *strides(q, k, v, context), *((0,) * 4 if allowed is None else allowed.stride()),
            0 if lengths is None else lengths.stride(0), T, S, H, scale,
            D=D, M=TILE, N=32 if precise else 64, COUNTED=lengths is not None, MASKED=allowed is not None,
            PRECISION="ieee" if precise else "tf32", num_warps=4, num_stages=2,
        )  # fmt: skip
    return context
