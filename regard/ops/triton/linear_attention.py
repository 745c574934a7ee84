"""Kernels of `regard.ops.linear_attention`: a program processes one split of a row with the running state in registers.

A "row" is one head of one sequence of the batch, and is divided into n splits, which are processed in chunks of C
tokens. Tensors of tokens are token-major, (B, tokens, H, D), with a stride between tokens (`q_t`, `k_t`, `v_t`);
`out`, `grad` and the gradients have no gaps. A state has D · D + D numbers: Σ φ(k) vᵀ and Σ φ(k). `states` holds n + 1
of them per row: entry 0 is zero, entry i is the sum over the first i splits.

Shapes: D head width, C tokens of a chunk.
"""

import triton
import triton.language as tl

from regard.ops.triton.varlen_attention import head_start, load_tokens, store_tokens

UNSPECIALISED = ["T", "S", "n"]


@triton.jit
def features(x, factor, mask, ELU: tl.constexpr):
    """Return φ of C tokens in their dtype, zero where masked."""
    y = x.to(tl.float32) * factor
    if ELU:
        y = tl.where(y > 0, y + 1, tl.exp(tl.minimum(y, 0.0)))
    return tl.where(mask[:, None], y, 0.0).to(x.dtype)


@triton.jit
def features_derivative(x, factor, ELU: tl.constexpr):
    """Return the derivative of φ."""
    y = x.to(tl.float32) * factor
    return tl.exp(tl.minimum(y, 0.0)) * factor if ELU else tl.zeros_like(y) + factor


@triton.jit
def load_head(x, row, H, size, i, stride, mask, D: tl.constexpr):
    """Load C tokens of the head of a row; `size` is the number of tokens of a sequence."""
    return load_tokens(head_start(x, row // H, row % H, size, stride, D), i, stride, tl.arange(0, D), mask)


@triton.jit
def store_head(x, row, H, size, i, mask, value, D: tl.constexpr):
    """Store C tokens of the head of a row."""
    store_tokens(head_start(x, row // H, row % H, size, H * D, D), i, H * D, tl.arange(0, D), mask, value)


@triton.jit
def state_pointer(states, row, n, entry, D: tl.constexpr):
    """Return the address of an entry of the states of a row."""
    return states + (row.to(tl.int64) * (n + 1) + entry) * (D * D + D)


@triton.jit
def matrix_offsets(D: tl.constexpr):
    """Return the offsets of Σ φ(k) vᵀ within a state."""
    return tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def vector_offsets(D: tl.constexpr):
    """Return the offsets of Σ φ(k) within a state."""
    return D * D + tl.arange(0, D)


@triton.jit
def key_count(lengths, row, H, S, PADDED: tl.constexpr):
    """Return the number of keys of a row that are not padding."""
    return tl.minimum(tl.load(lengths + row // H).to(tl.int32), S) if PADDED else S


@triton.jit
def undivided_gradients(grad, out, total, row, H, T, i, mask, D: tl.constexpr, DIVIDED: tl.constexpr):
    """Return the gradients of the context before its division, and of the divisor."""
    dcontext = load_head(grad, row, H, T, i, H * D, mask, D)
    if not DIVIDED:
        return dcontext, tl.zeros_like(tl.sum(dcontext.to(tl.float32), 1))
    context = load_head(out, row, H, T, i, H * D, mask, D)
    divisor = tl.load(total + row.to(tl.int64) * T + i, mask=mask, other=1.0)
    wide = dcontext.to(tl.float32)
    return (wide / divisor[:, None]).to(dcontext.dtype), -tl.sum(wide * context.to(tl.float32), 1) / divisor


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_keys(
    k, v, states, lengths, k_t, v_t, S, H, k_factor, n, split,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Store the state of the keys of one split in the entry after its own."""
    row, index = tl.program_id(0), tl.program_id(1)
    keys_end = key_count(lengths, row, H, S, PADDED)
    matrix = tl.zeros([D, D], tl.float32)
    vector = tl.zeros([D], tl.float32)
    for start in range(index * split, tl.minimum(index * split + split, keys_end), C):
        j = start + tl.arange(0, C)
        is_key = j < keys_end
        phi = features(load_head(k, row, H, S, j, k_t, is_key, D), k_factor, is_key, ELU)
        values = load_head(v, row, H, S, j, v_t, is_key, D)
        matrix = tl.dot(tl.trans(phi), values, matrix, input_precision=PRECISION)
        vector += tl.sum(phi.to(tl.float32), 0)
    state = state_pointer(states, row, n, index + 1, D)
    tl.store(state + matrix_offsets(D), matrix)
    tl.store(state + vector_offsets(D), vector)


@triton.jit(do_not_specialize=["n"])
def cumulate_states(states, n, D: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    """Replace every entry of a row by the sum of those up to it, W numbers at a time; entry 0 becomes zero."""
    i = tl.arange(0, P)[:, None]
    e = tl.program_id(1) * W + tl.arange(0, W)[None, :]
    mask = (i <= n) & (e < D * D + D)
    pointers = state_pointer(states, tl.program_id(0), n, 0, D) + i * (D * D + D) + e
    tl.store(pointers, tl.cumsum(tl.load(pointers, mask=mask & (i > 0), other=0.0), 0), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALISED)
def linear_forward(
    q, k, v, out, total, states, lengths, q_t, k_t, v_t, T, S, H, q_factor, k_factor, n, split,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the context of one split of queries, and its divisor."""
    row, index = tl.program_id(0), tl.program_id(1)
    keys_end = key_count(lengths, row, H, S, PADDED)
    state = state_pointer(states, row, n, index if CAUSAL else n, D)
    matrix = tl.load(state + matrix_offsets(D))
    vector = tl.load(state + vector_offsets(D))
    for start in range(index * split, tl.minimum(index * split + split, T), C):
        i = start + tl.arange(0, C)
        is_query = i < T
        phi_q = features(load_head(q, row, H, T, i, q_t, is_query, D), q_factor, is_query, ELU)
        context = tl.dot(phi_q, matrix.to(phi_q.dtype), input_precision=PRECISION)
        divisor = tl.sum(phi_q.to(tl.float32) * vector[None, :], 1)
        if CAUSAL:
            is_key = i < keys_end
            phi_k = features(load_head(k, row, H, S, i, k_t, is_key, D), k_factor, is_key, ELU)
            values = load_head(v, row, H, S, i, v_t, is_key, D)
            scores = tl.dot(phi_q, tl.trans(phi_k), input_precision=PRECISION)
            scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
            context = tl.dot(scores.to(values.dtype), values, context, input_precision=PRECISION)
            divisor += tl.sum(scores, 1)
            matrix = tl.dot(tl.trans(phi_k), values, matrix, input_precision=PRECISION)
            vector += tl.sum(phi_k.to(tl.float32), 0)
        if DIVIDED:
            divisor = tl.where(divisor == 0, 1.0, divisor)
            context = context / divisor[:, None]
            tl.store(total + row.to(tl.int64) * T + i, divisor, mask=is_query)
        store_head(out, row, H, T, i, is_query, context, D)


@triton.jit(do_not_specialize=UNSPECIALISED)
def linear_backward_queries(
    q, k, v, out, grad, total, states, lengths, dq, q_t, k_t, v_t, T, S, H, q_factor, k_factor, n, split,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the gradient of one split of queries."""
    row, index = tl.program_id(0), tl.program_id(1)
    keys_end = key_count(lengths, row, H, S, PADDED)
    state = state_pointer(states, row, n, index if CAUSAL else n, D)
    matrix = tl.load(state + matrix_offsets(D))
    vector = tl.load(state + vector_offsets(D))
    for start in range(index * split, tl.minimum(index * split + split, T), C):
        i = start + tl.arange(0, C)
        is_query = i < T
        dcontext, ddivisor = undivided_gradients(grad, out, total, row, H, T, i, is_query, D, DIVIDED)
        dphi = tl.dot(dcontext, tl.trans(matrix).to(dcontext.dtype), input_precision=PRECISION)
        dphi += ddivisor[:, None] * vector[None, :]
        if CAUSAL:
            is_key = i < keys_end
            phi_k = features(load_head(k, row, H, S, i, k_t, is_key, D), k_factor, is_key, ELU)
            values = load_head(v, row, H, S, i, v_t, is_key, D)
            dscores = tl.dot(dcontext, tl.trans(values), input_precision=PRECISION) + ddivisor[:, None]
            dscores = tl.where(i[:, None] >= i[None, :], dscores, 0.0)
            dphi = tl.dot(dscores.to(phi_k.dtype), phi_k, dphi, input_precision=PRECISION)
            matrix = tl.dot(tl.trans(phi_k), values, matrix, input_precision=PRECISION)
            vector += tl.sum(phi_k.to(tl.float32), 0)
        x = load_head(q, row, H, T, i, q_t, is_query, D)
        store_head(dq, row, H, T, i, is_query, dphi * features_derivative(x, q_factor, ELU), D)


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_queries(
    q, out, grad, total, states, q_t, T, H, q_factor, n, split,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, DIVIDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Store the gradient of the state from one split of queries; entries are counted from the end of the row."""
    row, index = tl.program_id(0), tl.program_id(1)
    matrix = tl.zeros([D, D], tl.float32)
    vector = tl.zeros([D], tl.float32)
    for start in range(index * split, tl.minimum(index * split + split, T), C):
        i = start + tl.arange(0, C)
        is_query = i < T
        phi = features(load_head(q, row, H, T, i, q_t, is_query, D), q_factor, is_query, ELU)
        dcontext, ddivisor = undivided_gradients(grad, out, total, row, H, T, i, is_query, D, DIVIDED)
        matrix = tl.dot(tl.trans(phi), dcontext, matrix, input_precision=PRECISION)
        vector += tl.sum(phi.to(tl.float32) * ddivisor[:, None], 0)
    state = state_pointer(states, row, n, n - index, D)
    tl.store(state + matrix_offsets(D), matrix)
    tl.store(state + vector_offsets(D), vector)


@triton.jit(do_not_specialize=UNSPECIALISED)
def linear_backward_keys(
    q, k, v, out, grad, total, states, lengths, dk, dv, q_t, k_t, v_t, T, S, H, q_factor, k_factor, n, split,
    D: tl.constexpr, C: tl.constexpr, ELU: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    DIVIDED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the gradients of one split of keys and values, from its end to its beginning."""
    row, index = tl.program_id(0), tl.program_id(1)
    keys_end = key_count(lengths, row, H, S, PADDED)
    state = state_pointer(states, row, n, n - 1 - index if CAUSAL else n, D)
    matrix = tl.load(state + matrix_offsets(D))
    vector = tl.load(state + vector_offsets(D))
    chunks = tl.cdiv(tl.minimum(split, S - index * split), C)
    for back in range(0, chunks):
        j = index * split + (chunks - 1 - back) * C + tl.arange(0, C)
        is_token = j < S
        is_key = j < keys_end
        x = load_head(k, row, H, S, j, k_t, is_key, D)
        phi_k = features(x, k_factor, is_key, ELU)
        values = load_head(v, row, H, S, j, v_t, is_key, D)
        dphi = tl.dot(values, tl.trans(matrix).to(values.dtype), input_precision=PRECISION) + vector[None, :]
        dvalues = tl.dot(phi_k, matrix.to(phi_k.dtype), input_precision=PRECISION)
        if CAUSAL:
            phi_q = features(load_head(q, row, H, T, j, q_t, is_token, D), q_factor, is_token, ELU)
            dcontext, ddivisor = undivided_gradients(grad, out, total, row, H, T, j, is_token, D, DIVIDED)
            later = j[:, None] <= j[None, :]
            scores = tl.where(later, tl.dot(phi_k, tl.trans(phi_q), input_precision=PRECISION), 0.0)
            dvalues = tl.dot(scores.to(dcontext.dtype), dcontext, dvalues, input_precision=PRECISION)
            dscores = tl.dot(values, tl.trans(dcontext), input_precision=PRECISION) + ddivisor[None, :]
            dscores = tl.where(later, dscores, 0.0)
            dphi = tl.dot(dscores.to(phi_q.dtype), phi_q, dphi, input_precision=PRECISION)
            matrix = tl.dot(tl.trans(phi_q), dcontext, matrix, input_precision=PRECISION)
            vector += tl.sum(phi_q.to(tl.float32) * ddivisor[:, None], 0)
        dkeys = tl.where(is_key[:, None], dphi * features_derivative(x, k_factor, ELU), 0.0)
        store_head(dk, row, H, S, j, is_token, dkeys, D)
        store_head(dv, row, H, S, j, is_token, dvalues, D)
