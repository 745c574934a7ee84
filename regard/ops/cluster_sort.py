"""Tokens sorted by cluster, so that the keys that a query attends to are a contiguous range.

The kernels of `varlen_attention` read tokens in this order without copying them. Nothing is padded, and the host does
not wait for the sizes of the clusters.

Shapes: B batch, H heads, T queries, S keys, D head width, C centroids, R = B · H rows.
"""

import torch
from torch import Tensor

from regard.masks import Window
from regard.ops.custom_op import token_major
from regard.ops.dispatch import on_device
from regard.ops.key_ranges import KeyRanges
from regard.ops.varlen_attention import TokenOrder


def sort_by_cluster(
    query_clusters: Tensor,
    key_clusters: Tensor,
    clusters: int,
    query_positions: Tensor,
    key_positions: Tensor,
    reach: Window,
    backward: bool = True,
) -> tuple[KeyRanges, TokenOrder]:
    """Return the order of the tokens by cluster, and the range of keys of each query in this order.

    Args:
        query_clusters: Cluster of each query, (B, H, T).
        key_clusters: Cluster of each key, (B, H, S).
        clusters: Number of clusters.
        query_positions: Position of each query, (T,), non-decreasing.
        key_positions: Position of each key, (S,), non-decreasing.
        reach: Window of a query.
        backward: Whether to compute the query range of each key too, for the backward pass.
    """
    (B, H, T), S = query_clusters.shape, key_clusters.shape[-1]
    R = B * H
    furthest = 2 * max(T, S)  # no two positions are further apart
    span = 2 * furthest + 1  # distance between clusters, which no window exceeds
    before, after = (furthest if limit is None else min(limit, furthest) for limit in reach)
    keys_start = R * clusters * span
    # Sort keys that order tokens by side, row, cluster and position. A radix sort is faster with fewer bits.
    dtype = torch.int32 if 2 * keys_start + span < 1 << 31 else torch.int64
    first_cluster = torch.arange(0, 2 * R * clusters, clusters, dtype=dtype, device=key_clusters.device).view(2, R, 1)
    queries = torch.add(query_positions, query_clusters.reshape(R, T) + first_cluster[0], alpha=span)
    keys = torch.add(key_positions, key_clusters.reshape(R, S) + first_cluster[1], alpha=span)
    ordered = torch.sort(torch.cat((queries.flatten(), keys.flatten())).to(dtype))
    queries, keys = ordered.values[: R * T].view(R, T), ordered.values[R * T :].view(R, S)
    token = ordered.indices.to(torch.int32)
    order = TokenOrder(token[: R * T].view(R, T) % T, (token[R * T :].view(R, S) - R * T) % S)

    first_key = _search(keys, queries + (keys_start - before), right=False)
    end_key = _search(keys, queries + (keys_start + after), right=True)
    if not backward:
        return KeyRanges(first_key, end_key), order
    first_query = _search(queries, keys - (keys_start + after), right=False)
    end_query = _search(queries, keys - (keys_start - before), right=True)
    return KeyRanges(first_key, end_key, first_query, end_query), order


def _search(sorted_values: Tensor, values: Tensor, right: bool) -> Tensor:
    return torch.searchsorted(sorted_values, values, right=right, out_int32=True)


def nearest_centroid(x: Tensor, centroids: Tensor, bias: Tensor) -> Tensor:
    """Return the index of the centroid with the largest cosine similarity plus bias, (B, H, T), int32.

    Args:
        x: Tokens, (B, H, T, D).
        centroids: Centroids of unit length, (H, C, D).
        bias: Added to the similarity to each centroid, (H, C).
    """
    if torch.compiler.is_compiling():
        nearest: Tensor = _nearest_centroid_op(x, centroids, bias)
        return nearest
    return _nearest_centroid(x, centroids, bias)  # the custom operator would take the host longer than the kernel


def _nearest_centroid(x: Tensor, centroids: Tensor, bias: Tensor) -> Tensor:
    from regard.ops.triton import nearest_centroid as kernels

    x, stride = token_major(x)
    (B, H, T, D), C = x.shape, centroids.shape[1]
    nearest = x.new_empty(B, H, T, dtype=torch.int32)
    with on_device(x):
        kernels.nearest_centroid[B * H, max(1, -(-T // 64))](
            x, centroids.contiguous(), bias.contiguous(), nearest, stride, T, C, H,
            D=D, M=64, N=64 if D <= 64 else 32, num_warps=4, num_stages=2,
        )  # fmt: skip
    return nearest


_nearest_centroid_op = torch.library.custom_op(
    "regard::nearest_centroid",
    _nearest_centroid,
    mutates_args=(),
    schema="(Tensor x, Tensor centroids, Tensor bias) -> Tensor",
)


@_nearest_centroid_op.register_fake
def _(x: Tensor, centroids: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int32)
