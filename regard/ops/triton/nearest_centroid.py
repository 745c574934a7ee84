"""The kernel of `grouping.nearest`: M tokens against all centroids, N at a time; likenesses never reach the memory."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T", "C"])
def nearest(
    x, centroids, leads, found, x_b, x_h, x_t, T, C, H, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Which centroid each of M tokens is most like."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    real = i < T
    start = x + b.to(tl.int64) * x_b + h.to(tl.int64) * x_h
    tokens = tl.load(start + (i[:, None] * x_t + d[None, :]), mask=real[:, None], other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(tokens * tokens, 1))
    tokens = tokens / tl.maximum(length, 1e-12)[:, None]
    best = tl.full([M], float("-inf"), tl.float32)
    which = tl.zeros([M], tl.int32)
    for begin in range(0, C, N):
        c = begin + tl.arange(0, N)
        there = c < C
        some = tl.load(centroids + (h * C + c)[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
        lead = tl.load(leads + h * C + c, mask=there, other=float("-inf"))
        # Three products of shortened numbers are as good as one of whole ones, and faster.
        likeness = tl.dot(tokens, tl.trans(some.to(tl.float32)), input_precision="tf32x3") + lead[None, :].to(
            tl.float32
        )
        top = tl.max(likeness, 1)
        here = begin + tl.argmax(likeness, 1)
        which = tl.where(top > best, here, which)
        best = tl.maximum(top, best)
    tl.store(found + row.to(tl.int64) * T + i, which, mask=real)
