"""Tokens sorted by group, so that whoever looks at its own group alone sees a run of neighbouring keys.

Nothing is padded and nothing is copied: the kernels of `short` read tokens where they lie. Nor is anything waited for,
whatever the sizes of the groups turn out to be.

Shapes: B batch, H heads, T queries, S keys, D head width, C centroids; R rows, B · H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.kernels.operators import dense_last, strides
from regard.attention.kernels.short import Order, Runs
from regard.attention.masks import Window
from regard.launching import on_device


def sort_by_group(
    of_query: Tensor, of_key: Tensor, groups: int, query_place: Tensor, key_place: Tensor, reach: Window
) -> tuple[Runs, Order]:
    """Queries and keys in the order of their groups, and which keys of its group within reach each query sees.

    Args:
        of_query: the group of each query, (B, H, T).
        of_key: the group of each key, (B, H, S).
        groups: how many there are.
        query_place: where each query stands, (T,), never falling.
        key_place: where each key stands, (S,), likewise.
        reach: how far before and behind its own place a query sees.
    """
    (B, H, T), S = of_query.shape, of_key.shape[-1]
    R = B * H
    (q_group, q_token), (k_group, k_token) = _sorted(of_query.reshape(R, T), of_key.reshape(R, S), groups)
    span = 2 * max(T, S) + 1  # places lie within ±max(T, S)

    def codes(group: Tensor, place: Tensor) -> Tensor:
        """Numbers in the order of groups and, within them, of places."""
        return group * span + (place.flatten() + max(T, S)).clamp(0, span - 1)

    keys, query_place = codes(k_group, key_place[k_token]), query_place[q_token]
    lowest, highest = (torch.full_like(query_place, sign * span) for sign in (-1, 1))
    before, after = reach
    lo = torch.searchsorted(keys, codes(q_group, lowest if before is None else query_place - before))
    hi = torch.searchsorted(keys, codes(q_group, highest if after is None else query_place + after), right=True)
    key = torch.arange(R * S, device=keys.device)
    # Neither lo nor hi ever falls along the sorted row, so the queries of a key stand side by side, too.
    first, last = torch.searchsorted(hi, key, right=True), torch.searchsorted(lo, key, right=True)
    row = torch.arange(R, device=keys.device)[:, None]
    runs = [x.view(R, T) - row * S for x in (lo, hi)] + [x.view(R, S) - row * T for x in (first, last)]
    return Runs(*(x.to(torch.int32) for x in runs)), Order(q_token.to(torch.int32), k_token.to(torch.int32))


def _sorted(of_query: Tensor, of_key: Tensor, groups: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Group, (R · T,), and token, (R, T), of every place, of queries and of keys: one sort for all rows of both."""
    (R, T), S = of_query.shape, of_key.shape[1]
    row = torch.arange(R, device=of_key.device)[:, None] * groups
    both = torch.cat(((of_query + row).flatten(), (of_key + row + R * groups).flatten()))
    # A radix sort takes the longer, the more bits there are.
    largest = 2 * R * groups
    dtype = torch.int16 if largest < 1 << 15 else torch.int32 if largest < 1 << 31 else torch.int64
    ordered = torch.sort(both.to(dtype), stable=True)
    group, token = ordered.values.long(), ordered.indices
    return (
        (group[: R * T], token[: R * T].view(R, T) % T),
        (group[R * T :] - R * groups, (token[R * T :].view(R, S) - R * T) % S),
    )


def nearest(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    """The centroid that each token's direction is most like, (B, H, T), leads added.

    Args:
        x: tokens, (B, H, T, D).
        centroids: of unit length, (H, C, D).
        leads: what is added to each centroid's likeness, (H, C).
    """
    found: Tensor = _nearest(x, centroids, leads)
    return found


@torch.library.custom_op(
    "regard::nearest", mutates_args=(), schema="(Tensor x, Tensor centroids, Tensor leads) -> Tensor"
)
def _nearest(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    from regard.attention.kernels import grouping_triton as kernels

    x = dense_last(x)
    (B, H, T, D), C = x.shape, centroids.shape[1]
    found = x.new_empty(B, H, T, dtype=torch.int64)
    with on_device(x):
        kernels.nearest[B * H, max(1, -(-T // 64))](
            x, centroids.contiguous(), leads.contiguous(), found, *strides(x), T, C, H,
            D=D, M=64, N=64 if D <= 64 else 32, num_warps=4, num_stages=2,
        )  # fmt: skip
    return found


@_nearest.register_fake
def _(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)
