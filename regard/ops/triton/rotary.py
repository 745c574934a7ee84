"""The kernel of `turning`: R tokens and the D / 2 pairs of features of a head, padded to P, are turned at once."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["N", "T", "apart", "sign"])
def turn(
    q, k, v, made, positions, frequency,
    of_B0, of_H0, of_T0, of_B1, of_H1, of_T1, of_B2, of_H2, of_T2,
    N, T, apart, sign,
    H: tl.constexpr, D: tl.constexpr, AXES: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Part 0 turns q, part 1 k, part 2 copies v; a row's positions lie `apart` from the next one's, or are the same.

    In each of the axes the features i and i + HALF are a pair.
    """
    HALF: tl.constexpr = D // (2 * AXES)
    part = tl.program_id(1)
    token = tl.program_id(0) * R + tl.arange(0, R)
    pair = tl.arange(0, P)
    there = (token < N)[:, None] & (pair < D // 2)[None, :]
    b, t = (token // T).to(tl.int64), token % T
    axis, i = pair // HALF, pair % HALF
    first = axis * 2 * HALF + i
    if part == 0:
        source, of_B, of_H, of_T = q, of_B0, of_H0, of_T0
    elif part == 1:
        source, of_B, of_H, of_T = k, of_B1, of_H1, of_T1
    else:
        source, of_B, of_H, of_T = v, of_B2, of_H2, of_T2
    place = tl.load(positions + (b * apart + t * AXES)[:, None] + axis[None, :], mask=there, other=0)
    angle = place.to(tl.float32) * tl.load(frequency + i, mask=i < HALF, other=0.0)[None, :]
    angle = tl.where(part == 2, 0.0, angle)
    cos, sin = tl.cos(angle), tl.sin(angle) * sign
    at = source + (b * of_B + t * of_T)[:, None] + first[None, :]
    to = made + (token.to(tl.int64) * PARTS + part)[:, None] * (H * D) + first[None, :]
    for h in range(H):
        x = tl.load(at + h * of_H, mask=there, other=0.0).to(tl.float32)
        y = tl.load(at + h * of_H + HALF, mask=there, other=0.0).to(tl.float32)
        tl.store(to + h * D, (x * cos - y * sin).to(made.dtype.element_ty), mask=there)
        tl.store(to + h * D + HALF, (y * cos + x * sin).to(made.dtype.element_ty), mask=there)
