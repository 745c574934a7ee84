"""The kernels of `sums`: R rows and C columns are read at once."""

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.5**0.5)
DENSITY = tl.constexpr(0.3989422804014327)
"""Of the normal distribution at 0: 1/√(2π)."""


@triton.jit(do_not_specialize=["N"])
def sum_columns(x, y, passed, parts, N, W, THROUGH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """For each program the sum of its rows of x; or of what THROUGH leaves of them, kept in `passed`.

    "relu" leaves those numbers whose y is above 0, "gelu" multiplies each with the slope at its y.
    """
    program = tl.program_id(1)
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < W
    total = tl.zeros([R, C], tl.float32)
    for begin in range(program * R, N, tl.num_programs(1) * R):
        row = begin + tl.arange(0, R)
        there = (row < N)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * W + column[None, :]
        z = tl.load(x + at, mask=there, other=0.0)
        if THROUGH == "relu":
            z = tl.where(tl.load(y + at, mask=there, other=0.0) > 0, z, 0.0).to(z.dtype)
            tl.store(passed + at, z, mask=there)
        if THROUGH == "gelu":
            h = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
            z = (z.to(tl.float32) * slope_of_gelu(h)).to(z.dtype)
            tl.store(passed + at, z, mask=there)
        total += z.to(tl.float32)
    tl.store(parts + program * W + column, tl.sum(total, 0), mask=inside)


@triton.jit
def slope_of_gelu(h):
    """The derivative of h · Φ(h), to within 2e-7.

    Φ by Abramowitz and Stegun, 7.1.26, from the exponential that is needed anyway; `erf` would make another of its own.
    """
    e = tl.exp(-0.5 * h * h)
    t = 1 / (1 + 0.3275911 * SQRT_HALF * tl.abs(h))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    beyond = 0.5 * tail * e
    return tl.where(h < 0, beyond, 1 - beyond) + h * e * DENSITY


@triton.jit(do_not_specialize=["P"])
def add_up(parts, total, P, W, R: tl.constexpr, C: tl.constexpr):
    """The sum of P rows, C columns a program."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < W
    found = tl.zeros([R, C], tl.float32)
    for begin in range(0, P, R):
        row = begin + tl.arange(0, R)
        found += tl.load(
            parts + row[:, None] * W + column[None, :], mask=(row < P)[:, None] & inside[None, :], other=0.0
        )
    tl.store(total + column, tl.sum(found, 0), mask=inside)
