"""Tokens sorted by group, so that whoever looks at its own group alone sees a run of neighbouring keys.

Nothing is padded and nothing is copied: the kernels of `short` read tokens where they lie. Nor is anything waited for,
whatever the sizes of the groups turn out to be.

Shapes: B batch, H heads, T queries, S keys, D head width, C centroids; R rows, B · H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks import Window
from regard.ops.dispatch import on_device
from regard.ops.key_ranges import KeyRanges
from regard.ops.operator import dense_last, strides
from regard.ops.varlen_attention import Order


def sort_by_cluster(
    of_query: Tensor,
    of_key: Tensor,
    groups: int,
    query_place: Tensor,
    key_place: Tensor,
    reach: Window,
    learning: bool = True,
) -> tuple[KeyRanges, Order]:
    """Queries and keys in the order of their groups, and which keys of its group within reach each query sees.

    Args:
        of_query: the group of each query, (B, H, T).
        of_key: the group of each key, (B, H, S).
        groups: how many there are.
        query_place: where each query stands, (T,), never falling.
        key_place: where each key stands, (S,), likewise.
        reach: how far before and behind its own place a query sees.
        learning: whether there will be a backward pass, which asks which queries see each key.
    """
    (B, H, T), S = of_query.shape, of_key.shape[-1]
    R = B * H
    far = 2 * max(T, S)  # no two places lie further apart
    span = 2 * far + 1  # so far from one group to the next that no window reaches over
    before, after = (far if bound is None else min(bound, far) for bound in reach)
    keys_begin = R * groups * span
    # Each a number in the order of rows, of groups and, within them, of places; those of keys behind all of queries. A
    # radix sort takes the longer, the more bits there are.
    dtype = torch.int32 if 2 * keys_begin + span < 1 << 31 else torch.int64
    first_group = torch.arange(0, 2 * R * groups, groups, dtype=dtype, device=of_key.device).view(2, R, 1)
    queries = torch.add(query_place, of_query.reshape(R, T) + first_group[0], alpha=span)
    keys = torch.add(key_place, of_key.reshape(R, S) + first_group[1], alpha=span)
    ordered = torch.sort(torch.cat((queries.flatten(), keys.flatten())).to(dtype))
    queries, keys = ordered.values[: R * T].view(R, T), ordered.values[R * T :].view(R, S)
    token = ordered.indices.to(torch.int32)
    order = Order(token[: R * T].view(R, T) % T, (token[R * T :].view(R, S) - R * T) % S)

    def count(values: Tensor, among: Tensor, right: bool) -> Tensor:
        """How many of its row are less than each value, or not more."""
        return torch.searchsorted(among, values, right=right, out_int32=True)

    lo = count(queries + (keys_begin - before), keys, right=False)
    hi = count(queries + (keys_begin + after), keys, right=True)
    if not learning:
        return KeyRanges(lo, hi), order
    first = count(keys - (keys_begin + after), queries, right=False)
    last = count(keys - (keys_begin - before), queries, right=True)
    return KeyRanges(lo, hi, first, last), order


def nearest_centroid(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    """The centroid that each token's direction is most like, (B, H, T), int32, leads added.

    Args:
        x: tokens, (B, H, T, D).
        centroids: of unit length, (H, C, D).
        leads: what is added to each centroid's likeness, (H, C).
    """
    if torch.compiler.is_compiling():
        found: Tensor = _nearest_node(x, centroids, leads)
        return found
    return _nearest(x, centroids, leads)  # as a node of a graph it would cost the host more than the kernel


def _nearest(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    from regard.ops.triton import nearest_centroid as kernels

    x = dense_last(x)
    (B, H, T, D), C = x.shape, centroids.shape[1]
    found = x.new_empty(B, H, T, dtype=torch.int32)
    with on_device(x):
        kernels.nearest[B * H, max(1, -(-T // 64))](
            x, centroids.contiguous(), leads.contiguous(), found, *strides(x), T, C, H,
            D=D, M=64, N=64 if D <= 64 else 32, num_warps=4, num_stages=2,
        )  # fmt: skip
    return found


_nearest_node = torch.library.custom_op(
    "regard::nearest_centroid", _nearest, mutates_args=(), schema="(Tensor x, Tensor centroids, Tensor leads) -> Tensor"
)


@_nearest_node.register_fake
def _(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int32)
