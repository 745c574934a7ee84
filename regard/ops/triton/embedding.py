"""Kernels of embeddings: R rows are processed at once; their width W is padded to a power of two, P.

The backward pass sums the gradients of all occurrences of a token. Tokens are sorted, so that the occurrences of a
token are adjacent, and the sorted tokens are divided into chunks of K. A token with up to K occurrences is summed by
one program. A token with more occurrences contains the first or the last element of each chunk that it overlaps. Each
chunk therefore has two slots for partial sums: slot 0 for the token of its first element, slot 1 for a token that
starts later in the chunk and continues in the next one.
"""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask

CUT_OFF = tl.constexpr(-2)  # `regard.ops.embedding.CUT_OFF`


@triton.jit(do_not_specialize=["N", "V", "L", "threshold"])
def embed(
    tokens, table, positions, position_table, seed, y, N, V, L, scale, threshold, growth,
    ADD_POSITIONS: tl.constexpr, DROP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write scaled rows of a table plus position encodings. The L positions repeat if there are fewer than tokens.

    CUT_OFF gives zeros. Another token outside the vocabulary gives NaN, so that the loss reveals it.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    row_mask = row < N
    mask = row_mask[:, None] & (column < W)[None, :]
    token = tl.load(tokens + row, mask=row_mask, other=0).to(tl.int64)
    valid = mask & ((token >= 0) & (token < V))[:, None]
    z = tl.load(table + token[:, None] * W + column[None, :], mask=valid, other=float("nan")) * scale
    z = tl.where((token == CUT_OFF)[:, None], 0.0, z)
    if ADD_POSITIONS:
        position = tl.load(positions + row % L, mask=row_mask, other=0).to(tl.int64)
        z += tl.load(position_table + position[:, None] * W + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if DROP:
        seed_value = tl.load(seed).to(tl.uint32)
        z = tl.where(keep_mask(seed_value, row[:, None], column[None, :], threshold), z * growth, 0.0)
    offset = row.to(tl.int64)[:, None] * W + column[None, :]
    tl.store(y + offset, z.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N", "V"])
def write_sort_keys(tokens, keys, N, V, SIZE: tl.constexpr):
    """Convert tokens to the dtype of the keys; tokens outside the vocabulary become V."""
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    token = tl.load(tokens + index, mask=index < N, other=0)
    valid = (token >= 0) & (token < V)
    tl.store(keys + index, tl.where(valid, token, V).to(keys.dtype.element_ty), mask=index < N)


@triton.jit
def _occurrences(starts, token, V):
    """Return the range of a token's occurrences among the sorted tokens, empty for tokens outside the vocabulary."""
    valid = token < V
    first = tl.load(starts + token, mask=valid, other=0)
    last = tl.load(starts + token + 1, mask=valid, other=0)
    return first, last


@triton.jit(do_not_specialize=["N", "V", "threshold"])
def sum_occurrences(
    grad, sorted_tokens, order, starts, seed, total, partials, N, V, threshold, scale,
    DROP: tl.constexpr, K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write the sum of a token with up to K occurrences (programs 0 to V - 1), or a partial sum of a chunk (others)."""
    program = tl.program_id(0)
    if program < V:
        first = tl.load(starts + program)
        last = tl.load(starts + program + 1)
        needed = last - first <= K
        out = total + program.to(tl.int64) * W
    else:
        slot = program - V
        chunk_first = slot // 2 * K
        chunk_last = tl.minimum(chunk_first + K, N)
        is_second = slot % 2 == 1
        token = tl.load(sorted_tokens + tl.where(is_second, chunk_last - 1, chunk_first)).to(tl.int32)
        token_first, token_last = _occurrences(starts, token, V)
        first = tl.maximum(token_first, chunk_first)
        last = tl.minimum(token_last, chunk_last)
        needed = (token_last - token_first > K) & (is_second == (token_first > chunk_first))
        out = partials + slot.to(tl.int64) * W
    if needed:
        column = tl.arange(0, P)
        column_mask = column < W
        sums = tl.zeros([P], tl.float32)
        for start in range(first, last, R):
            index = start + tl.arange(0, R)
            row_mask = index < last
            row = tl.load(order + index, mask=row_mask, other=0)
            mask = row_mask[:, None] & column_mask[None, :]
            g = tl.load(grad + row[:, None] * W + column[None, :], mask=mask, other=0.0).to(tl.float32)
            if DROP:
                seed_value = tl.load(seed).to(tl.uint32)
                g = tl.where(keep_mask(seed_value, row[:, None], column[None, :], threshold), g, 0.0)
            sums += tl.sum(g, 0)
        tl.store(out + column, sums * scale, mask=column_mask)


@triton.jit(do_not_specialize=["N", "V"])
def join_partials(
    sorted_tokens, starts, partials, total, N, V,
    K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write the sum of the token with more than K occurrences that starts in a program's chunk, if there is one."""
    chunk = tl.program_id(0)
    token = tl.load(sorted_tokens + tl.minimum(chunk * K + K, N) - 1).to(tl.int32)
    first, last = _occurrences(starts, token, V)
    if (last - first > K) & (first >= chunk * K):
        column = tl.arange(0, P)
        column_mask = column < W
        sums = tl.zeros([P], tl.float32)
        end = (last - 1) // K + 1
        for start in range(chunk, end, R):
            index = start + tl.arange(0, R)
            mask = (index < end)[:, None] & column_mask[None, :]
            slot = (2 * index + (first > index * K).to(tl.int32)).to(tl.int64)
            sums += tl.sum(tl.load(partials + slot[:, None] * W + column[None, :], mask=mask, other=0.0), 0)
        tl.store(total + token.to(tl.int64) * W + column, sums, mask=column_mask)
