"""Kernels of a decoding step: attention of few queries (`regard.ops.decode_attention`), and writes to the KV cache."""

import triton
import triton.language as tl

from regard.ops.triton.varlen_attention import LOG2E, head_start, load_tokens, store_tokens


@triton.jit(do_not_specialize=["lengths_b", "T", "S", "allowed_b", "allowed_h", "allowed_t", "allowed_s"])
def decode_attention(
    q, k, v, out, lengths, allowed, q_t, kv_b, kv_h, kv_t, allowed_b, allowed_h, allowed_t, allowed_s, lengths_b,
    T, S, H, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PADDED: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the context of M queries of one head of one row, with N keys at a time.

    q and out are token-major; k and v share their strides.
    """
    row = tl.program_id(0)
    b, h = row // H, row % H
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    is_query = i < T
    end = S
    if PADDED:
        end = tl.minimum(tl.load(lengths + b * lengths_b).to(tl.int32), S)
    queries = load_tokens(head_start(q, b, h, T, q_t, D), i, q_t, d, is_query)
    head = b.to(tl.int64) * kv_b + h.to(tl.int64) * kv_h

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    context = tl.zeros([M, D], tl.float32)
    for start in range(0, end, N):
        j = start + tl.arange(0, N)
        is_key = j < end
        keys, values = load_tokens(k + head, j, kv_t, d, is_key), load_tokens(v + head, j, kv_t, d, is_key)
        visible = is_query[:, None] & is_key[None, :]
        if MASKED:
            entry = allowed + b.to(tl.int64) * allowed_b + h.to(tl.int64) * allowed_h
            entry += i[:, None] * allowed_t + j[None, :] * allowed_s
            visible = visible & (tl.load(entry, mask=visible, other=0) != 0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2E)
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # -inf while all keys of a query were masked
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        context = tl.dot(weights.to(values.dtype), values, context * shrink[:, None], input_precision=PRECISION)
        top = new_top
    context = context / tl.where(total > 0, total, 1.0)[:, None]
    store_tokens(head_start(out, b, h, T, H * D, D), i, H * D, d, is_query, context)


@triton.jit
def append_to_cache(
    k, v, buffer, step, k_b, k_h, k_t, v_b, v_h, v_t, b_v, b_b, b_h, b_t, K, H, D: tl.constexpr, KP: tl.constexpr
):  # fmt: skip
    """Store the K keys and values of one head of one sentence."""
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    i, d = tl.arange(0, KP), tl.arange(0, D)
    mask = (i < K)[:, None] & (d < D)[None, :]
    new_k = tl.load(k + b.to(tl.int64) * k_b + h * k_h + i[:, None] * k_t + d[None, :], mask=mask)
    new_v = tl.load(v + b.to(tl.int64) * v_b + h * v_h + i[:, None] * v_t + d[None, :], mask=mask)
    offset = (tl.load(step) * K + i)[:, None] * b_t + d[None, :]
    start = buffer + b.to(tl.int64) * b_b + h.to(tl.int64) * b_h
    tl.store(start + offset, new_k, mask=mask)
    tl.store(start + b_v + offset, new_v, mask=mask)
