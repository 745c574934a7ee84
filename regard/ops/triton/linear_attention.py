"""The kernels of `linear`: a program takes one stretch of a row, C tokens at a time, with the running sum in registers.

Shapes: D head width, C tokens of a chunk; a "row" is one head of one sequence of the batch, n stretches of a row. The
sums of a stretch are D · D + D numbers, Σ φ(k) vᵀ and then Σ φ(k); slot 0 of a row holds none, slot n all.
"""

import triton
import triton.language as tl

UNSPECIALISED = ["T", "S", "n"]


@triton.jit
def features(x, factor, there, ELU: tl.constexpr):
    """φ of C tokens, in the precision in which products are taken; nothing where there is no token."""
    y = x.to(tl.float32) * factor
    if ELU:
        y = tl.where(y > 0, y + 1, tl.exp(tl.minimum(y, 0.0)))
    return tl.where(there[:, None], y, 0.0).to(x.dtype)


@triton.jit
def slope(x, factor, ELU: tl.constexpr):
    """The derivative of φ."""
    y = x.to(tl.float32) * factor
    return tl.exp(tl.minimum(y, 0.0)) * factor if ELU else tl.zeros_like(y) + factor


@triton.jit
def tokens(x, row, H, i, of_b, of_h, of_t, there, D: tl.constexpr):
    """C tokens of one head."""
    start = x + (row // H).to(tl.int64) * of_b + (row % H).to(tl.int64) * of_h
    return tl.load(start + (i[:, None] * of_t + tl.arange(0, D)[None, :]), mask=there[:, None], other=0.0)


@triton.jit
def put(x, value, row, H, i, of_b, of_h, of_t, there, D: tl.constexpr):
    """Writes C tokens of one head."""
    start = x + (row // H).to(tl.int64) * of_b + (row % H).to(tl.int64) * of_h
    place = start + (i[:, None] * of_t + tl.arange(0, D)[None, :])
    tl.store(place, value.to(x.dtype.element_ty), mask=there[:, None])


@triton.jit
def slot(sums, row, n, at, D: tl.constexpr):
    """Where the sums of a stretch lie."""
    return sums + (row.to(tl.int64) * (n + 1) + at) * (D * D + D)


@triton.jit
def square(D: tl.constexpr):
    """Where, from there, products of features and values."""
    return tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def line(D: tl.constexpr):
    """Where, from there, features alone."""
    return D * D + tl.arange(0, D)


@triton.jit
def limit(lengths, row, H, S, PADDED: tl.constexpr):
    """How many keys of the row are real."""
    return tl.minimum(tl.load(lengths + row // H).to(tl.int32), S) if PADDED else S


@triton.jit
def upstream(
    grad, out, total, row, H, T, i, g_b, g_h, g_t, o_b, o_h, o_t, there, D: tl.constexpr, DIVIDES: tl.constexpr
):
    """The gradients of a context before it was divided, and of what it was divided by."""
    change = tokens(grad, row, H, i, g_b, g_h, g_t, there, D)
    if not DIVIDES:
        return change, tl.zeros_like(tl.sum(change.to(tl.float32), 1))
    context = tokens(out, row, H, i, o_b, o_h, o_t, there, D)
    by = tl.load(total + row.to(tl.int64) * T + i, mask=there, other=1.0)
    wide = change.to(tl.float32)
    return (wide / by[:, None]).to(change.dtype), -tl.sum(wide * context.to(tl.float32), 1) / by


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_keys(
    k, v, sums, lengths, k_b, k_h, k_t, v_b, v_h, v_t, S, H, k_factor, n, stretch,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of one stretch of keys, into the slot behind its own."""
    row, part = tl.program_id(0), tl.program_id(1)
    real = limit(lengths, row, H, S, PADDED)
    products = tl.zeros([D, D], tl.float32)
    alone = tl.zeros([D], tl.float32)
    for start in range(part * stretch, tl.minimum(part * stretch + stretch, real), C):
        j = start + tl.arange(0, C)
        there = j < real
        phi = features(tokens(k, row, H, j, k_b, k_h, k_t, there, D), k_factor, there, ELU)
        values = tokens(v, row, H, j, v_b, v_h, v_t, there, D)
        products = tl.dot(tl.trans(phi), values, products, input_precision=PRECISION)
        alone += tl.sum(phi.to(tl.float32), 0)
    here = slot(sums, row, n, part + 1, D)
    tl.store(here + square(D), products)
    tl.store(here + line(D), alone)


@triton.jit(do_not_specialize=["n"])
def add_up(sums, n, D: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    """Every slot of a row becomes the sum of those up to it, W numbers of each at a time; slot 0 becomes zero."""
    i = tl.arange(0, P)[:, None]
    e = tl.program_id(1) * W + tl.arange(0, W)[None, :]
    there = (i <= n) & (e < D * D + D)
    at = slot(sums, tl.program_id(0), n, 0, D) + i * (D * D + D) + e
    tl.store(at, tl.cumsum(tl.load(at, mask=there & (i > 0), other=0.0), 0), mask=there)


@triton.jit(do_not_specialize=UNSPECIALISED)
def read(
    q, k, v, out, total, sums, lengths, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    T, S, H, q_factor, k_factor, n, stretch,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The context of one stretch of queries, and what it was divided by."""
    row, part = tl.program_id(0), tl.program_id(1)
    real = limit(lengths, row, H, S, PADDED)
    here = slot(sums, row, n, part if CAUSAL else n, D)
    products = tl.load(here + square(D))
    alone = tl.load(here + line(D))
    for start in range(part * stretch, tl.minimum(part * stretch + stretch, T), C):
        i = start + tl.arange(0, C)
        there = i < T
        phi_q = features(tokens(q, row, H, i, q_b, q_h, q_t, there, D), q_factor, there, ELU)
        context = tl.dot(phi_q, products.to(phi_q.dtype), input_precision=PRECISION)
        by = tl.sum(phi_q.to(tl.float32) * alone[None, :], 1)
        if CAUSAL:
            seen = i < real
            phi_k = features(tokens(k, row, H, i, k_b, k_h, k_t, seen, D), k_factor, seen, ELU)
            values = tokens(v, row, H, i, v_b, v_h, v_t, seen, D)
            scores = tl.dot(phi_q, tl.trans(phi_k), input_precision=PRECISION)
            scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
            context = tl.dot(scores.to(values.dtype), values, context, input_precision=PRECISION)
            by += tl.sum(scores, 1)
            products = tl.dot(tl.trans(phi_k), values, products, input_precision=PRECISION)
            alone += tl.sum(phi_k.to(tl.float32), 0)
        if DIVIDES:
            by = tl.where(by == 0, 1.0, by)
            context = context / by[:, None]
            tl.store(total + row.to(tl.int64) * T + i, by, mask=there)
        put(out, context, row, H, i, o_b, o_h, o_t, there, D)


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_queries(
    q, k, v, out, grad, total, sums, lengths, dq, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    g_b, g_h, g_t, dq_b, dq_h, dq_t, T, S, H, q_factor, k_factor, n, stretch,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of one stretch of queries."""
    row, part = tl.program_id(0), tl.program_id(1)
    real = limit(lengths, row, H, S, PADDED)
    here = slot(sums, row, n, part if CAUSAL else n, D)
    products = tl.load(here + square(D))
    alone = tl.load(here + line(D))
    for start in range(part * stretch, tl.minimum(part * stretch + stretch, T), C):
        i = start + tl.arange(0, C)
        there = i < T
        change, of_total = upstream(
            grad, out, total, row, H, T, i, g_b, g_h, g_t, o_b, o_h, o_t, there, D, DIVIDES
        )  # fmt: skip
        of_phi = tl.dot(change, tl.trans(products).to(change.dtype), input_precision=PRECISION)
        of_phi += of_total[:, None] * alone[None, :]
        if CAUSAL:
            seen = i < real
            phi_k = features(tokens(k, row, H, i, k_b, k_h, k_t, seen, D), k_factor, seen, ELU)
            values = tokens(v, row, H, i, v_b, v_h, v_t, seen, D)
            of_scores = tl.dot(change, tl.trans(values), input_precision=PRECISION) + of_total[:, None]
            of_scores = tl.where(i[:, None] >= i[None, :], of_scores, 0.0)
            of_phi = tl.dot(of_scores.to(phi_k.dtype), phi_k, of_phi, input_precision=PRECISION)
            products = tl.dot(tl.trans(phi_k), values, products, input_precision=PRECISION)
            alone += tl.sum(phi_k.to(tl.float32), 0)
        x = tokens(q, row, H, i, q_b, q_h, q_t, there, D)
        put(dq, of_phi * slope(x, q_factor, ELU), row, H, i, dq_b, dq_h, dq_t, there, D)


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_queries(
    q, out, grad, total, sums, q_b, q_h, q_t, o_b, o_h, o_t, g_b, g_h, g_t, T, H, q_factor, n, stretch,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, DIVIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one stretch of queries sends back to keys before it; slots are counted from the end of the row."""
    row, part = tl.program_id(0), tl.program_id(1)
    products = tl.zeros([D, D], tl.float32)
    alone = tl.zeros([D], tl.float32)
    for start in range(part * stretch, tl.minimum(part * stretch + stretch, T), C):
        i = start + tl.arange(0, C)
        there = i < T
        phi = features(tokens(q, row, H, i, q_b, q_h, q_t, there, D), q_factor, there, ELU)
        change, of_total = upstream(
            grad, out, total, row, H, T, i, g_b, g_h, g_t, o_b, o_h, o_t, there, D, DIVIDES
        )  # fmt: skip
        products = tl.dot(tl.trans(phi), change, products, input_precision=PRECISION)
        alone += tl.sum(phi.to(tl.float32) * of_total[:, None], 0)
    here = slot(sums, row, n, n - part, D)
    tl.store(here + square(D), products)
    tl.store(here + line(D), alone)


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_keys(
    q, k, v, out, grad, total, sums, lengths, dk, dv, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    g_b, g_h, g_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, T, S, H, q_factor, k_factor, n, stretch,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of one stretch of keys and values, from its end to its beginning."""
    row, part = tl.program_id(0), tl.program_id(1)
    real = limit(lengths, row, H, S, PADDED)
    here = slot(sums, row, n, n - 1 - part if CAUSAL else n, D)
    products = tl.load(here + square(D))
    alone = tl.load(here + line(D))
    chunks = tl.cdiv(tl.minimum(stretch, S - part * stretch), C)
    for back in range(0, chunks):
        j = part * stretch + (chunks - 1 - back) * C + tl.arange(0, C)
        there = j < S
        seen = j < real
        x = tokens(k, row, H, j, k_b, k_h, k_t, seen, D)
        phi_k = features(x, k_factor, seen, ELU)
        values = tokens(v, row, H, j, v_b, v_h, v_t, seen, D)
        of_phi = tl.dot(values, tl.trans(products).to(values.dtype), input_precision=PRECISION) + alone[None, :]
        of_values = tl.dot(phi_k, products.to(phi_k.dtype), input_precision=PRECISION)
        if CAUSAL:
            phi_q = features(tokens(q, row, H, j, q_b, q_h, q_t, there, D), q_factor, there, ELU)
            change, of_total = upstream(
                grad, out, total, row, H, T, j, g_b, g_h, g_t, o_b, o_h, o_t, there, D, DIVIDES
            )  # fmt: skip
            later = j[:, None] <= j[None, :]
            scores = tl.where(later, tl.dot(phi_k, tl.trans(phi_q), input_precision=PRECISION), 0.0)
            of_values = tl.dot(scores.to(change.dtype), change, of_values, input_precision=PRECISION)
            of_scores = tl.dot(values, tl.trans(change), input_precision=PRECISION) + of_total[None, :]
            of_scores = tl.where(later, of_scores, 0.0)
            of_phi = tl.dot(of_scores.to(phi_q.dtype), phi_q, of_phi, input_precision=PRECISION)
            products = tl.dot(tl.trans(phi_q), change, products, input_precision=PRECISION)
            alone += tl.sum(phi_q.to(tl.float32) * of_total[:, None], 0)
        of_keys = tl.where(seen[:, None], of_phi * slope(x, k_factor, ELU), 0.0)
        put(dk, of_keys, row, H, j, dk_b, dk_h, dk_t, there, D)
        put(dv, of_values, row, H, j, dv_b, dv_h, dv_t, there, D)
