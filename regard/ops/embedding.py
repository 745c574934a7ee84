"""Rows of a table for tokens, with what tells their places: in training on a GPU in one pass each way.

By themselves the parts of it, a row and a position gathered, scaled, added, dropped here and there and rounded, move
each vector a dozen times over. Nothing is kept for the way back but the tokens and the seed of what was dropped.

Shapes: N tokens, V rows of the table, W their width, L places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device, tile_rows
from regard.ops.dropout import draw_seed, drop_threshold
from regard.ops.embedding_backward import Reading, add_up_rows

TILE, WARPS = 1024, 2
"""Numbers that a program looks at together, at the least a row, and its threads, in groups of 32."""


def embed(
    tokens: Tensor,
    table: Tensor,
    scale: float,
    places: Tensor | None = None,
    positions: Tensor | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """dropout(table[tokens] · scale + positions[places]), (…, W); every call drops other numbers.

    Args:
        tokens: which rows, of any shape; what is none of them becomes no number.
        table: in single precision, (V, W); it alone learns.
        scale: of its rows.
        places: of the tokens, of their shape, or one row for all rows of tokens.
        positions: what is added at each place, (L, W); nothing is unless given.
        dropout: of the sum; pass 0 outside training.
        dtype: of what flows on; the table's unless given.
    """
    seed = draw_seed(table.device) if dropout else None
    at = None if positions is None or places is None else places.reshape(-1).contiguous()
    flat = tokens.reshape(-1).contiguous()
    y: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
        flat, table, at, positions, seed, scale, dropout, table.dtype if dtype is None else dtype
    )
    return y.view(*tokens.shape, table.shape[1])


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        table: Tensor,
        places: Tensor | None,
        positions: Tensor | None,
        seed: Tensor | None,
        scale: float,
        dropout: float,
        dtype: torch.dtype,
    ) -> Tensor:
        from regard.ops.triton import embedding as rows_triton

        N, W = len(tokens), table.shape[1]
        y = table.new_empty(N, W, dtype=dtype)
        tile = tile_rows(W, TILE, WARPS)
        if N:
            with on_device(table):
                rows_triton.embed[(-(-N // tile["R"]),)](
                    tokens, table.contiguous(), places, positions, seed, y,
                    N, len(table), 1 if places is None else len(places), scale,
                    drop_threshold(dropout), 1 / (1 - dropout),
                    PLACED=places is not None, DROPS=dropout > 0, **tile,
                )  # fmt: skip
        ctx.save_for_backward(tokens, seed)
        ctx.words, ctx.scale, ctx.dropout = len(table), scale, dropout
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, seed = ctx.saved_tensors
        growth, reading = ctx.scale / (1 - ctx.dropout), Reading(grad.contiguous(), tokens, seed)
        return None, add_up_rows([reading], ctx.words, growth, ctx.dropout), *(None,) * 6
