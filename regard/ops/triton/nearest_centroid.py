"""Kernel of `regard.ops.cluster_sort.nearest_centroid`: M tokens against all centroids, N at a time."""

import triton
import triton.language as tl

from regard.ops.triton.varlen_attention import head_start, load_tokens


@triton.jit(do_not_specialize=["T", "C"])
def nearest_centroid(
    x, centroids, bias, nearest, x_t, T, C, H, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Compute the index of the most similar centroid of M tokens; similarities are never written to memory."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    d = tl.arange(0, D)
    i = tl.program_id(1) * M + tl.arange(0, M)
    is_token = i < T
    tokens = load_tokens(head_start(x, b, h, T, x_t, D), i, x_t, d, is_token).to(tl.float32)
    length = tl.sqrt(tl.sum(tokens * tokens, 1))
    tokens = tokens / tl.maximum(length, 1e-12)[:, None]
    best_similarity = tl.full([M], float("-inf"), tl.float32)
    best = tl.zeros([M], tl.int32)
    for start in range(0, C, N):
        c = start + tl.arange(0, N)
        is_centroid = c < C
        rows = (h * C + c)[:, None] * D + d[None, :]
        directions = tl.load(centroids + rows, mask=is_centroid[:, None], other=0.0).to(tl.float32)
        biases = tl.load(bias + h * C + c, mask=is_centroid, other=float("-inf")).to(tl.float32)
        # Three TF32 products are as precise as one in float32, and faster.
        similarity = tl.dot(tokens, tl.trans(directions), input_precision="tf32x3") + biases[None, :]
        top = tl.max(similarity, 1)
        best = tl.where(top > best_similarity, start + tl.argmax(similarity, 1), best)
        best_similarity = tl.maximum(top, best_similarity)
    tl.store(nearest + row.to(tl.int64) * T + i, best, mask=is_token)
