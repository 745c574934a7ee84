"""Token embeddings with positions and dropout, for training on a GPU: one kernel forward, a sort and two backward.

Separate operations gather, scale, add, drop and round each vector in a dozen passes. Here the backward pass needs the
tokens and the seed of dropout only. The plain formula is `Embedding.forward` in `regard.models.transformer`.

Shapes: N tokens, V vocabulary, W width, L positions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device, tile_rows
from regard.ops.dropout import draw_seed, drop_threshold

CUT_OFF = -2
"""Token whose embedding is zero, in training; see `regard.training.objectives.simcut`."""
TILE, WARPS = 1024, 2
"""Elements that a program of the forward kernel processes at once, at least one row, and its warps."""
CHUNK = 32
"""Sorted tokens per chunk of the backward pass; a token with more occurrences is summed by several programs."""
BACKWARD_ROWS, BACKWARD_WARPS = 4, 2
"""Rows that a program of the backward kernels reads at once, and its warps per 1024 elements of a row."""
KEYS = 1024
"""Tokens that a program converts to sort keys."""
MAX_INT16_VOCABULARY = 2**15 - 1
"""Largest vocabulary for 16-bit sort keys, which are sorted in half the time."""


def embed(
    tokens: Tensor,
    table: Tensor,
    scale: float,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return dropout(table[tokens] · scale + position_table[positions]), (..., W), by kernel.

    Args:
        tokens: Rows of the table, of any shape. `CUT_OFF` gives zeros, other tokens outside the vocabulary NaN.
        table: Trained embeddings in float32, (V, W).
        scale: Factor on the embeddings.
        positions: Position of every token, of the same shape or one row for all rows of tokens.
        position_table: Encoding of each position, (L, W), without gradient.
        dropout: Dropout probability.
        dtype: dtype of the result; that of the table by default.
    """
    seed = draw_seed(table.device) if dropout else None
    flat_positions = None if positions is None or position_table is None else positions.reshape(-1).contiguous()
    flat_tokens = tokens.reshape(-1).contiguous()
    y: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
        flat_tokens, table, flat_positions, position_table, seed, scale, dropout, dtype or table.dtype
    )
    return y.view(*tokens.shape, table.shape[1])


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        table: Tensor,
        positions: Tensor | None,
        position_table: Tensor | None,
        seed: Tensor | None,
        scale: float,
        dropout: float,
        dtype: torch.dtype,
    ) -> Tensor:
        from regard.ops.triton import embedding as kernels

        N, (V, W) = len(tokens), table.shape
        y, tile = table.new_empty(N, W, dtype=dtype), tile_rows(W, TILE, WARPS)
        if N:
            with on_device(table):
                kernels.embed[(-(-N // tile["R"]),)](
                    tokens, table.contiguous(), positions, position_table, seed, y,
                    N, V, 1 if positions is None else len(positions), scale,
                    drop_threshold(dropout), 1 / (1 - dropout),
                    ADD_POSITIONS=positions is not None, DROP=dropout > 0, **tile,
                )  # fmt: skip
        ctx.save_for_backward(tokens, seed)
        ctx.vocabulary, ctx.scale, ctx.dropout = V, scale, dropout
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, seed = ctx.saved_tensors
        scale = ctx.scale / (1 - ctx.dropout)
        return None, sum_by_token(grad.contiguous(), tokens, ctx.vocabulary, scale, seed, ctx.dropout), *(None,) * 6


def sum_by_token(
    grad: Tensor, tokens: Tensor, vocabulary: int, scale: float = 1.0, seed: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Sum the rows of each token's occurrences, (N, W) to (V, W) in float32, by kernel.

    The same rows are summed in the same order every time, so that gradients are bit-identical.

    Args:
        grad: A row for each token, (N, W), contiguous.
        tokens: Tokens, (N,); those outside the vocabulary are ignored.
        vocabulary: Number of tokens, V.
        scale: Factor on the sums.
        seed: Seed of the dropout that was applied to the rows.
        dropout: Dropout probability.
    """
    from regard.ops.triton import embedding as kernels

    N, W = grad.shape
    chunks = -(-N // CHUNK)
    total = grad.new_empty(vocabulary, W, dtype=torch.float32)
    sorted_tokens, order = torch.sort(_sort_keys(tokens, vocabulary), stable=True)
    bounds = torch.arange(vocabulary + 1, dtype=sorted_tokens.dtype, device=grad.device)
    starts = torch.searchsorted(sorted_tokens, bounds, out_int32=True)
    partials = total.new_empty(2 * chunks, W)
    tile = tile_rows(W, 1024, BACKWARD_WARPS) | {"K": CHUNK, "R": BACKWARD_ROWS}
    with on_device(total):
        kernels.sum_occurrences[(vocabulary + 2 * chunks,)](
            grad, sorted_tokens, order, starts, seed, total, partials, N, vocabulary, drop_threshold(dropout), scale,
            DROP=dropout > 0, **tile,
        )  # fmt: skip
        if chunks:
            kernels.join_partials[(chunks,)](sorted_tokens, starts, partials, total, N, vocabulary, **tile)
    return total


def _sort_keys(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return tokens in the smallest integer dtype; those outside the vocabulary become its size."""
    from regard.ops.triton import embedding as kernels

    N = len(tokens)
    keys = tokens.new_empty(N, dtype=torch.int16 if vocabulary <= MAX_INT16_VOCABULARY else torch.int32)
    if N:
        with on_device(tokens):
            kernels.write_sort_keys[(-(-N // KEYS),)](tokens, keys, N, vocabulary, SIZE=KEYS)
    return keys
