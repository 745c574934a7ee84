"""The gradient of a table of which tokens took rows: for each word the sum over its tokens.

Tokens are sorted, so that those of a word stand side by side. A word of few tokens is added up by one program; one of
many, as the end of a sentence is, in chunks of the sorted row by many programs, and then their parts are: always the
same rows in the same order, so that a gradient is the same to the bit every time.

Shapes: N tokens, V words, W width, C chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.kernels.short import chance_of
from regard.launching import on_device, tile_rows

CHUNK = 32
"""Tokens of the sorted row, and the most that a word may have to be added up at once."""
ROWS, WARPS = 4, 2
"""What a program reads at once, and its threads for each 1024 numbers of a row, in groups of 32."""


def add_up_rows(
    grad: Tensor, tokens: Tensor, words: int, growth: float = 1.0, seed: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """For each word the sum of its tokens' rows, (N, W) to (V, W), times the growth, in float32.

    Args:
        grad: a row for each token, without gaps in memory.
        tokens: the word of each, (N,); rows of what is no word are left out.
        words: how many there are.
        growth: of all numbers that were not dropped.
        seed: of what was dropped.
        dropout: how much was.
    """
    from regard.embedding import adding_triton as kernels

    N, W = grad.shape
    chunks = -(-N // CHUNK)
    row, order = torch.sort(tokens.to(torch.int32), stable=True)
    bounds = torch.searchsorted(row, torch.arange(words + 1, dtype=torch.int32, device=row.device), out_int32=True)
    total, parts = grad.new_empty(words, W, dtype=torch.float32), grad.new_empty(2 * chunks, W, dtype=torch.float32)
    shared = tile_rows(W, 1024, WARPS) | {"K": CHUNK, "R": ROWS}
    with on_device(grad):
        kernels.add_up_rows[(words + 2 * chunks,)](
            grad, row, order, bounds, seed, total, parts, N, words, chance_of(dropout), growth,
            DROPS=dropout > 0, **shared,
        )  # fmt: skip
        if chunks:
            kernels.join_parts[(chunks,)](row, bounds, parts, total, N, words, **shared)
    return total
