"""Kernel of `regard.ops.rotary`: R tokens, and the D / 2 pairs of features of a head, padded to P, at a time."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["N", "T", "positions_b", "sign"])
def rotate(
    q, k, v, output, positions, frequency, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, N, T, positions_b, sign,
    H: tl.constexpr, D: tl.constexpr, AXES: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Rotate q in programs (·, 0) and k in (·, 1), copy v in (·, 2).

    Within each of the AXES parts of a head, features i and i + HALF form a pair. `positions_b` is the distance between
    the positions of two rows of the batch, 0 if they share them.
    """
    HALF: tl.constexpr = D // (2 * AXES)
    part = tl.program_id(1)
    token = tl.program_id(0) * R + tl.arange(0, R)
    pair = tl.arange(0, P)
    mask = (token < N)[:, None] & (pair < D // 2)[None, :]
    b, t = (token // T).to(tl.int64), token % T
    axis, i = pair // HALF, pair % HALF
    first = axis * 2 * HALF + i
    if part == 0:
        source, source_b, source_h, source_t = q, q_b, q_h, q_t
    elif part == 1:
        source, source_b, source_h, source_t = k, k_b, k_h, k_t
    else:
        source, source_b, source_h, source_t = v, v_b, v_h, v_t
    position = tl.load(positions + (b * positions_b + t * AXES)[:, None] + axis[None, :], mask=mask, other=0)
    angle = position.to(tl.float32) * tl.load(frequency + i, mask=i < HALF, other=0.0)[None, :]
    angle = tl.where(part == 2, 0.0, angle)
    cos, sin = tl.cos(angle), tl.sin(angle) * sign
    from_pointers = source + (b * source_b + t * source_t)[:, None] + first[None, :]
    to_pointers = output + (token.to(tl.int64) * PARTS + part)[:, None] * (H * D) + first[None, :]
    for h in range(H):
        x = tl.load(from_pointers + h * source_h, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(from_pointers + h * source_h + HALF, mask=mask, other=0.0).to(tl.float32)
        tl.store(to_pointers + h * D, (x * cos - y * sin).to(output.dtype.element_ty), mask=mask)
        tl.store(to_pointers + h * D + HALF, (y * cos + x * sin).to(output.dtype.element_ty), mask=mask)
