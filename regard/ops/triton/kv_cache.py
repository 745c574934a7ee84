"""The kernel of `FixedCache`: the new keys and values of a step to their places."""

import triton
import triton.language as tl


@triton.jit
def append(
    k, v, room, step, k_b, k_h, k_t, v_b, v_h, v_t, r_v, r_b, r_h, r_t, K, H, D: tl.constexpr, KP: tl.constexpr
):  # fmt: skip
    """Those of one head of one sentence, K of each."""
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    i, d = tl.arange(0, KP), tl.arange(0, D)
    here = (i < K)[:, None] & (d < D)[None, :]
    new_k = tl.load(k + b.to(tl.int64) * k_b + h * k_h + i[:, None] * k_t + d[None, :], mask=here)
    new_v = tl.load(v + b.to(tl.int64) * v_b + h * v_h + i[:, None] * v_t + d[None, :], mask=here)
    place = (tl.load(step) * K + i)[:, None] * r_t + d[None, :]
    start = room + b.to(tl.int64) * r_b + h.to(tl.int64) * r_h
    tl.store(start + place, new_k, mask=here)
    tl.store(start + r_v + place, new_v, mask=here)
