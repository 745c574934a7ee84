"""The kernels of `adding`: R rows are looked at together, their width W padded to a power of two, P.

A chunk is K tokens of the sorted row. A word of more than K tokens covers the first or the last token of each chunk in
which it has any: there are two places for parts of each chunk, one for a word that was there at its first token, one
for a word that begins later and goes on in the next chunk.
"""

import triton
import triton.language as tl

from regard.attention.kernels.short_triton import kept


@triton.jit
def reach(bounds, word, V):
    """From where to where a word stands in the sorted row; what is no word stands nowhere."""
    known = (word >= 0) & (word < V)
    first = tl.load(bounds + word, mask=known, other=0)
    last = tl.load(bounds + word + 1, mask=known, other=0)
    return first, last


@triton.jit(do_not_specialize=["N", "V", "chance"])
def add_up_rows(
    grad, row, order, bounds, seed, total, parts, N, V, chance, growth,
    DROPS: tl.constexpr, K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The whole sum of a word of up to K tokens; or one of the two parts of a chunk, if it is of a longer word."""
    program = tl.program_id(0)
    if program < V:
        begin = tl.load(bounds + program)
        end = tl.load(bounds + program + 1)
        wanted = end - begin <= K
        out = total + program.to(tl.int64) * W
    else:
        part = program - V
        chunk = part // 2 * K
        behind = tl.minimum(chunk + K, N)
        later = part % 2 == 1
        word = tl.load(row + tl.where(later, behind - 1, chunk))
        first, last = reach(bounds, word, V)
        begin = tl.maximum(first, chunk)
        end = tl.minimum(last, behind)
        wanted = (last - first > K) & (later == (first > chunk))
        out = parts + part.to(tl.int64) * W
    if wanted:
        column = tl.arange(0, P)
        inside = column < W
        sums = tl.zeros([P], tl.float32)
        for place in range(begin, end, R):
            at = place + tl.arange(0, R)
            real = at < end
            token = tl.load(order + at, mask=real, other=0)
            there = real[:, None] & inside[None, :]
            g = tl.load(grad + token[:, None] * W + column[None, :], mask=there, other=0.0).to(tl.float32)
            if DROPS:
                seed_value = tl.load(seed).to(tl.uint32)
                g = tl.where(kept(seed_value, token[:, None], column[None, :], chance), g, 0.0)
            sums += tl.sum(g, 0)
        tl.store(out + column, sums * growth, mask=inside)


@triton.jit(do_not_specialize=["N", "V"])
def join_parts(
    row, bounds, parts, total, N, V,
    K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The sum of the word of more than K tokens that begins in a chunk, if one does."""
    chunk = tl.program_id(0)
    word = tl.load(row + tl.minimum(chunk * K + K, N) - 1)
    first, last = reach(bounds, word, V)
    if (last - first > K) & (first >= chunk * K):
        column = tl.arange(0, P)
        inside = column < W
        sums = tl.zeros([P], tl.float32)
        end = (last - 1) // K + 1
        for place in range(chunk, end, R):
            at = place + tl.arange(0, R)
            there = (at < end)[:, None] & inside[None, :]
            part = 2 * at + (first > at * K).to(tl.int32)
            sums += tl.sum(tl.load(parts + part.to(tl.int64)[:, None] * W + column[None, :], mask=there, other=0.0), 0)
        tl.store(total + word.to(tl.int64) * W + column, sums, mask=inside)
