"""Which keys a query sees and which queries see a key, where those stand side by side: two numbers a token.

In a packed row that follows from the offsets of its sequences, and so does how work is shared out, see `share_out`.

Shapes: T queries, S keys; R rows, 1 or B · H.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import Mask, Packed, Window
from regard.ops.dispatch import key_ranges_kernel_applies, on_device

SLOT = 32
"""So many queries and keys, in the mean of both, are the work of one program of the way back, if sequences allow it."""
BLOCK = 128
"""Tokens, or slots, of one program of the kernel that finds runs."""


class KeyRanges(NamedTuple):
    """Which keys each query sees and which queries see each key, int32: from the first place to behind the last."""

    lo: Tensor  # (R, T)
    hi: Tensor  # (R, T)
    first: Tensor | None = None  # (R, S); of use to the backward pass alone, as is what follows
    last: Tensor | None = None  # (R, S)
    slots: Tensor | None = None  # (slots, 6), of a packed row, see `share_out`

    @classmethod
    def of(cls, mask: Mask, slot: int = SLOT) -> KeyRanges:
        """Those of a packed row; neither their lengths nor anything else is waited for."""
        assert isinstance(mask.queries, Packed)
        assert isinstance(mask.keys, Packed)
        find = find_by_kernel if key_ranges_kernel_applies(mask.keys.offsets) else find_by_formula
        return find(mask.queries, mask.keys, mask.reach, slot)


def find_by_formula(queries: Packed, keys: Packed, reach: Window, slot: int = SLOT) -> KeyRanges:
    """The runs of queries within reach of keys."""
    lo, hi = _find_runs(queries, keys, reach)
    first, last = _find_runs(keys, queries, reach[::-1])
    return KeyRanges(lo, hi, first, last, share_out(queries, keys, slot))


def _find_runs(mine: Packed, theirs: Packed, reach: Window) -> tuple[Tensor, Tensor]:
    """Between which places of the other side stands what each token sees; sequences end at the same place."""
    segment = mine.segments()
    start, end = theirs.offsets[:-1][segment], theirs.offsets[1:][segment]
    aligned = torch.arange(mine.size, device=end.device) + end - mine.offsets[1:][segment]
    before, after = reach
    begins = start if before is None else (aligned - before).clamp(start, end)
    ends = end if after is None else (aligned + after + 1).clamp(start, end)
    return begins.to(torch.int32)[None], ends.to(torch.int32)[None]


def share_out(queries: Packed, keys: Packed, slot: int) -> Tensor:
    """How many programs, one a slot, share out whole sequences: (slots, 6), int32.

    A sequence belongs to the slot in which it begins, when queries and keys before it are counted together; slots
    within a long one, where nothing begins, help with what belongs to the slot before them. Each has the first place
    and that behind the last of its queries and of its keys, which share of them is its own, and how many share them.
    """
    width, all_places = 2 * slot, queries.size + keys.size
    begins = queries.offsets + keys.offsets  # of the sequences, counted together
    number = _count_slots(queries, keys, slot)
    place = torch.arange(number, device=begins.device)
    end = torch.searchsorted(begins, ((place + 1) * width).clamp(max=all_places).to(begins.dtype))
    owner = begins[(end - 1).clamp(min=0)] // width
    begin = torch.searchsorted(begins, owner * width)
    following = torch.where(begins[end] < all_places, begins[end] // width, number)
    found = (
        queries.offsets[begin], queries.offsets[end], keys.offsets[begin], keys.offsets[end],
        place - owner, following - owner,
    )  # fmt: skip
    return torch.stack([x.to(torch.int32) for x in found], 1)


def find_by_kernel(queries: Packed, keys: Packed, reach: Window, slot: int = SLOT) -> KeyRanges:
    """`find_by_formula` in one launch."""
    from regard.ops.triton import key_ranges as kernels

    T, S, number = queries.size, keys.size, _count_slots(queries, keys, slot)
    lo, hi, first, last = (keys.offsets.new_empty(1, size, dtype=torch.int32) for size in (T, T, S, S))
    found = KeyRanges(lo, hi, first, last, keys.offsets.new_empty(number, 6, dtype=torch.int32))
    before, after = (T + S if bound is None else min(bound, T + S) for bound in reach)  # nothing lies further
    sequences = len(keys.offsets) - 1
    with on_device(keys.offsets):
        kernels.find_runs[(-(-max(T, S, number) // BLOCK), 3)](
            queries.offsets.contiguous(), keys.offsets.contiguous(), *found, T, S, before, after, 2 * slot, number,
            sequences, sequences.bit_length(), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return found


def _count_slots(queries: Packed, keys: Packed, slot: int) -> int:
    return max(1, -(-(queries.size + keys.size) // (2 * slot)))
