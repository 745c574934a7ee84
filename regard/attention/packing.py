"""Packed sequences laid in rows of their own, and back: for whatever attends to padded batches alone.

Shapes: B sequences, H heads, N tokens of the packed row, L tokens of the longest sequence, D head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import Mask, Packed, Padded, within


class Places(NamedTuple):
    """Where the tokens of a packed row stand once each sequence has a row of its own."""

    sequences: int
    longest: int
    tokens: Tensor  # (N,), counted through all rows

    @classmethod
    def of(cls, layout: Packed) -> Places:
        tokens = layout.segments() * layout.longest + layout.positions()[0]
        return cls(len(layout.offsets) - 1, layout.longest, tokens)

    def spread(self, x: Tensor) -> Tensor:
        _, H, _, D = x.shape
        rows = x.new_zeros(self.sequences * self.longest, H, D).index_copy_(0, self.tokens, x[0].transpose(0, 1))
        return rows.view(self.sequences, self.longest, H, D).transpose(1, 2)

    def collect(self, rows: Tensor) -> Tensor:
        tokens = rows.transpose(1, 2)[self.tokens // self.longest, self.tokens % self.longest]
        return tokens.transpose(0, 1)[None]


class _Move(torch.autograd.Function):
    """Into rows or out of them; the way back is the other, without sums for tokens that might have been read twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Places, spreads: bool) -> Tensor:
        ctx.places, ctx.spreads = places, spreads
        return places.spread(x) if spreads else places.collect(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _move(grad, ctx.places, not ctx.spreads), None, None


def _move(x: Tensor, places: Packed | Places, spreads: bool) -> Tensor:
    places = Places.of(places) if isinstance(places, Packed) else places
    if torch._C._are_functorch_transforms_active():  # which know the operations, and nothing of a function of ours
        return places.spread(x) if spreads else places.collect(x)
    y: Tensor = _Move.apply(x, places, spreads)  # type: ignore[no-untyped-call]
    return y


def pad_packed(x: Tensor, places: Packed | Places) -> Tensor:
    """(1, H, N, D) to (B, H, L, D), zeros behind a sequence's end."""
    return _move(x, places, spreads=True)


def pack_padded(rows: Tensor, places: Packed | Places) -> Tensor:
    """(B, H, L, D) to (1, H, N, D)."""
    return _move(rows, places, spreads=False)


def pad_packed_mask(mask: Mask) -> Mask:
    """The mask of the same batch with one sequence a row, as `pad_packed` lays it out."""
    queries, keys = packed_layouts(mask)
    if mask.allowed is not None:
        raise ValueError("a dense mask over a packed batch needs path='reference'")
    # Padded rows all begin at 0, so the end of the keys, to which a mask is aligned, lies elsewhere in each row.
    device, shift = keys.offsets.device, (keys.lengths - queries.lengths)[:, None, None]
    query_place = torch.arange(queries.longest, device=device)[:, None] + shift
    near = within(mask.reach, query_place, torch.arange(keys.longest, device=device))
    return Mask(keys=Padded(keys.lengths, keys.longest), allowed=None if near is None else near[:, None])


def packed_layouts(mask: Mask) -> tuple[Packed, Packed]:
    """Of queries and keys.

    Raises:
        ValueError: they are padded.
    """
    if not isinstance(mask.queries, Packed) or not isinstance(mask.keys, Packed):
        raise ValueError("this path is for packed batches; the mask's layouts are padded")
    return mask.queries, mask.keys


def in_rows(mask: Mask) -> tuple[Packed, Mask] | None:
    """The layout of packed sequences that look at themselves, and their mask once `pad_packed` has laid them in rows.

    None where the batch is not packed, where queries and keys differ, or where a dense part names packed places.
    """
    layout = mask.keys
    if not isinstance(layout, Packed) or mask.queries is not layout or mask.allowed is not None:
        return None
    rows = Padded(layout.lengths, layout.longest)
    return layout, Mask(queries=rows, keys=rows, causal=mask.causal, window=mask.window)
