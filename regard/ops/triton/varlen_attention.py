"""The forward kernel of `short`: tiles of queries against the keys that they see.

Shapes: M queries and N keys of a tile, D head width. A "row" is one head of one row of the batch. `lo` and `hi` say
between which places of its row a query's keys stand. Where MOVED, `q_at` and `k_at` say where in memory the token of
each place lies. Weights are powers of two, which a GPU is quick to raise.
"""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask

LOG2E = tl.constexpr(1.4426950408889634)
UNSPECIALISED = ["T", "S", "lo_r", "first_r", "chance"]  # which change from batch to batch; each would be compiled anew


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
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    real = i < T
    low, high, begin, end = find_reach(lo + row * lo_r, hi + row * lo_r, i, real, S)
    at = tl.load(q_at + far * T + i, mask=real, other=0) if MOVED else i
    k, v = head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h)
    queries = read(head(q, b, h, q_b, q_h), at, q_t, d, real)
    seed_value = tl.load(seed).to(tl.uint32) if DROPS else 0

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    context = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        there = j < end
        key_at = tl.load(k_at + far * S + j, mask=there, other=0) if MOVED else j
        keys, values = read(k, key_at, k_t, d, there), read(v, key_at, v_t, d, there)
        scores = score(queries, keys, low, high, j, scale, PRECISION)
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(keep_mask(seed_value, (row * T + i)[:, None], j[None, :], chance), weights * growth, 0.0)
        context = tl.dot(weights.to(values.dtype), values, context * shrink[:, None], input_precision=PRECISION)
        top = higher
    some = total > 0
    total = tl.where(some, total, 1.0)
    place = tokens(head(out, b, h, o_b, o_h), at, o_t, d)
    tl.store(place, (context / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + far * T + i, tl.where(some, top + tl.log2(total), 0.0), mask=real)
