"""Kernels of Add & Norm: a program processes R of N rows; their width W is padded to a power of two, P."""

import triton
import triton.language as tl

from regard.ops.triton.dropout import keep_mask


@triton.jit(do_not_specialize=["N", "rows_per_scale", "threshold"])
def add_norm(
    x, update, update_bias, weight, bias, seed, scales, y, total, statistics,
    N, rows_per_scale, eps, threshold, growth,
    ADD: tl.constexpr, ADD_BIAS: tl.constexpr, DROP: tl.constexpr, SCALE: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write the sum of x and the update, its LayerNorm, and the mean and 1/deviation of each row of the sum.

    With SCALE, every `rows_per_scale` rows of the update are multiplied by one of `scales`. Without ADD, the sum is x.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    row_mask, column_mask = row < N, column < W
    mask = row_mask[:, None] & column_mask[None, :]
    offset = row.to(tl.int64)[:, None] * W + column[None, :]
    z = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        u = tl.load(update + offset, mask=mask, other=0.0).to(tl.float32)
        if ADD_BIAS:
            u += tl.load(update_bias + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
        if DROP:
            seed_value = tl.load(seed).to(tl.uint32)
            u = tl.where(keep_mask(seed_value, row[:, None], column[None, :], threshold), u * growth, 0.0)
        if SCALE:
            u *= tl.load(scales + row // rows_per_scale, mask=row_mask, other=0.0).to(tl.float32)[:, None]
        z = (z + u).to(total.dtype.element_ty)  # rounded, since the backward pass reads the rounded sum
        tl.store(total + offset, z, mask=mask)
        z = z.to(tl.float32)
    mean = tl.sum(z, 1) / W
    centred = tl.where(column_mask[None, :], z - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    tl.store(statistics + row, mean, mask=row_mask)
    tl.store(statistics + N + row, rstd, mask=row_mask)
    w = tl.load(weight + column, mask=column_mask, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)
    tl.store(y + offset, (centred * rstd[:, None] * w[None, :] + b[None, :]).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N", "rows_per_scale", "threshold"])
def add_norm_backward(
    grad, total_grad, total, statistics, weight, seed, scales, dx, dupdate, partials,
    N, rows_per_scale, threshold, growth,
    ADD_GRAD: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr, DROP: tl.constexpr, SCALE: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write the gradients of x and of the update, and each program's part of the gradients of the parameters.

    With ADD_GRAD, the sum has other readers, whose gradient is `total_grad`. `partials` has SUMS rows per program: the
    gradients of weight and bias and, if SUMS is 3, of the update's bias.
    """
    program = tl.program_id(0)
    column = tl.arange(0, P)
    column_mask = column < W
    w = tl.load(weight + column, mask=column_mask, other=0.0).to(tl.float32)
    if DROP:
        seed_value = tl.load(seed).to(tl.uint32)
    dweight = tl.zeros([P], tl.float32)
    dbias = tl.zeros([P], tl.float32)
    dupdate_bias = tl.zeros([P], tl.float32)
    for first_row in range(program * R, N, tl.num_programs(0) * R):
        row = first_row + tl.arange(0, R)
        row_mask = row < N
        mask = row_mask[:, None] & column_mask[None, :]
        offset = row.to(tl.int64)[:, None] * W + column[None, :]
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        z = tl.load(total + offset, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(statistics + row, mask=row_mask, other=0.0)
        rstd = tl.load(statistics + N + row, mask=row_mask, other=0.0)
        normalised = tl.where(column_mask[None, :], (z - mean[:, None]) * rstd[:, None], 0.0)
        dweight += tl.sum(g * normalised, 0)
        dbias += tl.sum(g, 0)
        g *= w[None, :]
        projection, g_mean = tl.sum(g * normalised, 1) / W, tl.sum(g, 1) / W
        d = (g - normalised * projection[:, None] - g_mean[:, None]) * rstd[:, None]
        if ADD_GRAD:
            d += tl.load(total_grad + offset, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + offset, d.to(dx.dtype.element_ty), mask=mask)
        if DROP:
            d = tl.where(keep_mask(seed_value, row[:, None], column[None, :], threshold), d * growth, 0.0)
        if SCALE:
            d *= tl.load(scales + row // rows_per_scale, mask=row_mask, other=0.0).to(tl.float32)[:, None]
        if ADD:
            tl.store(dupdate + offset, d.to(dupdate.dtype.element_ty), mask=mask)
        if SUMS == 3:
            dupdate_bias += tl.sum(d, 0)
    destination = partials + program * SUMS * W + column
    tl.store(destination, dweight, mask=column_mask)
    tl.store(destination + W, dbias, mask=column_mask)
    if SUMS == 3:
        tl.store(destination + 2 * W, dupdate_bias, mask=column_mask)


@triton.jit
def add_norm_inference(x, update, weight, bias, y, W, eps, P: tl.constexpr):
    """LayerNorm of the sum of two tensors, rounded to their dtype before the norm; one row per program."""
    first = tl.program_id(0).to(tl.int64) * W
    column = tl.arange(0, P)
    mask = column < W
    a = tl.load(x + first + column, mask=mask, other=0.0)
    b = tl.load(update + first + column, mask=mask, other=0.0)
    z = (a.to(tl.float32) + b.to(tl.float32)).to(a.dtype).to(tl.float32)
    mean = tl.sum(z, 0) / W
    centred = tl.where(mask, z - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / W + eps)
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + first + column, (centred * rstd * w + shift).to(a.dtype), mask=mask)
