"""The kernel of `few`: M queries of one head of one row against its keys, N at a time.

Weights are powers of two, which a GPU is quick to raise.
"""

import triton
import triton.language as tl

from regard.ops.triton.varlen_attention import LOG2E, rows


@triton.jit(do_not_specialize=["l_b", "T", "S", "a_b", "a_h", "a_t", "a_s"])
def attend(
    q, k, v, out, lengths, allowed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, a_b, a_h, a_t, a_s,
    l_b, T, S, H, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    COUNTED: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The context of these queries."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    real = i < T
    end = S
    if COUNTED:
        end = tl.minimum(tl.load(lengths + b * l_b).to(tl.int32), S)
    queries = tl.load(rows(q, b, h, i, q_b, q_h, q_t, d), mask=real[:, None], other=0.0)

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    context = tl.zeros([M, D], tl.float32)
    for start in range(0, end, N):
        j = start + tl.arange(0, N)
        there = j < end
        keys = tl.load(rows(k, b, h, j, k_b, k_h, k_t, d), mask=there[:, None], other=0.0)
        values = tl.load(rows(v, b, h, j, v_b, v_h, v_t, d), mask=there[:, None], other=0.0)
        sees = real[:, None] & there[None, :]
        if MASKED:
            place = allowed + b.to(tl.int64) * a_b + h.to(tl.int64) * a_h + i[:, None] * a_t + j[None, :] * a_s
            sees = sees & (tl.load(place, mask=sees, other=0) != 0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2E)
        scores = tl.where(sees, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        context = tl.dot(weights.to(values.dtype), values, context * shrink[:, None], input_precision=PRECISION)
        top = higher
    context = context / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(rows(out, b, h, i, o_b, o_h, o_t, d), context.to(out.dtype.element_ty), mask=real[:, None])
