"""The key range of every query and the query range of every key, for masks in which these are contiguous.

In a packed row they follow from the offsets of its sequences, as does the assignment of sequences to the programs of
the backward kernel.

Shapes: T queries, S keys, R rows: 1 or B · H.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.masks import Mask, Packed, Window
from regard.ops.dispatch import key_ranges_kernel_applies, on_device

PROGRAM_TOKENS = 32
"""Queries, and keys, that a program of the backward kernel computes on average, if the sequences permit it."""
BLOCK = 128
"""Tokens, or programs, that a program of the kernel in this file computes."""


class KeyRanges(NamedTuple):
    """Ranges as int32 tensors, with an exclusive end."""

    first_key: Tensor  # (R, T)
    end_key: Tensor  # (R, T)
    first_query: Tensor | None = None  # (R, S); this and the following are for the backward pass
    end_query: Tensor | None = None  # (R, S)
    programs: Tensor | None = None  # (programs, 6), of a packed row, see `assign_programs`

    @classmethod
    def of(cls, mask: Mask, program_tokens: int = PROGRAM_TOKENS) -> "KeyRanges":
        """Compute the ranges of a packed row, without synchronising with the device."""
        assert isinstance(mask.queries, Packed)
        assert isinstance(mask.keys, Packed)
        find = find_by_kernel if key_ranges_kernel_applies(mask.keys.offsets) else find_by_formula
        return find(mask.queries, mask.keys, mask.reach, program_tokens)


def find_by_formula(queries: Packed, keys: Packed, reach: Window, program_tokens: int = PROGRAM_TOKENS) -> KeyRanges:
    """Compute the ranges of a packed row in PyTorch."""
    first_key, end_key = _find_ranges(queries, keys, reach)
    first_query, end_query = _find_ranges(keys, queries, reach[::-1])
    return KeyRanges(first_key, end_key, first_query, end_query, assign_programs(queries, keys, program_tokens))


def _find_ranges(tokens: Packed, others: Packed, reach: Window) -> tuple[Tensor, Tensor]:
    """For every token, return the range of the other side in its window; sequences are aligned at their ends."""
    segment = tokens.segments()
    start, end = others.offsets[:-1][segment], others.offsets[1:][segment]
    aligned = torch.arange(tokens.size, device=end.device) + end - tokens.offsets[1:][segment]
    before, after = reach
    first = start if before is None else (aligned - before).clamp(start, end)
    last = end if after is None else (aligned + after + 1).clamp(start, end)
    return first.to(torch.int32)[None], last.to(torch.int32)[None]


def assign_programs(queries: Packed, keys: Packed, program_tokens: int) -> Tensor:
    """Assign sequences to the programs of the backward kernel, (programs, 6), int32.

    The row is divided into intervals of equal size, one per program, counting queries and keys together. A program
    computes the sequences that begin in its interval. Programs in whose interval no sequence begins, because a long one
    covers it, share the work of the program before them.

    Columns: first query, end of the queries, first key, end of the keys, index of the program among those that share
    this work, and their number.
    """
    interval, total = 2 * program_tokens, queries.size + keys.size
    starts = queries.offsets + keys.offsets  # of the sequences, queries and keys counted together
    count = _count_programs(queries, keys, program_tokens)
    program = torch.arange(count, device=starts.device)
    end = torch.searchsorted(starts, ((program + 1) * interval).clamp(max=total).to(starts.dtype))
    owner = starts[(end - 1).clamp(min=0)] // interval
    begin = torch.searchsorted(starts, owner * interval)
    next_owner = torch.where(starts[end] < total, starts[end] // interval, count)
    columns = (
        queries.offsets[begin], queries.offsets[end], keys.offsets[begin], keys.offsets[end],
        program - owner, next_owner - owner,
    )  # fmt: skip
    return torch.stack([column.to(torch.int32) for column in columns], 1)


def find_by_kernel(queries: Packed, keys: Packed, reach: Window, program_tokens: int = PROGRAM_TOKENS) -> KeyRanges:
    """Compute `find_by_formula` in one kernel."""
    from regard.ops.triton import key_ranges as kernels

    T, S, count = queries.size, keys.size, _count_programs(queries, keys, program_tokens)
    first_key, end_key, first_query, end_query = (
        keys.offsets.new_empty(1, size, dtype=torch.int32) for size in (T, T, S, S)
    )
    programs = keys.offsets.new_empty(count, 6, dtype=torch.int32)
    ranges = KeyRanges(first_key, end_key, first_query, end_query, programs)
    before, after = (T + S if limit is None else min(limit, T + S) for limit in reach)
    sequences = len(keys.offsets) - 1
    with on_device(keys.offsets):
        kernels.find_key_ranges[(-(-max(T, S, count) // BLOCK), 3)](
            queries.offsets.contiguous(), keys.offsets.contiguous(), *ranges, T, S, before, after, 2 * program_tokens,
            count, sequences, sequences.bit_length(), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return ranges


def _count_programs(queries: Packed, keys: Packed, program_tokens: int) -> int:
    return max(1, -(-(queries.size + keys.size) // (2 * program_tokens)))
