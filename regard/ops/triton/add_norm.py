"""The kernels of `learning`: R rows of N are looked at together, their width W padded to a power of two, P."""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask


@triton.jit(do_not_specialize=["N", "each", "chance"])
def add_norm(
    x, added, added_bias, weight, bias, seed, factors, y, total, statistics, N, each, eps, chance, growth,
    ADDS: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr, SCALES: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The norm of a sum, or of x where nothing is added; the sum itself; and for the way back mean and deviation.

    With SCALES what is added is multiplied by a factor, one for `each` so many rows.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    real, inside = row < N, column < W
    there = real[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * W + column[None, :]
    z = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        plus = tl.load(added + at, mask=there, other=0.0).to(tl.float32)
        if BIASED:
            plus += tl.load(added_bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        if DROPS:
            seed_value = tl.load(seed).to(tl.uint32)
            plus = tl.where(keep_mask(seed_value, row[:, None], column[None, :], chance), plus * growth, 0.0)
        if SCALES:
            plus *= tl.load(factors + row // each, mask=real, other=0.0).to(tl.float32)[:, None]
        z = (z + plus).to(total.dtype.element_ty)  # as the way back will find it
        tl.store(total + at, z, mask=there)
        z = z.to(tl.float32)
    mean = tl.sum(z, 1) / W
    centred = tl.where(inside[None, :], z - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    tl.store(statistics + row, mean, mask=real)
    tl.store(statistics + N + row, scale, mask=real)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    normal = centred * scale[:, None] * w[None, :] + b[None, :]
    tl.store(y + at, normal.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["N", "each", "chance"])
def add_norm_backward(
    grad, passed, total, statistics, weight, seed, factors, dx, dadded, sums, N, each, chance, growth,
    PASSES: tl.constexpr, ADDS: tl.constexpr, SUMS: tl.constexpr, DROPS: tl.constexpr, SCALES: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of both summands, and for each program a part of those of weight and bias, and of what was added.

    With PASSES the sum was read by others, too, who passed their gradient.
    """
    program = tl.program_id(0)
    column = tl.arange(0, P)
    inside = column < W
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        seed_value = tl.load(seed).to(tl.uint32)
    of_weight = tl.zeros([P], tl.float32)
    of_bias = tl.zeros([P], tl.float32)
    of_added = tl.zeros([P], tl.float32)
    for begin in range(program * R, N, tl.num_programs(0) * R):
        row = begin + tl.arange(0, R)
        real = row < N
        there = real[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * W + column[None, :]
        g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        z = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.load(statistics + row, mask=real, other=0.0)
        scale = tl.load(statistics + N + row, mask=real, other=0.0)
        normal = tl.where(inside[None, :], (z - mean[:, None]) * scale[:, None], 0.0)
        of_weight += tl.sum(g * normal, 0)
        of_bias += tl.sum(g, 0)
        g *= w[None, :]
        along, offset = tl.sum(g * normal, 1) / W, tl.sum(g, 1) / W
        d = (g - normal * along[:, None] - offset[:, None]) * scale[:, None]
        if PASSES:
            d += tl.load(passed + at, mask=there, other=0.0).to(tl.float32)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)
        if DROPS:
            d = tl.where(keep_mask(seed_value, row[:, None], column[None, :], chance), d * growth, 0.0)
        if SCALES:
            d *= tl.load(factors + row // each, mask=real, other=0.0).to(tl.float32)[:, None]
        if ADDS:
            tl.store(dadded + at, d.to(dadded.dtype.element_ty), mask=there)
        if SUMS == 3:
            of_added += tl.sum(d, 0)
    place = sums + program * SUMS * W + column
    tl.store(place, of_weight, mask=inside)
    tl.store(place + W, of_bias, mask=inside)
    if SUMS == 3:
        tl.store(place + 2 * W, of_added, mask=inside)
