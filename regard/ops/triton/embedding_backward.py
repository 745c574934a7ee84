"""The kernels of `adding`: R rows are looked at together, their width W padded to a power of two, P.

A chunk is K tokens of the sorted row. A word of more than K tokens covers the first or the last token of each chunk in
which it has any: there are two places for parts of each chunk, one for a word that was there at its first token, one
for a word that begins later and goes on in the next chunk.

Of N tokens the first F are of one reading of the table; with BOTH the others are of another. With ONTO sums are added
to what the total was.
"""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask


@triton.jit(do_not_specialize=["F", "N", "V"])
def write_keys(tokens, others, keys, F, N, V, BOTH: tl.constexpr, SIZE: tl.constexpr):
    """Tokens of one reading and of the other, one behind the other; what is no word becomes V."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    word = tl.load(tokens + at, mask=at < F, other=0)
    if BOTH:
        word += tl.load(others + at - F, mask=(at >= F) & (at < N), other=0)
    known = (word >= 0) & (word < V)
    tl.store(keys + at, tl.where(known, word, V).to(keys.dtype.element_ty), mask=at < N)


@triton.jit
def reach(bounds, word, V):
    """From where to where a word stands in the sorted row; what is no word stands nowhere."""
    known = word < V
    first = tl.load(bounds + word, mask=known, other=0)
    last = tl.load(bounds + word + 1, mask=known, other=0)
    return first, last


@triton.jit
def load_rows(grad, token, column, there, W: tl.constexpr):
    """The rows of these tokens, as precise as their sums will be."""
    return tl.load(grad + token[:, None] * W + column[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["F", "N", "V", "chance"])
def add_up_rows(
    grad, other_grad, row, order, bounds, seed, other_seed, total, parts, F, N, V, chance, growth,
    BOTH: tl.constexpr, DROPS: tl.constexpr, ONTO: tl.constexpr,
    K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The whole sum of a word of up to K tokens; or one of the two parts of a chunk, if it is of a longer word."""
    program = tl.program_id(0)
    if program < V:
        begin = tl.load(bounds + program)
        end = tl.load(bounds + program + 1)
        wanted = end - begin <= K
        if ONTO:
            wanted = wanted & (begin < end)
        out = total + program.to(tl.int64) * W
    else:
        part = program - V
        chunk = part // 2 * K
        behind = tl.minimum(chunk + K, N)
        later = part % 2 == 1
        word = tl.load(row + tl.where(later, behind - 1, chunk)).to(tl.int32)
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
            if BOTH:
                theirs = token >= F
                g = load_rows(grad, token, column, there & ~theirs[:, None], W)
                token = tl.where(theirs, token - F, token)
                g += load_rows(other_grad, token, column, there & theirs[:, None], W)
                if DROPS:
                    seeds = tl.where(theirs, tl.load(other_seed), tl.load(seed)).to(tl.uint32)
                    g = tl.where(keep_mask(seeds[:, None], token[:, None], column[None, :], chance), g, 0.0)
            else:
                g = load_rows(grad, token, column, there, W)
                if DROPS:
                    seed_value = tl.load(seed).to(tl.uint32)
                    g = tl.where(keep_mask(seed_value, token[:, None], column[None, :], chance), g, 0.0)
            sums += tl.sum(g, 0)
        sums *= growth
        if ONTO:
            there = column < tl.where(program < V, W, 0)  # parts have nothing to be added to
            sums += tl.load(out + column, mask=there, other=0.0)
        tl.store(out + column, sums, mask=inside)


@triton.jit(do_not_specialize=["N", "V"])
def join_parts(
    row, bounds, parts, total, N, V,
    ONTO: tl.constexpr, K: tl.constexpr, W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The sum of the word of more than K tokens that begins in a chunk, if one does."""
    chunk = tl.program_id(0)
    word = tl.load(row + tl.minimum(chunk * K + K, N) - 1).to(tl.int32)
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
        out = total + word.to(tl.int64) * W + column
        if ONTO:
            sums += tl.load(out, mask=inside)
        tl.store(out, sums, mask=inside)
