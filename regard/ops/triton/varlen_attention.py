"""Kernels of `regard.ops.varlen_attention`: tiles of queries against the range of keys that each of them attends to.

Tensors of tokens are token-major, (B, tokens, H, D), with a stride between tokens (`q_t`, ...), so that q, k and v may
be parts of one projection. `out` and `grad` have no gaps. A "row" is one head of one row of the batch.

`first_key` and `end_key` hold the key range of every query, `first_query` and `end_query` the query range of every key,
in rows that are `range_r` apart. If ORDERED, these are positions in the orders `query_order` and `key_order`, which
hold the index of the token at each position.

Weights are computed as powers of two, which is faster than powers of e. `lse` is the base-2 logarithm of the sum of the
exponentiated scores, and `delta` is the product of a query's context and its gradient.

Shapes: M queries and N keys of a tile, D head width.
"""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask

LOG2E = tl.constexpr(1.4426950408889634)
UNSPECIALISED = ["T", "S", "range_r", "threshold"]  # they change from batch to batch, and each would be compiled anew


@triton.jit
def head_start(x, b, h, tokens, stride, D: tl.constexpr):
    """Return the address of the first token of a head."""
    return x + b.to(tl.int64) * tokens * stride + h.to(tl.int64) * D


@triton.jit
def token_pointers(x, index, stride, d):
    """Return the addresses of tokens of a head; 32-bit offsets suffice within a head and save registers."""
    return x + (index[:, None] * stride + d[None, :])


@triton.jit
def load_tokens(x, index, stride, d, mask):
    """Load tokens of a head, zeros where masked."""
    return tl.load(token_pointers(x, index, stride, d), mask=mask[:, None], other=0.0)


@triton.jit
def store_tokens(x, index, stride, d, mask, value):
    """Store tokens of a head."""
    tl.store(token_pointers(x, index, stride, d), value.to(x.dtype.element_ty), mask=mask[:, None])


@triton.jit
def load_ranges(first, end, i, mask, limit):
    """Load the ranges of a tile of tokens, and return them with the range that covers all of them."""
    low = tl.load(first + i, mask=mask, other=0)
    high = tl.load(end + i, mask=mask, other=0)
    return low, high, tl.min(tl.where(low < high, low, limit), 0), tl.max(tl.where(low < high, high, 0), 0)


@triton.jit
def masked_scores(x, y, low, high, j, scale, PRECISION: tl.constexpr):
    """Return the base-2 scores of the tokens x with the tokens y at positions j, -inf outside the range of each x."""
    in_range = (low[:, None] <= j[None, :]) & (j[None, :] < high[:, None])
    scores = tl.dot(x, tl.trans(y), input_precision=PRECISION) * (scale * LOG2E)
    return tl.where(in_range, scores, float("-inf"))


@triton.jit(do_not_specialize=UNSPECIALISED)
def varlen_forward(
    q, k, v, out, lse, first_key, end_key, query_order, key_order, seed, q_t, k_t, v_t, range_r,
    T, S, H, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ORDERED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the context and lse of M queries."""
    row = tl.program_id(0)
    b, h, row64 = row // H, row % H, row.to(tl.int64)
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    is_query = i < T
    low, high, begin, end = load_ranges(first_key + row * range_r, end_key + row * range_r, i, is_query, S)
    query = tl.load(query_order + row64 * T + i, mask=is_query, other=0) if ORDERED else i
    k, v = head_start(k, b, h, S, k_t, D), head_start(v, b, h, S, v_t, D)
    queries = load_tokens(head_start(q, b, h, T, q_t, D), query, q_t, d, is_query)
    seed_value = tl.load(seed).to(tl.uint32) if DROPOUT else 0

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    context = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        is_key = j < end
        key = tl.load(key_order + row64 * S + j, mask=is_key, other=0) if ORDERED else j
        keys, values = load_tokens(k, key, k_t, d, is_key), load_tokens(v, key, v_t, d, is_key)
        scores = masked_scores(queries, keys, low, high, j, scale, PRECISION)
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # -inf while all keys of a query were masked
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            keep = keep_mask(seed_value, (row * T + i)[:, None], j[None, :], threshold)
            weights = tl.where(keep, weights * keep_scale, 0.0)
        context = tl.dot(weights.to(values.dtype), values, context * shrink[:, None], input_precision=PRECISION)
        top = new_top
    has_keys = total > 0
    total = tl.where(has_keys, total, 1.0)
    store_tokens(head_start(out, b, h, T, H * D, D), query, H * D, d, is_query, context / total[:, None])
    tl.store(lse + row64 * T + i, tl.where(has_keys, top + tl.log2(total), 0.0), mask=is_query)


# Backward; the arguments of these functions point to one head


@triton.jit
def compute_delta(out, grads, query, stride, d, mask):
    """Return the product of the context of queries and its gradient."""
    return tl.sum(load_tokens(out, query, stride, d, mask).to(tl.float32) * grads.to(tl.float32), 1)


@triton.jit
def query_gradients(
    q, k, v, out, grad, lse, first_key, end_key, query_order, key_order, seed_value, q_t, k_t, v_t, out_t,
    i, is_query, row, T, S, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ORDERED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Return the indices of M queries, their gradients and deltas, from all keys that any of them attends to."""
    d = tl.arange(0, D)
    low, high, begin, end = load_ranges(first_key, end_key, i, is_query, S)
    query = tl.load(query_order + i, mask=is_query, other=0) if ORDERED else i
    queries, grads = load_tokens(q, query, q_t, d, is_query), load_tokens(grad, query, out_t, d, is_query)
    norm = tl.load(lse + i, mask=is_query, other=0.0)
    delta = compute_delta(out, grads, query, out_t, d, is_query)

    dq = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        is_key = j < end
        key = tl.load(key_order + j, mask=is_key, other=0) if ORDERED else j
        keys, values = load_tokens(k, key, k_t, d, is_key), load_tokens(v, key, v_t, d, is_key)
        weights = tl.exp2(masked_scores(queries, keys, low, high, j, scale, PRECISION) - norm[:, None])
        dweights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        if DROPOUT:
            keep = keep_mask(seed_value, (row * T + i)[:, None], j[None, :], threshold)
            dweights = tl.where(keep, dweights * keep_scale, 0.0)
        dscores = weights * (dweights - delta[:, None])
        dq = tl.dot(dscores.to(keys.dtype), keys, dq, input_precision=PRECISION)
    return query, dq * scale, delta


@triton.jit
def key_gradients(
    q, k, v, out, grad, lse, delta, first_query, end_query, query_order, key_order, seed_value, q_t, k_t, v_t, out_t,
    j, is_key, row, T, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ORDERED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Return the indices of N keys and the gradients of keys and values, from all queries that attend to any of them.

    If `delta` is None, it is computed from `out`.
    """
    d = tl.arange(0, D)
    low, high, begin, end = load_ranges(first_query, end_query, j, is_key, T)
    key = tl.load(key_order + j, mask=is_key, other=0) if ORDERED else j
    keys, values = load_tokens(k, key, k_t, d, is_key), load_tokens(v, key, v_t, d, is_key)

    dk = tl.zeros([N, D], tl.float32)
    dv = tl.zeros([N, D], tl.float32)
    for start in range(begin, end, M):
        i = start + tl.arange(0, M)
        is_query = i < end
        query = tl.load(query_order + i, mask=is_query, other=0) if ORDERED else i
        queries, grads = load_tokens(q, query, q_t, d, is_query), load_tokens(grad, query, out_t, d, is_query)
        norm = tl.load(lse + i, mask=is_query, other=0.0)
        if delta is None:
            deltas = compute_delta(out, grads, query, out_t, d, is_query)
        else:
            deltas = tl.load(delta + i, mask=is_query, other=0.0)
        weights = tl.exp2(masked_scores(keys, queries, low, high, i, scale, PRECISION) - norm[None, :])
        dweights = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
        dropped = weights
        if DROPOUT:
            keep = keep_mask(seed_value, (row * T + i)[None, :], j[:, None], threshold)
            dropped = tl.where(keep, weights * keep_scale, 0.0)
            dweights = tl.where(keep, dweights * keep_scale, 0.0)
        dv = tl.dot(dropped.to(grads.dtype), grads, dv, input_precision=PRECISION)
        dscores = weights * (dweights - deltas[None, :])
        dk = tl.dot(dscores.to(queries.dtype), queries, dk, input_precision=PRECISION)
    return key, dk * scale, dv


@triton.jit
def store_tile_gradients(
    q, k, v, grad, lse, dq, dk, dv, first_key, end_key, seed_value, q_t, k_t, v_t, grad_t, dq_t, dkv_t,
    i, is_query, j, is_key, row, T, scale, threshold, keep_scale,
    D: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Store all gradients of queries and keys that attend to no others; each is stored before the next is computed."""
    d = tl.arange(0, D)
    queries, keys = load_tokens(q, i, q_t, d, is_query), load_tokens(k, j, k_t, d, is_key)
    grads, values = load_tokens(grad, i, grad_t, d, is_query), load_tokens(v, j, v_t, d, is_key)
    low = tl.load(first_key + i, mask=is_query, other=0)
    high = tl.load(end_key + i, mask=is_query, other=0)
    norm = tl.load(lse + i, mask=is_query, other=0.0)
    weights = tl.exp2(masked_scores(queries, keys, low, high, j, scale, PRECISION) - norm[:, None])
    dweights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
    dropped = weights
    if DROPOUT:
        keep = keep_mask(seed_value, (row * T + i)[:, None], j[None, :], threshold)
        dropped = tl.where(keep, weights * keep_scale, 0.0)
        dweights = tl.where(keep, dweights * keep_scale, 0.0)
    dscores = (weights * (dweights - tl.sum(weights * dweights, 1)[:, None])).to(keys.dtype)
    value_grads = tl.dot(tl.trans(dropped.to(grads.dtype)), grads, input_precision=PRECISION)
    store_tokens(dv, j, dkv_t, d, is_key, value_grads)
    store_tokens(dq, i, dq_t, d, is_query, tl.dot(dscores, keys, input_precision=PRECISION) * scale)
    store_tokens(dk, j, dkv_t, d, is_key, tl.dot(tl.trans(dscores), queries, input_precision=PRECISION) * scale)


@triton.jit(do_not_specialize=UNSPECIALISED)
def varlen_backward_sequences(
    q, k, v, out, grad, lse, dq, dkv, first_key, end_key, first_query, end_query, programs, seed,
    q_t, k_t, v_t, dq_t, dkv_t, T, S, H, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute all gradients of the sequences of a program, or its share of them if they do not fit into one tile.

    See `regard.ops.key_ranges.assign_programs` for the table `programs`. The gradient of the values follows that of the
    keys in `dkv`. The end of the row, where padding is one long sequence, is computed first.
    """
    row = tl.program_id(0)
    b, h = row // H, row % H
    program = programs + (tl.num_programs(1) - 1 - tl.program_id(1)) * 6
    q_begin, q_end, k_begin, k_end = tl.load(program), tl.load(program + 1), tl.load(program + 2), tl.load(program + 3)
    share, shares = tl.load(program + 4), tl.load(program + 5)
    d = tl.arange(0, D)
    q, k, v = head_start(q, b, h, T, q_t, D), head_start(k, b, h, S, k_t, D), head_start(v, b, h, S, v_t, D)
    out, grad = head_start(out, b, h, T, H * D, D), head_start(grad, b, h, T, H * D, D)
    dq, dk = head_start(dq, b, h, T, dq_t, D), head_start(dkv, b, h, S, dkv_t, D)
    dv = dk + H * D
    lse += row.to(tl.int64) * T
    seed_value = tl.load(seed).to(tl.uint32) if DROPOUT else 0

    if (q_end - q_begin <= M) & (k_end - k_begin <= N):
        if share == 0:
            i, j = q_begin + tl.arange(0, M), k_begin + tl.arange(0, N)
            store_tile_gradients(
                q, k, v, grad, lse, dq, dk, dv, first_key, end_key, seed_value, q_t, k_t, v_t, H * D, dq_t, dkv_t,
                i, i < q_end, j, j < k_end, row, T, scale, threshold, keep_scale, D, DROPOUT, PRECISION,
            )  # fmt: skip
    else:
        for start in range(q_begin + (shares - 1 - share) * M, q_end, shares * M):
            i = start + tl.arange(0, M)
            is_query = i < q_end
            i, query_grads, _ = query_gradients(
                q, k, v, out, grad, lse, first_key, end_key, None, None, seed_value, q_t, k_t, v_t, H * D,
                i, is_query, row, T, S, scale, threshold, keep_scale, D, M, N // 2, False, DROPOUT, PRECISION,
            )  # fmt: skip
            store_tokens(dq, i, dq_t, d, is_query, query_grads)
        for start in range(k_begin + share * N, k_end, shares * N):
            j = start + tl.arange(0, N)
            is_key = j < k_end
            j, key_grads, value_grads = key_gradients(
                q, k, v, out, grad, lse, None, first_query, end_query, None, None, seed_value, q_t, k_t, v_t, H * D,
                j, is_key, row, T, scale, threshold, keep_scale, D, M // 2, N, False, DROPOUT, PRECISION,
            )  # fmt: skip
            store_tokens(dk, j, dkv_t, d, is_key, key_grads)
            store_tokens(dv, j, dkv_t, d, is_key, value_grads)


@triton.jit(do_not_specialize=UNSPECIALISED)
def varlen_backward_queries(
    q, k, v, out, grad, lse, delta, dq, first_key, end_key, query_order, key_order, seed, q_t, k_t, v_t, dq_t, range_r,
    T, S, H, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ORDERED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the gradients of M queries, and their deltas for `varlen_backward_keys`."""
    row = tl.program_id(0)
    b, h, row64 = row // H, row % H, row.to(tl.int64)
    i = tl.program_id(1) * M + tl.arange(0, M)
    is_query = i < T
    query, query_grads, deltas = query_gradients(
        head_start(q, b, h, T, q_t, D), head_start(k, b, h, S, k_t, D), head_start(v, b, h, S, v_t, D),
        head_start(out, b, h, T, H * D, D), head_start(grad, b, h, T, H * D, D),
        lse + row64 * T, first_key + row * range_r, end_key + row * range_r,
        query_order + row64 * T if ORDERED else None, key_order + row64 * S if ORDERED else None,
        tl.load(seed).to(tl.uint32) if DROPOUT else 0, q_t, k_t, v_t, H * D,
        i, is_query, row, T, S, scale, threshold, keep_scale, D, M, N, ORDERED, DROPOUT, PRECISION,
    )  # fmt: skip
    tl.store(delta + row64 * T + i, deltas, mask=is_query)
    store_tokens(head_start(dq, b, h, T, dq_t, D), query, dq_t, tl.arange(0, D), is_query, query_grads)


@triton.jit(do_not_specialize=UNSPECIALISED)
def varlen_backward_keys(
    q, k, v, grad, lse, delta, dkv, first_query, end_query, query_order, key_order, seed, q_t, k_t, v_t, dkv_t, range_r,
    T, S, H, scale, threshold, keep_scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ORDERED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the gradients of N keys and their values."""
    row = tl.program_id(0)
    b, h, row64 = row // H, row % H, row.to(tl.int64)
    d = tl.arange(0, D)
    j = tl.program_id(1) * N + tl.arange(0, N)
    is_key = j < S
    key, key_grads, value_grads = key_gradients(
        head_start(q, b, h, T, q_t, D), head_start(k, b, h, S, k_t, D), head_start(v, b, h, S, v_t, D),
        None, head_start(grad, b, h, T, H * D, D),
        lse + row64 * T, delta + row64 * T, first_query + row * range_r, end_query + row * range_r,
        query_order + row64 * T if ORDERED else None, key_order + row64 * S if ORDERED else None,
        tl.load(seed).to(tl.uint32) if DROPOUT else 0, q_t, k_t, v_t, H * D,
        j, is_key, row, T, scale, threshold, keep_scale, D, M, N, ORDERED, DROPOUT, PRECISION,
    )  # fmt: skip
    dk = head_start(dkv, b, h, S, dkv_t, D)
    store_tokens(dk, key, dkv_t, d, is_key, key_grads)
    store_tokens(dk + H * D, key, dkv_t, d, is_key, value_grads)
