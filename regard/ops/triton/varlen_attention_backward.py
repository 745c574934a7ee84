"""The kernels of `short` on the way back.

`whole_backward` has programs for whole sequences: where those of a program fit into one tile, all of their gradients
come from one look at them. `backward_queries` and `backward_keys`, tile by tile, are for runs without sequences.

Shapes and names as in short_triton; `first` and `last` say between which places of its row the queries of a key stand.
`delta` is the product of a query's context and its gradient, which is the sum of its weights times their changes.
"""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask
from regard.ops.triton.varlen_attention import UNSPECIALISED, find_reach, head, read, score, tokens


@triton.jit
def find_delta(out, grads, i, o_t, d, real):
    """Of these queries, from their context."""
    return tl.sum(read(out, i, o_t, d, real).to(tl.float32) * grads.to(tl.float32), 1)


@triton.jit
def differentiate_queries(
    q, k, v, out, grad, lse, lo, hi, q_at, k_at, seed_value, q_t, k_t, v_t, o_t, g_t,
    i, real, row, T, S, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Where M queries of a head lie, their gradient, and their delta; from all keys that one of them sees."""
    d = tl.arange(0, D)
    low, high, begin, end = find_reach(lo, hi, i, real, S)
    at = tl.load(q_at + i, mask=real, other=0) if MOVED else i
    queries, grads = read(q, at, q_t, d, real), read(grad, at, g_t, d, real)
    norm = tl.load(lse + i, mask=real, other=0.0)
    delta = find_delta(out, grads, at, o_t, d, real)

    total = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        there = j < end
        key_at = tl.load(k_at + j, mask=there, other=0) if MOVED else j
        keys, values = read(k, key_at, k_t, d, there), read(v, key_at, v_t, d, there)
        weights = tl.exp2(score(queries, keys, low, high, j, scale, PRECISION) - norm[:, None])
        change = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        if DROPS:
            change = tl.where(keep_mask(seed_value, (row * T + i)[:, None], j[None, :], chance), change * growth, 0.0)
        change = weights * (change - delta[:, None])
        total = tl.dot(change.to(keys.dtype), keys, total, input_precision=PRECISION)
    return at, total * scale, delta


@triton.jit
def differentiate_keys(
    q, k, v, out, grad, lse, delta, first, last, q_at, k_at, seed_value, q_t, k_t, v_t, o_t, g_t,
    j, real, row, T, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Where N keys of a head lie, and their gradients and those of their values; from all queries that see one of them.

    Deltas come from `out` where they have not been kept.
    """
    d = tl.arange(0, D)
    low, high, begin, end = find_reach(first, last, j, real, T)
    key_at = tl.load(k_at + j, mask=real, other=0) if MOVED else j
    keys, values = read(k, key_at, k_t, d, real), read(v, key_at, v_t, d, real)

    of_keys = tl.zeros([N, D], tl.float32)
    of_values = tl.zeros([N, D], tl.float32)
    for start in range(begin, end, M):
        i = start + tl.arange(0, M)
        there = i < end
        at = tl.load(q_at + i, mask=there, other=0) if MOVED else i
        queries, grads = read(q, at, q_t, d, there), read(grad, at, g_t, d, there)
        norm = tl.load(lse + i, mask=there, other=0.0)
        if delta is None:
            products = find_delta(out, grads, at, o_t, d, there)
        else:
            products = tl.load(delta + i, mask=there, other=0.0)
        weights = tl.exp2(score(keys, queries, low, high, i, scale, PRECISION) - norm[None, :])
        change = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
        left = weights
        if DROPS:
            keep = keep_mask(seed_value, (row * T + i)[None, :], j[:, None], chance)
            left = tl.where(keep, weights * growth, 0.0)
            change = tl.where(keep, change * growth, 0.0)
        of_values = tl.dot(left.to(grads.dtype), grads, of_values, input_precision=PRECISION)
        change = weights * (change - products[None, :])
        of_keys = tl.dot(change.to(queries.dtype), queries, of_keys, input_precision=PRECISION)
    return key_at, of_keys * scale, of_values


@triton.jit
def differentiate_together(
    q, k, v, grad, lse, dq, dk, dv, lo, hi, seed_value, q_t, k_t, v_t, g_t, dq_t, dk_t, dv_t,
    i, real, j, there, row, T, scale, chance, growth,
    D: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Stores the gradients of queries, keys and values that see none but each other, each before the next is made."""
    d = tl.arange(0, D)
    queries, keys = read(q, i, q_t, d, real), read(k, j, k_t, d, there)
    grads, values = read(grad, i, g_t, d, real), read(v, j, v_t, d, there)
    low = tl.load(lo + i, mask=real, other=0)
    high = tl.load(hi + i, mask=real, other=0)
    norm = tl.load(lse + i, mask=real, other=0.0)
    weights = tl.exp2(score(queries, keys, low, high, j, scale, PRECISION) - norm[:, None])
    change = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
    left = weights
    if DROPS:
        keep = keep_mask(seed_value, (row * T + i)[:, None], j[None, :], chance)
        left = tl.where(keep, weights * growth, 0.0)
        change = tl.where(keep, change * growth, 0.0)
    change = (weights * (change - tl.sum(weights * change, 1)[:, None])).to(keys.dtype)
    of_values = tl.dot(tl.trans(left.to(grads.dtype)), grads, input_precision=PRECISION)
    tl.store(tokens(dv, j, dv_t, d), of_values.to(dv.dtype.element_ty), mask=there[:, None])
    of_queries = tl.dot(change, keys, input_precision=PRECISION) * scale
    tl.store(tokens(dq, i, dq_t, d), of_queries.to(dq.dtype.element_ty), mask=real[:, None])
    of_keys = tl.dot(tl.trans(change), queries, input_precision=PRECISION) * scale
    tl.store(tokens(dk, j, dk_t, d), of_keys.to(dk.dtype.element_ty), mask=there[:, None])


@triton.jit
def find_share(slots):
    """What a program of a packed row has to do, see `runs.share_out`.

    The end of the row goes first: there stand the longest sequences, of padding, where there are any.
    """
    slot = slots + (tl.num_programs(1) - 1 - tl.program_id(1)) * 6
    queries, keys = tl.load(slot), tl.load(slot + 2)
    return queries, tl.load(slot + 1), keys, tl.load(slot + 3), tl.load(slot + 4), tl.load(slot + 5)


@triton.jit(do_not_specialize=UNSPECIALISED)
def whole_backward(
    q, k, v, out, grad, lse, dq, dk, dv, lo, hi, first, last, slots, seed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, g_b, g_h, g_t,
    dq_b, dq_h, dq_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    T, S, H, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of a slot's sequences, or this slot's share of them where they do not fit into one tile."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    q_begin, q_end, k_begin, k_end, part, sharing = find_share(slots)
    d = tl.arange(0, D)
    q, k, v = head(q, b, h, q_b, q_h), head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h)
    out, grad = head(out, b, h, o_b, o_h), head(grad, b, h, g_b, g_h)
    dq, dk, dv = head(dq, b, h, dq_b, dq_h), head(dk, b, h, dk_b, dk_h), head(dv, b, h, dv_b, dv_h)
    lse += row.to(tl.int64) * T
    seed_value = tl.load(seed).to(tl.uint32) if DROPS else 0

    if (q_end - q_begin <= M) & (k_end - k_begin <= N):
        if part == 0:
            i, j = q_begin + tl.arange(0, M), k_begin + tl.arange(0, N)
            differentiate_together(
                q, k, v, grad, lse, dq, dk, dv, lo, hi, seed_value, q_t, k_t, v_t, g_t, dq_t, dk_t, dv_t,
                i, i < q_end, j, j < k_end, row, T, scale, chance, growth, D, DROPS, PRECISION,
            )  # fmt: skip
    else:
        for start in range(q_begin + (sharing - 1 - part) * M, q_end, sharing * M):
            i = start + tl.arange(0, M)
            real = i < q_end
            i, of_queries, _ = differentiate_queries(
                q, k, v, out, grad, lse, lo, hi, None, None, seed_value, q_t, k_t, v_t, o_t, g_t,
                i, real, row, T, S, scale, chance, growth, D, M, N // 2, False, DROPS, PRECISION,
            )  # fmt: skip
            tl.store(tokens(dq, i, dq_t, d), of_queries.to(dq.dtype.element_ty), mask=real[:, None])
        for start in range(k_begin + part * N, k_end, sharing * N):
            j = start + tl.arange(0, N)
            there = j < k_end
            j, of_keys, of_values = differentiate_keys(
                q, k, v, out, grad, lse, None, first, last, None, None, seed_value, q_t, k_t, v_t, o_t, g_t,
                j, there, row, T, scale, chance, growth, D, M // 2, N, False, DROPS, PRECISION,
            )  # fmt: skip
            tl.store(tokens(dk, j, dk_t, d), of_keys.to(dk.dtype.element_ty), mask=there[:, None])
            tl.store(tokens(dv, j, dv_t, d), of_values.to(dv.dtype.element_ty), mask=there[:, None])


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_queries(
    q, k, v, out, grad, lse, delta, dq, lo, hi, q_at, k_at, seed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, g_b, g_h, g_t, dq_b, dq_h, dq_t, lo_r,
    T, S, H, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of M queries; and their delta, for the keys' turn."""
    row = tl.program_id(0)
    b, h, far = row // H, row % H, row.to(tl.int64)
    i = tl.program_id(1) * M + tl.arange(0, M)
    real = i < T
    at, of_queries, products = differentiate_queries(
        head(q, b, h, q_b, q_h), head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h),
        head(out, b, h, o_b, o_h), head(grad, b, h, g_b, g_h), lse + far * T, lo + row * lo_r, hi + row * lo_r,
        q_at + far * T if MOVED else None, k_at + far * S if MOVED else None,
        tl.load(seed).to(tl.uint32) if DROPS else 0,
        q_t, k_t, v_t, o_t, g_t, i, real, row, T, S, scale, chance, growth, D, M, N, MOVED, DROPS, PRECISION,
    )  # fmt: skip
    tl.store(delta + far * T + i, products, mask=real)
    place = tokens(head(dq, b, h, dq_b, dq_h), at, dq_t, tl.arange(0, D))
    tl.store(place, of_queries.to(dq.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_keys(
    q, k, v, grad, lse, delta, dk, dv, first, last, q_at, k_at, seed,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, first_r,
    T, S, H, scale, chance, growth,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MOVED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of N keys and their values."""
    row = tl.program_id(0)
    b, h, far = row // H, row % H, row.to(tl.int64)
    d = tl.arange(0, D)
    j = tl.program_id(1) * N + tl.arange(0, N)
    real = j < S
    at, of_keys, of_values = differentiate_keys(
        head(q, b, h, q_b, q_h), head(k, b, h, k_b, k_h), head(v, b, h, v_b, v_h), None, head(grad, b, h, g_b, g_h),
        lse + far * T, delta + far * T, first + row * first_r, last + row * first_r,
        q_at + far * T if MOVED else None, k_at + far * S if MOVED else None,
        tl.load(seed).to(tl.uint32) if DROPS else 0,
        q_t, k_t, v_t, 0, g_t, j, real, row, T, scale, chance, growth, D, M, N, MOVED, DROPS, PRECISION,
    )  # fmt: skip
    tl.store(tokens(head(dk, b, h, dk_b, dk_h), at, dk_t, d), of_keys.to(dk.dtype.element_ty), mask=real[:, None])
    tl.store(tokens(head(dv, b, h, dv_b, dv_h), at, dv_t, d), of_values.to(dv.dtype.element_ty), mask=real[:, None])
