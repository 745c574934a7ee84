"""The kernels of `activated`: R rows of N are looked at together, their width W padded to a power of two, P."""

import triton
import triton.language as tl

from regard.ops.triton.column_sum import DENSITY, SQRT_HALF


@triton.jit
def _normalise(x, added_bias, at, there, column, inside, eps, W: tl.constexpr):
    """The rows without their mean, divided by their deviation, and what they were divided by."""
    z = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    z += tl.load(added_bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    centred = tl.where(inside[None, :], z - (tl.sum(z, 1) / W)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    return centred * scale[:, None], scale


@triton.jit(do_not_specialize=["N"])
def norm_gelu(
    x, added_bias, weight, bias, y, N, eps,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """GELU of the norm of each row."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    inside = column < W
    there = (row < N)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * W + column[None, :]
    normal, _ = _normalise(x, added_bias, at, there, column, inside, eps, W)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    h = normal * w[None, :] + b[None, :]
    tl.store(y + at, (h * 0.5 * (1 + tl.erf(h * SQRT_HALF))).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["N"])
def norm_gelu_backward(
    grad, x, added_bias, weight, bias, dx, sums, N, eps,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and for each program a part of those of weight and bias, and of what was added."""
    program = tl.program_id(0)
    column = tl.arange(0, P)
    inside = column < W
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    # Rows are added up once, at the end: narrow ones are so many that threads would talk more than read.
    of_weight = tl.zeros([R, P], tl.float32)
    of_bias = tl.zeros([R, P], tl.float32)
    of_added = tl.zeros([R, P], tl.float32)
    for begin in range(program * R, N, tl.num_programs(0) * R):
        row = begin + tl.arange(0, R)
        there = (row < N)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * W + column[None, :]
        normal, scale = _normalise(x, added_bias, at, there, column, inside, eps, W)
        h = normal * w[None, :] + b[None, :]
        slope = 0.5 * (1 + tl.erf(h * SQRT_HALF)) + h * tl.exp(-0.5 * h * h) * DENSITY
        g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32) * slope
        of_weight += g * normal
        of_bias += g
        g *= w[None, :]
        along, offset = tl.sum(g * normal, 1) / W, tl.sum(g, 1) / W
        d = tl.where(there, (g - normal * along[:, None] - offset[:, None]) * scale[:, None], 0.0)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)
        of_added += d
    place = sums + program * 3 * W + column
    tl.store(place, tl.sum(of_weight, 0), mask=inside)
    tl.store(place + W, tl.sum(of_bias, 0), mask=inside)
    tl.store(place + 2 * W, tl.sum(of_added, 0), mask=inside)
