"""Kernel of `StaticCache`: stores the keys and values of one decoding step."""

import triton
import triton.language as tl


@triton.jit
def append(
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
