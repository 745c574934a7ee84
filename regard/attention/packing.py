"""Conversion between packed and padded batches, for implementations of attention that support padded batches only.

Shapes: B sequences, H heads, N tokens of the packed row, L tokens of the longest sequence, D head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.masks import Mask, Packed, Padded, in_window


class PaddedIndex(NamedTuple):
    """Where each token of a packed row is in the padded batch."""

    sequences: int
    longest: int
    tokens: Tensor  # index into the flattened padded batch, (N,)

    @classmethod
    def of(cls, layout: Packed) -> "PaddedIndex":
        tokens = layout.segments() * layout.longest + layout.positions()[0]
        return cls(len(layout.offsets) - 1, layout.longest, tokens)

    def pad(self, x: Tensor) -> Tensor:
        _, H, _, D = x.shape
        rows = x.new_zeros(self.sequences * self.longest, H, D).index_copy_(0, self.tokens, x[0].transpose(0, 1))
        return rows.view(self.sequences, self.longest, H, D).transpose(1, 2)

    def pack(self, rows: Tensor) -> Tensor:
        tokens = rows.transpose(1, 2)[self.tokens // self.longest, self.tokens % self.longest]
        return tokens.transpose(0, 1)[None]


class _Convert(torch.autograd.Function):
    """Each conversion is the gradient of the other: no token is read twice, so no gradients are accumulated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: PaddedIndex, pad: bool) -> Tensor:
        ctx.index, ctx.pad = index, pad
        return index.pad(x) if pad else index.pack(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _convert(grad, ctx.index, not ctx.pad), None, None


def _convert(x: Tensor, layout: Packed | PaddedIndex, pad: bool) -> Tensor:
    index = PaddedIndex.of(layout) if isinstance(layout, Packed) else layout
    if torch._C._are_functorch_transforms_active():  # they do not support our autograd function
        return index.pad(x) if pad else index.pack(x)
    y: Tensor = _Convert.apply(x, index, pad)  # type: ignore[no-untyped-call]
    return y


def pad_packed(x: Tensor, layout: Packed | PaddedIndex) -> Tensor:
    """Convert (1, H, N, D) to (B, H, L, D), with zeros as padding."""
    return _convert(x, layout, pad=True)


def pack_padded(rows: Tensor, layout: Packed | PaddedIndex) -> Tensor:
    """Convert (B, H, L, D) to (1, H, N, D)."""
    return _convert(rows, layout, pad=False)


def pad_packed_mask(mask: Mask) -> Mask:
    """Return the mask of the padded batch that `pad_packed` makes of a packed one."""
    queries, keys = packed_layouts(mask)
    if mask.allowed is not None:
        raise ValueError("a packed batch with a dense mask cannot be padded")
    # Padded rows all begin at 0, so the end of the keys, to which queries are aligned, differs between rows.
    device, shift = keys.offsets.device, (keys.lengths - queries.lengths)[:, None, None]
    query_positions = torch.arange(queries.longest, device=device)[:, None] + shift
    in_reach = in_window(mask.reach, query_positions, torch.arange(keys.longest, device=device))
    return Mask(keys=Padded(keys.lengths, keys.longest), allowed=None if in_reach is None else in_reach[:, None])


def packed_layouts(mask: Mask) -> tuple[Packed, Packed]:
    """Return the layouts of packed queries and keys; raise ValueError if the batch is not packed."""
    if not isinstance(mask.queries, Packed) or not isinstance(mask.keys, Packed):
        raise ValueError("this path supports packed batches only; the layouts of the mask are padded")
    return mask.queries, mask.keys


def attend_padded(
    attend: Callable[[Tensor, Tensor, Tensor, Mask], Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Mask
) -> Tensor:
    """Return attend(q, k, v, mask); the sequences of packed self-attention without a dense mask are padded for it."""
    layout = mask.keys
    if not isinstance(layout, Packed) or mask.queries is not layout or mask.allowed is not None:
        return attend(q, k, v, mask)
    index, rows = PaddedIndex.of(layout), Padded(layout.lengths, layout.longest)
    q, k, v = (pad_packed(x, index) for x in (q, k, v))
    return pack_padded(attend(q, k, v, Mask(rows, rows, mask.causal, mask.window)), index)
