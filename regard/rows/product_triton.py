"""The kernel of `rows`: R rows and C columns of the product are made by a program, from K numbers at a time."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["N", "x_n"])
def multiply(
    x, weight, bias, y, N, W, D, x_n, w_w,
    BIASED: tl.constexpr, RELU: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y, (N, W), of x, (N, D), and a weight, (W, D)."""
    row = tl.program_id(1) * R + tl.arange(0, R)
    column = tl.program_id(0) * C + tl.arange(0, C)
    k = tl.arange(0, K)
    total = tl.zeros([R, C], tl.float32)
    for begin in range(0, D, K):
        inside = begin + k < D
        a = tl.load(x + row[:, None] * x_n + (begin + k)[None, :], mask=(row < N)[:, None] & inside[None, :], other=0.0)
        b = tl.load(
            weight + column[:, None] * w_w + (begin + k)[None, :],
            mask=(column < W)[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + column, mask=column < W, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # what is no number stays none
    there = (row < N)[:, None] & (column < W)[None, :]
    tl.store(y + row[:, None] * W + column[None, :], total.to(y.dtype.element_ty), mask=there)
