"""The kernel of embeddings: R tokens of N are looked at together, their width W padded to a power of two, P."""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask


@triton.jit(do_not_specialize=["N", "V", "L", "chance"])
def embed(
    tokens, table, places, positions, seed, y, N, V, L, scale, chance, growth,
    PLACED: tl.constexpr, DROPS: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Rows of a table, scaled, with those of their places; the L places are those of all rows of tokens, or of one.

    Of a token that is no word nothing is read: it becomes no number, and so does the loss.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    real = row < N
    there = real[:, None] & (column < W)[None, :]
    token = tl.load(tokens + row, mask=real, other=0).to(tl.int64)
    known = there & ((token >= 0) & (token < V))[:, None]
    z = tl.load(table + token[:, None] * W + column[None, :], mask=known, other=float("nan")) * scale
    if PLACED:
        place = tl.load(places + row % L, mask=real, other=0).to(tl.int64)
        z += tl.load(positions + place[:, None] * W + column[None, :], mask=there, other=0.0).to(tl.float32)
    if DROPS:
        seed_value = tl.load(seed).to(tl.uint32)
        z = tl.where(keep_mask(seed_value, row[:, None], column[None, :], chance), z * growth, 0.0)
    at = row.to(tl.int64)[:, None] * W + column[None, :]
    tl.store(y + at, z.to(y.dtype.element_ty), mask=there)
