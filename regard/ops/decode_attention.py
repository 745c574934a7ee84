"""Attention of few queries to many keys, as in a decoding step: one kernel that reads every key and value once.

For short sentences, where launches take more time than arithmetic, it also processes more queries, 16 at a time. The
number of keys of each row may be known on the device only; keys behind it are never read. The reference is
`attend(implementation="reference")`.

Shapes: B batch, H heads, T queries, S keys, D head width.
"""

import torch
from torch import Tensor

from regard.masks import Mask, Padded
from regard.ops.custom_op import token_major
from regard.ops.dispatch import on_device

TILE = 16
"""Queries that share the keys and values a program reads."""


def decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return the context, (B, H, T, D), in token-major memory. The mask must have no window and not be causal."""
    from regard.ops.triton import decode_attention as kernels

    (B, H, T, D), S = q.shape, k.shape[-2]
    q, q_stride = token_major(q)
    if k.stride(-1) != 1 or k.stride() != v.stride():  # keys and values of a cache have the same strides
        k, v = k.contiguous(), v.contiguous()
    lengths = mask.keys.lengths if isinstance(mask.keys, Padded) else None
    allowed = None if mask.allowed is None else mask.allowed.expand(B, H, T, S).view(torch.uint8)
    context = q.new_empty(B, T, H, D).transpose(1, 2)
    float32 = q.dtype == torch.float32
    with on_device(q):
        kernels.decode_attention[(B * H, -(-T // TILE))](
            q, k, v, context, lengths, allowed,
            q_stride, *k.stride()[:-1], *((0,) * 4 if allowed is None else allowed.stride()),
            0 if lengths is None else lengths.stride(0), T, S, H, scale,
            D=D, M=TILE, N=32 if float32 else 64, PADDED=lengths is not None, MASKED=allowed is not None,
            PRECISION="ieee" if float32 else "tf32", num_warps=4, num_stages=2,
        )  # fmt: skip
    return context
