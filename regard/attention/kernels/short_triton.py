"""The forward kernels of `short`: tiles of queries against the keys that they see.

`whole_forward` has programs for whole sequences: those that fit into one tile need no second look at anything. In
`forward`, tiles are cut from the row, for runs that know of no sequences.

Shapes: M queries and N keys of a tile, D head width. A "row" is one head of one row of the batch. `lo` and `hi` say
between which places of its row a query's keys stand. Where MOVED, `q_at` and `k_at` say where in memory the token of
each place lies. Weights are powers of two, which a GPU is quick to raise.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
UNSPECIALISED = ["T", "S", "lo_r", "first_r", "chance"]  # which change from batch to batch; each would be compiled anew


@triton.jit
def mix(x):
    """A permutation of the 32-bit numbers that looks like chance."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(seed, query, key, chance):
    """Which weights dropout leaves; the same for the same seed and places, whatever the tile."""
    start = mix(query.to(tl.uint32) ^ seed)
    return (mix(start + key.to(tl.uint32) * 0x9E3779B9) >> 8).to(tl.int32) >= chance


@triton.jit
def head(x, b, h, of_b, of_h):
    """Where a head begins."""
    return x + b.to(tl.int64) * of_b + h.to(tl.int64) * of_h


@triton.jit
def tokens(x, at, of_t, d):
    """Where the tokens at these places of a head lie; 32 bits are enough within a head and take few registers."""
    return x + (at[:, None] * of_t + d[None, :])


@triton.jit
def rows(x, b, h, at, of_b, of_h, of_t, d):
    """Where the tokens at these places of one head lie."""
    return tokens(head(x, b, h, of_b, of_h), at, of_t, d)


@triton.jit
def read(x, at, of_t, d, there):
    """The tokens at these places of a head, zeros for those that are not there."""
    return tl.load(tokens(x, at, of_t, d), mask=there[:, None], other=0.0)


@triton.jit
def find_reach(lo, hi, i, real, most):
    """Between which places each of these sees, and between which any of them does; none is beyond the most."""
    low = tl.load(lo + i, mask=real, other=0)
    high = tl.load(hi + i, mask=real, other=0)
    return low, high, tl.min(tl.where(low < high, low, most), 0), tl.max(tl.where(low < high, high, 0), 0)


@triton.jit
def score(queries, keys, low, high, j, scale, PRECISION: tl.constexpr):
    """Of queries and the keys at these places, to the base 2; of keys and their queries likewise."""
    sees = (low[:, None] <= j[None, :]) & (j[None, :] < high[:, None])
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2E)
    return tl.where(sees, scores, float("-inf"))


@triton.jit
def attend_tile(
    q, k, v, lo, hi, q_at, k_at, seed_value, q_t, k_t, v_t, i, real, row, T, S, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Where M queries of a head lie, their context, and the logarithm of their sum of weights."""
    d = tl.arange(0, D)
    low, high, begin, end = find_reach(lo, hi, i, real, S)
    at = tl.load(q_at + i, mask=real, other=0) if MOVED else i
    queries = read(q, at, q_t, d, real)

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    context = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        there = j < end
        key_at = tl.load(k_at + j, mask=there, other=0) if MOVED else j
        keys, values = read(k, key_at, k_t, d, there), read(v, key_at, v_t, d, there)
        scores = score(queries, keys, low, high, j, scale, PRECISION)
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(kept(seed_value, (row * T + i)[:, None], j[None, :], chance), weights * growth, 0.0)
        context = tl.dot(weights.to(values.dtype), values, context * shrink[:, None], input_precision=PRECISION)
        top = higher
    some = total > 0
    total = tl.where(some, total, 1.0)
    return at, context / total[:, None], tl.where(some, top + tl.log2(total), 0.0)


@triton.jit
def attend_together(
    q, k, v, lo, hi, seed_value, q_t, k_t, v_t, i, real, j, there, row, T, scale, chance, growth,
    D: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of queries that see none but these keys, all of them in one tile."""
    d = tl.arange(0, D)
    queries, keys, values = read(q, i, q_t, d, real), read(k, j, k_t, d, there), read(v, j, v_t, d, there)
    low = tl.load(lo + i, mask=real, other=0)
    high = tl.load(hi + i, mask=real, other=0)
    scores = score(queries, keys, low, high, j, scale, PRECISION)
    top = tl.where(low < high, tl.max(scores, 1), 0.0)
    weights = tl.exp2(scores - top[:, None])
    total = tl.where(low < high, tl.sum(weights, 1), 1.0)
    if DROPS:
        weights = tl.where(kept(seed_value, (row * T + i)[:, None], j[None, :], chance), weights * growth, 0.0)
    context = tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return context / total[:, None], top + tl.log2(total)


@triton.jit
def find_share(slots):
    """What a program of a packed row has to do, and which slot that is, see `runs.share_out`.

    The end of the row goes first: there stand the longest sequences, of padding, where there are any.
    """
    number = tl.num_programs(1) - 1 - tl.program_id(1)
    slot = slots + number * 6
    queries, keys = tl.load(slot), tl.load(slot + 2)
    return number, queries, tl.load(slot + 1), keys, tl.load(slot + 3), tl.load(slot + 4), tl.load(slot + 5)


@triton.jit(do_not_specialize=UNSPECIALISED)
def whole_forward(
    q, k, v, out, lse, lo, hi, slots, seed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    T, S, H, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Context and logarithm of the sum of weights of a slot's sequences, or of this slot's share of them."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    _, q_begin, q_end, k_begin, k_end, part, sharing = find_share(slots)
    d = tl.arange(0, D)
    q, k, v = head(q, b, h, q_b, q_h), head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h)
    out = head(out, b, h, o_b, o_h)
    lse += row.to(tl.int64) * T
    seed_value = tl.load(seed).to(tl.uint32) if DROPS else 0

    if (q_end - q_begin <= M) & (k_end - k_begin <= N):
        if part == 0:
            i, j = q_begin + tl.arange(0, M), k_begin + tl.arange(0, N)
            real = i < q_end
            context, norm = attend_together(
                q, k, v, lo, hi, seed_value, q_t, k_t, v_t, i, real, j, j < k_end,
                row, T, scale, chance, growth, D, DROPS, PRECISION,
            )  # fmt: skip
            tl.store(tokens(out, i, o_t, d), context.to(out.dtype.element_ty), mask=real[:, None])
            tl.store(lse + i, norm, mask=real)
    else:
        for start in range(q_begin + part * M, q_end, sharing * M):
            i = start + tl.arange(0, M)
            real = i < q_end
            i, context, norm = attend_tile(
                q, k, v, lo, hi, None, None, seed_value, q_t, k_t, v_t, i, real,
                row, T, S, scale, chance, growth, D, M, N // 2, False, DROPS, PRECISION,
            )  # fmt: skip
            tl.store(tokens(out, i, o_t, d), context.to(out.dtype.element_ty), mask=real[:, None])
            tl.store(lse + i, norm, mask=real)


@triton.jit(do_not_specialize=UNSPECIALISED)
def forward(
    q, k, v, out, lse, lo, hi, q_at, k_at, seed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, lo_r,
    T, S, H, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Context and logarithm of the sum of weights of M queries."""
    row = tl.program_id(0)
    b, h, far = row // H, row % H, row.to(tl.int64)
    i = tl.program_id(1) * M + tl.arange(0, M)
    real = i < T
    at, context, norm = attend_tile(
        head(q, b, h, q_b, q_h), head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h), lo + row * lo_r, hi + row * lo_r,
        q_at + far * T if MOVED else None, k_at + far * S if MOVED else None,
        tl.load(seed).to(tl.uint32) if DROPS else 0,
        q_t, k_t, v_t, i, real, row, T, S, scale, chance, growth, D, M, N, MOVED, DROPS, PRECISION,
    )  # fmt: skip
    place = tokens(head(out, b, h, o_b, o_h), at, o_t, tl.arange(0, D))
    tl.store(place, context.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + far * T + i, norm, mask=real)
