"""The kernel of `through`: a product of which those numbers are left that ReLU lets through.

For one tile of R rows and C columns the tensor cores need hardly longer than the memory for what ReLU made there, so
that must be on its way while they are busy: each tile's is asked for before the one before it is done, and waits in
registers, in pairs of numbers, as it came. There is one loop over the steps of all tiles, so that the product of the
next begins to be read while the last one is written.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M"])
def multiply_and_pass(
    grad, weight, seen, passed, parts, M, N: tl.constexpr, K: tl.constexpr,
    GROWTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """(M, K) · (K, N) where ReLU made more than 0, else 0; for each tile the sums of its columns.

    Args:
        grad: descriptor of (M, K) in tiles of (R, D).
        weight: descriptor of (K, N) in tiles of (D, C).
        seen: what ReLU made, (M, N), two numbers in one of int32.
        passed: the result, (M, N).
        parts: a row of N sums for every R rows of the result.
        GROWTH: a factor for all of the result.
        D: how deep a step of the product is.
    """
    ACROSS: tl.constexpr = N // C
    held = _read(seen, tl.program_id(0), M, N, R, C)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, R) * ACROSS, tl.num_programs(0), flatten=True):
        group = tile // ACROSS
        first = (tile % ACROSS) * C
        total = tl.zeros([R, C], tl.float32)
        for k in range(0, K, D):
            total = tl.dot(grad.load([group * R, k]), weight.load([k, first]), total)
        pair = tl.join(held.to(tl.int16), (held >> 16).to(tl.int16)).to(passed.dtype.element_ty, bitcast=True)
        y = tl.reshape(pair, [R // 2, 2, C])
        z = tl.reshape((total * GROWTH).to(y.dtype), [R // 2, 2, C])
        z = tl.where(y > 0, z, 0.0).to(y.dtype)
        row, column = _rows(group, R), first + tl.arange(0, C)
        tl.store(passed + row.to(tl.int64) * N + column[None, None, :], z, mask=row < M)
        tl.store(parts + group * N + column, tl.sum(tl.sum(z.to(tl.float32), 1), 0))
        held = _read(seen, tile + tl.num_programs(0), M, N, R, C)


@triton.jit
def _read(seen, tile, M, N: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = _rows(tile // (N // C), R)
    pair = tile % (N // C) * (C // 2) + tl.arange(0, C // 2)
    return tl.load(seen + row.to(tl.int64) * (N // 2) + pair[None, None, :], mask=row < M, other=0)


@triton.jit
def _rows(group, R: tl.constexpr):
    """Of a tile, two by two: in this shape the product goes to threads that have what was read, not the reverse."""
    return group * R + tl.reshape(tl.arange(0, R), [R // 2, 2])[:, :, None]
