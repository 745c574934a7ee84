"""Kernels of `regard.ops.linear_backward`."""

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.5**0.5)
NORMAL_DENSITY_0 = tl.constexpr(0.3989422804014327)
"""Density of the standard normal distribution at 0, 1/√(2π)."""


@triton.jit(do_not_specialize=["N"])
def sum_columns(grad, saved, out, partials, N, W, ACTIVATION: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Write the column sums of each program's rows of (N, W) to `partials`, in tiles of R rows and C columns.

    With ACTIVATION "relu" or "gelu", first multiply the gradient by the derivative of the activation and write it to
    `out`. `saved` holds the output of ReLU or the input of GELU.
    """
    program = tl.program_id(1)
    column = tl.program_id(0) * C + tl.arange(0, C)
    column_mask = column < W
    total = tl.zeros([R, C], tl.float32)
    for first_row in range(program * R, N, tl.num_programs(1) * R):
        row = first_row + tl.arange(0, R)
        mask = (row < N)[:, None] & column_mask[None, :]
        offset = row.to(tl.int64)[:, None] * W + column[None, :]
        g = tl.load(grad + offset, mask=mask, other=0.0)
        if ACTIVATION == "relu":
            g = tl.where(tl.load(saved + offset, mask=mask, other=0.0) > 0, g, 0.0).to(g.dtype)
            tl.store(out + offset, g, mask=mask)
        if ACTIVATION == "gelu":
            h = tl.load(saved + offset, mask=mask, other=0.0).to(tl.float32)
            g = (g.to(tl.float32) * gelu_derivative(h)).to(g.dtype)
            tl.store(out + offset, g, mask=mask)
        total += g.to(tl.float32)
    tl.store(partials + program * W + column, tl.sum(total, 0), mask=column_mask)


@triton.jit
def gelu_derivative(h):
    """Derivative of h · Φ(h) with an absolute error below 2e-7.

    Φ follows Abramowitz and Stegun, 7.1.26. It reuses the exponential of the density; `erf` would compute another one.
    """
    e = tl.exp(-0.5 * h * h)
    t = 1 / (1 + 0.3275911 * SQRT_HALF * tl.abs(h))
    polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * polynomial * e
    return tl.where(h < 0, tail, 1 - tail) + h * e * NORMAL_DENSITY_0


@triton.jit(do_not_specialize=["P"])
def sum_partials(partials, total, P, W, R: tl.constexpr, C: tl.constexpr):
    """Sum P rows of W columns, C columns per program."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    column_mask = column < W
    accumulator = tl.zeros([R, C], tl.float32)
    for first_row in range(0, P, R):
        row = first_row + tl.arange(0, R)
        mask = (row < P)[:, None] & column_mask[None, :]
        accumulator += tl.load(partials + row[:, None] * W + column[None, :], mask=mask, other=0.0)
    tl.store(total + column, tl.sum(accumulator, 0), mask=column_mask)


@triton.jit(do_not_specialize=["M"])
def matmul_relu_backward(
    grad, weight, activated_pairs, out, partials, M, N: tl.constexpr, K: tl.constexpr,
    SCALE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Multiply (M, K) by (K, N), set the product to zero where ReLU's output was zero, and sum its columns per tile.

    A tile of R rows and C columns takes the tensor cores hardly longer than memory takes to deliver the ReLU output of
    the tile. That output is therefore requested one tile ahead and kept in registers as pairs of elements. A single
    flattened loop runs over the steps of all tiles, so that the next matmul starts while the last tile is stored.

    Args:
        grad: Descriptor of (M, K) in tiles of (R, D).
        weight: Descriptor of (K, N) in tiles of (D, C).
        activated_pairs: Output of ReLU, (M, N), viewed as int32: two elements each.
        out: Result, (M, N).
        partials: Column sums of the result, a row of N for every R rows.
        SCALE: Factor on the result.
        D: Depth of one step of the matmul.
    """
    TILES_PER_ROW: tl.constexpr = N // C
    pairs = _load_pairs(activated_pairs, tl.program_id(0), M, N, R, C)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, R) * TILES_PER_ROW, tl.num_programs(0), flatten=True):
        tile_row = tile // TILES_PER_ROW
        first_column = (tile % TILES_PER_ROW) * C
        product = tl.zeros([R, C], tl.float32)
        for k in range(0, K, D):
            product = tl.dot(grad.load([tile_row * R, k]), weight.load([k, first_column]), product)
        activated = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16)).to(out.dtype.element_ty, bitcast=True)
        activated = tl.reshape(activated, [R // 2, 2, C])
        z = tl.reshape((product * SCALE).to(activated.dtype), [R // 2, 2, C])
        z = tl.where(activated > 0, z, 0.0).to(activated.dtype)
        row, column = _row_pairs(tile_row, R), first_column + tl.arange(0, C)
        tl.store(out + row.to(tl.int64) * N + column[None, None, :], z, mask=row < M)
        tl.store(partials + tile_row * N + column, tl.sum(tl.sum(z.to(tl.float32), 1), 0))
        pairs = _load_pairs(activated_pairs, tile + tl.num_programs(0), M, N, R, C)


@triton.jit
def _load_pairs(activated_pairs, tile, M, N: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = _row_pairs(tile // (N // C), R)
    pair = tile % (N // C) * (C // 2) + tl.arange(0, C // 2)
    return tl.load(activated_pairs + row.to(tl.int64) * (N // 2) + pair[None, None, :], mask=row < M, other=0)


@triton.jit
def _row_pairs(tile_row, R: tl.constexpr):
    """Row indices of a tile, (R/2, 2, 1). In this shape the product moves to the threads that hold the ReLU output."""
    return tile_row * R + tl.reshape(tl.arange(0, R), [R // 2, 2])[:, :, None]
