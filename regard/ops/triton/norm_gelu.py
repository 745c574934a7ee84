"""Kernels of GELU after LayerNorm: a program processes R of N rows; their width W is padded to a power of two, P."""

import triton
import triton.language as tl

from regard.ops.triton.linear_backward import NORMAL_DENSITY_0, SQRT_HALF


@triton.jit
def _normalise(x, x_bias, offset, mask, column, column_mask, eps, W: tl.constexpr):
    """Return the normalised rows of x + x_bias, and 1/deviation of each row."""
    z = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    z += tl.load(x_bias + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    centred = tl.where(column_mask[None, :], z - (tl.sum(z, 1) / W)[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    return centred * rstd[:, None], rstd


@triton.jit(do_not_specialize=["N"])
def norm_gelu(
    x, x_bias, weight, bias, y, N, eps,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write GELU of the LayerNorm of x + x_bias."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, P)
    column_mask = column < W
    mask = (row < N)[:, None] & column_mask[None, :]
    offset = row.to(tl.int64)[:, None] * W + column[None, :]
    normalised, _ = _normalise(x, x_bias, offset, mask, column, column_mask, eps, W)
    w = tl.load(weight + column, mask=column_mask, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)
    h = normalised * w[None, :] + b[None, :]
    tl.store(y + offset, (h * 0.5 * (1 + tl.erf(h * SQRT_HALF))).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N"])
def norm_gelu_backward(
    grad, x, x_bias, weight, bias, dx, partials, N, eps,
    W: tl.constexpr, R: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Write the gradient of x, and each program's part of the gradients of weight, bias and x_bias."""
    program = tl.program_id(0)
    column = tl.arange(0, P)
    column_mask = column < W
    w = tl.load(weight + column, mask=column_mask, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)
    # Rows are summed once at the end. Summing in every iteration would exchange data between threads each time, which
    # takes longer than reading for narrow rows.
    dweight = tl.zeros([R, P], tl.float32)
    dbias = tl.zeros([R, P], tl.float32)
    dx_bias = tl.zeros([R, P], tl.float32)
    for first_row in range(program * R, N, tl.num_programs(0) * R):
        row = first_row + tl.arange(0, R)
        mask = (row < N)[:, None] & column_mask[None, :]
        offset = row.to(tl.int64)[:, None] * W + column[None, :]
        normalised, rstd = _normalise(x, x_bias, offset, mask, column, column_mask, eps, W)
        h = normalised * w[None, :] + b[None, :]
        derivative = 0.5 * (1 + tl.erf(h * SQRT_HALF)) + h * tl.exp(-0.5 * h * h) * NORMAL_DENSITY_0
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32) * derivative
        dweight += g * normalised
        dbias += g
        g *= w[None, :]
        projection, g_mean = tl.sum(g * normalised, 1) / W, tl.sum(g, 1) / W
        d = tl.where(mask, (g - normalised * projection[:, None] - g_mean[:, None]) * rstd[:, None], 0.0)
        tl.store(dx + offset, d.to(dx.dtype.element_ty), mask=mask)
        dx_bias += d
    destination = partials + program * 3 * W + column
    tl.store(destination, tl.sum(dweight, 0), mask=column_mask)
    tl.store(destination + W, tl.sum(dbias, 0), mask=column_mask)
    tl.store(destination + 2 * W, tl.sum(dx_bias, 0), mask=column_mask)
