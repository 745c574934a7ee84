"""The gradient of a table of which tokens took rows: for each word the sum over its tokens.

Tokens are sorted, so that those of a word stand side by side. A word of few tokens is added up by one program; one of
many, as the end of a sentence is, in chunks of the sorted row by many programs, and then their parts are: always the
same rows in the same order, so that a gradient is the same to the bit every time.

Shapes: N tokens, V words, W width, C chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.dispatch import on_device, tile_rows
from regard.ops.dropout import drop_threshold

CHUNK = 32
"""Tokens of the sorted row, and the most that a word may have to be added up at once."""
ROWS, WARPS = 4, 2
"""What a program reads at once, and its threads for each 1024 numbers of a row, in groups of 32."""
KEYS = 1024
"""Tokens of which a program makes what is sorted."""
FEW = 2**15 - 1
"""The most words for which that is numbers of 16 bits, which are sorted in half the time."""


class Reading(NamedTuple):
    """What came back to rows that were read from a table."""

    grad: Tensor
    """A row for each token, (N, W), without gaps in memory."""
    tokens: Tensor
    """The word of each, (N,); rows of what is no word are left out."""
    seed: Tensor | None = None
    """Of what was dropped."""


def add_up_rows(
    readings: Sequence[Reading], words: int, growth: float = 1.0, dropout: float = 0.0, onto: Tensor | None = None
) -> Tensor:
    """For each word the sum of its tokens' rows, (V, W), times the growth, in float32.

    Args:
        readings: one, or two whose tokens are sorted together.
        words: how many there are.
        growth: of all numbers that were not dropped.
        dropout: how much was.
        onto: what is added to, in place, in float32 and without gaps; only words that were read are touched.
    """
    from regard.ops.triton import embedding_backward as kernels

    one, other = readings[0], readings[1] if len(readings) > 1 else None
    F, W = one.grad.shape
    N = F if other is None else F + len(other.grad)
    chunks = -(-N // CHUNK)
    total = one.grad.new_empty(words, W, dtype=torch.float32) if onto is None else onto
    row, order = torch.sort(_write_keys(one.tokens, None if other is None else other.tokens, words), stable=True)
    bounds = torch.searchsorted(row, torch.arange(words + 1, dtype=row.dtype, device=row.device), out_int32=True)
    parts = total.new_empty(2 * chunks, W)
    shared = tile_rows(W, 1024, WARPS) | {"K": CHUNK, "R": ROWS, "ONTO": onto is not None}
    with on_device(total):
        kernels.add_up_rows[(words + 2 * chunks,)](
            one.grad, None if other is None else other.grad, row, order, bounds,
            one.seed, None if other is None else other.seed, total, parts, F, N, words, drop_threshold(dropout), growth,
            BOTH=other is not None, DROPS=dropout > 0, **shared,
        )  # fmt: skip
        if chunks:
            kernels.join_parts[(chunks,)](row, bounds, parts, total, N, words, **shared)
    return total


def _write_keys(tokens: Tensor, others: Tensor | None, words: int) -> Tensor:
    """What is sorted: tokens of one reading, then those of the other; what is no word counts as behind all words."""
    from regard.ops.triton import embedding_backward as kernels

    F = len(tokens)
    N = F if others is None else F + len(others)
    keys = tokens.new_empty(N, dtype=torch.int16 if words <= FEW else torch.int32)
    if N:
        with on_device(tokens):
            kernels.write_keys[(-(-N // KEYS),)](tokens, others, keys, F, N, words, BOTH=others is not None, SIZE=KEYS)
    return keys
