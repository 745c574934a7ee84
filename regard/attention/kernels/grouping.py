"""Tokens sorted by group, so that whoever looks at its own group alone sees a run of neighbouring keys.

Nothing is padded and nothing is copied: the kernels of `short` read tokens where they lie. Nor is anything waited for,
whatever the sizes of the groups turn out to be.

Shapes: B batch, H heads, T queries, S keys, D head width, C centroids; R rows, B · H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.kernels.short import Order, Runs
from regard.attention.masks import Window


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
    group, token = _sorted(of_query, of_key, R, groups)
    q_group, k_group = group.split([R * T, R * S])
    q_token, k_token = (token.split([R * T, R * S])[side].view(R, -1) for side in (0, 1))
    before, after = reach
    span = 2 * max(T, S) + 1  # places lie within ±max(T, S)

    def codes(of: Tensor, place: Tensor) -> Tensor:
        return of.long() * span + (place.flatten() + max(T, S)).clamp(0, span - 1)

    keys = codes(k_group, key_place[k_token]) if reach != (None, None) else k_group
    queries = query_place[q_token]
    lo = (
        torch.searchsorted(k_group, q_group)
        if before is None
        else torch.searchsorted(keys, codes(q_group, queries - before))
    )
    hi = (
        torch.searchsorted(k_group, q_group, right=True)
        if after is None
        else torch.searchsorted(keys, codes(q_group, queries + after), right=True)
    )
    key = torch.arange(R * S, device=of_key.device)
    # Neither lo nor hi ever falls along the sorted row, so the queries of a key stand side by side, too.
    first, last = torch.searchsorted(hi, key, right=True), torch.searchsorted(lo, key, right=True)
    row = torch.arange(R, device=of_key.device)[:, None]
    in_row = [x.view(R, -1) - row * S for x in (lo, hi)] + [x.view(R, -1) - row * T for x in (first, last)]
    return Runs(*(x.to(torch.int32) for x in in_row)), Order(q_token.to(torch.int32), k_token.to(torch.int32))


def _sorted(of_query: Tensor, of_key: Tensor, R: int, groups: int) -> tuple[Tensor, Tensor]:
    """Group and token of every place, first all rows of queries, then all rows of keys: one sort for all of them."""
    total = R * groups
    row = torch.arange(R, device=of_key.device)[:, None] * groups
    parts = (of_query.view(R, -1) + row).flatten(), (of_key.view(R, -1) + row + total).flatten()
    # A radix sort takes the longer, the more bits there are.
    dtype = torch.int16 if 2 * total < 1 << 15 else torch.int32 if 2 * total < 1 << 31 else torch.int64
    ordered = torch.sort(torch.cat(parts).to(dtype), stable=True)
    group = ordered.values.to(torch.int32 if dtype == torch.int16 else dtype)
    queries, keys = ordered.indices.split([len(part) for part in parts])
    T, S = of_query.shape[-1], of_key.shape[-1]
    token = torch.cat((queries % T, (keys - len(queries)) % S))
    return torch.cat((group[: len(queries)], group[len(queries) :] - total)), token


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

    x = x if x.stride(-1) == 1 else x.contiguous()
    (B, H, T, D), C = x.shape, centroids.shape[1]
    found = x.new_empty(B, H, T, dtype=torch.int64)
    kernels.nearest[(max(1, -(-T // 64)), B * H)](
        x, centroids.contiguous(), leads.contiguous(), found,
        x.stride(0), x.stride(1), x.stride(2), T, C, H,
        D=D, M=64, N=64 if D <= 64 else 32, num_warps=4, num_stages=2,
    )  # fmt: skip
    return found


@_nearest.register_fake
def _(x: Tensor, centroids: Tensor, leads: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)
