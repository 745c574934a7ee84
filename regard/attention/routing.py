"""Routing attention: clusters of queries and keys, learned by online k-means, say who looks at whom.

Every token's query and key each belong to one cluster, that of the nearest centroid; queries and keys share the
centroids. A query looks at the keys of its cluster alone, of these at all that the mask allows. Which cluster a token
is in depends on itself only, so that neither a later token nor another sentence can change it.

With √n clusters of √n tokens the cost of n tokens grows as n^1.5; with one cluster this is full attention.

Shapes: B batch, H heads, T queries, S keys, D head width, C clusters, M members of the largest cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import kernels
from regard.attention.core import Path, attend, attention_scores, attention_weights, in_rows, repack, unpack
from regard.attention.kernels.grouping import nearest, sort_by_group
from regard.attention.kernels.short import attend_runs
from regard.attention.masks import Mask, Packed, Padded, within

RoutingPath = Literal["auto", "reference", "dense", "clusters", "sorted"]
MANY = 512
"""From so many queries on a GPU sorts them, whatever it costs to launch that."""
PIECE = 4096
"""Tokens that are compared with the centroids at a time: all of a long sequence would fill the memory."""
STEP = 16
"""On a GPU rows of clusters are a multiple of this long: its kernels copy masks of other shapes first."""


class Routing(nn.Module):
    """Softmax attention within clusters; in training each call moves the centroids a little.

    A lead on each cluster's similarity, learned beside the centroids, keeps clusters of about equal size: it grows
    while a cluster gets less than its share. Without it a few clusters would take everything, at the full cost.

    Args:
        heads: how many; each has its own centroids.
        width: of a head.
        clusters: how many.
        decay: how much of a centroid stays at every step of training.
        balance: how fast a cluster's lead follows its size.
        scale: factor on the scores; 1/√D unless given.
        path: "auto" takes the fastest that fits; a named path is for tests and benchmarks.
    """

    centroids: Tensor
    leads: Tensor

    def __init__(
        self,
        heads: int,
        width: int,
        clusters: int,
        decay: float = 0.99,
        balance: float = 0.02,
        scale: float | None = None,
        path: RoutingPath = "auto",
    ) -> None:
        super().__init__()
        self.clusters, self.decay, self.balance, self.scale, self.path = clusters, decay, balance, scale, path
        self.register_buffer("centroids", F.normalize(torch.randn(heads, clusters, width), dim=-1))
        self.register_buffer("leads", torch.zeros(2, heads, clusters))  # of queries, of keys

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        many = self.path == "auto" and q.shape[-2] >= MANY and mask.allowed is None and kernels.usable(q, k, v)
        if many or self.path == "sorted":
            return self._attend_sorted(q, k, v, mask, dropout)
        rows = in_rows(mask)
        if rows is not None and self.path != "reference":
            layout, mask = rows
            return repack(self._attend(unpack(q, layout), unpack(k, layout), unpack(v, layout), mask, dropout), layout)
        return self._attend(q, k, v, mask, dropout)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_weights(q, k, mask & _same(*self.assign(q, k, mask)), scale=self.scale)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask & _same(*self.assign(q, k, mask)), scale=self.scale)

    def extra_repr(self) -> str:
        return f"clusters={self.clusters}, decay={self.decay:g}, balance={self.balance:g}"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        of_query, of_key = self.assign(q, k, mask)
        if self.training:
            self.learn(q, k, of_query, of_key)
        path = self.path
        if path == "auto" and (mask.allowed is not None or mask.packed or torch.compiler.is_compiling()):
            path = "dense"  # a compiled graph cannot wait to see how large the clusters turn out
        if path in ("auto", "clusters"):
            everyone = mask.keys is None and mask.queries is None
            queries, keys = _Members.of_both(of_query, of_key, self.clusters, everyone)
            if path == "clusters" or 2 * self.clusters * queries.most * keys.most < q.shape[-2] * k.shape[-2]:
                return self._attend_clusters(q, k, v, mask, queries, keys, dropout)
        plain: Path = "reference" if path == "reference" else "auto"
        return attend(q, k, v, mask & _same(of_query, of_key), scale=self.scale, dropout=dropout, path=plain)

    # Membership

    @torch.no_grad()
    def assign(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """The cluster of every query, (B, H, T), and of every key, (B, H, S); padding is beyond the last cluster."""
        # Of a causal mask over one padded sequence only the queries' layout is known, and it is the keys', too.
        key_layout = mask.queries if mask.keys is None and q.shape == k.shape else mask.keys
        of_query, of_key = self._nearest(q, self.leads[0]), self._nearest(k, self.leads[1])
        if isinstance(mask.queries, Padded) and mask.queries.size == q.shape[-2]:
            of_query = of_query.masked_fill(~mask.queries.real()[:, None], self.clusters)
        if isinstance(key_layout, Padded) and key_layout.size == k.shape[-2]:
            of_key = of_key.masked_fill(~key_layout.real()[:, None], self.clusters + 1)
        return of_query, of_key

    def _nearest(self, x: Tensor, leads: Tensor) -> Tensor:
        """The cluster of every token."""
        if kernels.usable(x, x, x):
            return nearest(x, self.centroids, leads)
        centroids = self.centroids.transpose(-2, -1)
        likenesses = ((_directions(piece, centroids) @ centroids).add_(leads[..., None, :]) for piece in _pieces(x, -2))
        return torch.cat([likeness.argmax(-1) for likeness in likenesses], -1)

    @torch.no_grad()
    def learn(self, q: Tensor, k: Tensor, of_query: Tensor, of_key: Tensor) -> None:
        """Moves the centroids towards their members' mean, and the leads towards equal sizes; padding has no say."""
        sums, sizes = torch.zeros_like(self.centroids), torch.zeros_like(self.leads)
        names = torch.arange(self.clusters, device=q.device)
        for side, (x, cluster) in enumerate(((q, of_query), (k, of_key))):
            for piece, of_piece in zip(_pieces(x, -2), _pieces(cluster, -1), strict=True):
                members = (of_piece[..., None] == names).to(sums.dtype)
                sums += (members.transpose(-2, -1) @ _directions(piece, sums)).sum(0)
                sizes[side] += members.sum((0, 2))
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * F.normalize(sums, dim=-1), dim=-1)
        # Empty clusters stay where they are; so do all in a step whose numbers are none, which the loop will skip.
        sound = (sizes.sum(0)[..., None] > 0) & moved.isfinite().all(-1, keepdim=True)
        self.centroids.copy_(torch.where(sound, moved, self.centroids))
        shares = self.clusters * sizes / sizes.sum(-1, keepdim=True).clamp(min=1)
        self.leads.add_(self.balance * (1 - shares).clamp(-1, 1))

    # Clusters as runs of tokens that have been sorted by them

    def _attend_sorted(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        if mask.allowed is not None:
            raise ValueError("sorted clusters take no dense mask")
        of_query, of_key = self.assign(q, k, mask)
        if self.training:
            self.learn(q, k, of_query, of_key)
        groups = self.clusters + 2  # beyond the last stand queries that are padding, then such keys
        if isinstance(mask.queries, Packed) and isinstance(mask.keys, Packed):
            of_query, of_key = of_query + groups * mask.queries.segments(), of_key + groups * mask.keys.segments()
            groups *= len(mask.keys.offsets) - 1
        places = mask.places(q.shape[-2], k.shape[-2], q.device)
        runs, order = sort_by_group(of_query, of_key, groups, *places, mask.reach)
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        return attend_runs(q, k, v, runs, scale, dropout, order)

    # Clusters beside each other, each a small attention of its own

    def _attend_clusters(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, queries: _Members, keys: _Members, dropout: float
    ) -> Tensor:
        C, M = self.clusters, keys.most
        query_place, key_place = mask.places(q.shape[-2], k.shape[-2], q.device)
        key = keys.tokens.view(-1, C, 1, M)
        allowed = key >= 0
        near = within(mask.reach, query_place[queries.tokens].view(-1, C, queries.most, 1), key_place[key])
        if near is not None:
            allowed = allowed & near
        q, k, v = queries.gather(q), keys.gather(k), keys.gather(v)
        if q.device.type == "cpu":  # whose kernel lays heads last, so that with more than one all would be copied
            q, k, v, allowed = (x.flatten(0, 1)[:, None] for x in (q, k, v, allowed))
        return queries.spread(attend(q, k, v, Mask(allowed=allowed), scale=self.scale, dropout=dropout))


class _Members(NamedTuple):
    """Who belongs to which cluster, in rows of equal length, members in their original order."""

    tokens: Tensor  # the token at each place of each cluster, (B, H, C · M); -1: there is none
    slots: Tensor  # the place of each token among all places, (B, H, T); padding has none: -1
    most: int  # M
    everyone: bool  # whether every token has a place, because none is padding

    @classmethod
    def of_both(cls, of_query: Tensor, of_key: Tensor, clusters: int, everyone: bool) -> tuple[_Members, _Members]:
        if of_query.shape != of_key.shape:
            return cls.of(of_query, clusters, everyone), cls.of(of_key, clusters, everyone)
        both = cls.of(torch.cat((of_query, of_key)), clusters, everyone)  # one wait for the sizes
        B = len(of_query)
        return both._replace(tokens=both.tokens[:B], slots=both.slots[:B]), both._replace(
            tokens=both.tokens[B:], slots=both.slots[B:]
        )

    @classmethod
    def of(cls, cluster: Tensor, clusters: int, everyone: bool) -> _Members:
        B, H, T = cluster.shape
        ordered = torch.sort(cluster, dim=-1, stable=True)
        bounds = torch.arange(clusters + 1, device=cluster.device).expand(B, H, -1).contiguous()
        edges = torch.searchsorted(ordered.values, bounds)
        starts, sizes = edges[..., :-1], edges.diff(dim=-1)
        most = max(1, int(sizes.max()))
        most += -most % STEP if cluster.is_cuda else 0
        place = torch.arange(most, device=cluster.device)
        at = (starts[..., None] + place).clamp(max=T - 1).flatten(2)
        tokens = ordered.indices.gather(-1, at).masked_fill((place >= sizes[..., None]).flatten(2), -1)
        rank = torch.arange(T, device=cluster.device) - F.pad(starts, (0, 2)).gather(-1, ordered.values)
        sorted_slots = (ordered.values * most + rank).masked_fill(ordered.values >= clusters, -1)
        slots = torch.empty_like(sorted_slots).scatter_(-1, ordered.indices, sorted_slots)
        return cls(tokens, slots, most, everyone)

    def gather(self, x: Tensor) -> Tensor:
        """(B, H, T, D) to (B · H, C, M, D); without padding, some token stands where there is none."""
        B, H, _, D = x.shape
        return _Rearrange.run(x, self.tokens, self.slots, self.everyone, self.everyone).view(B * H, -1, self.most, D)

    def spread(self, x: Tensor) -> Tensor:
        """(B · H, C, M, D) to (B, H, T, D); padding gets zeros."""
        x = x.reshape(*self.tokens.shape, x.shape[-1])
        return _Rearrange.run(x, self.slots, self.tokens, self.everyone, False)


class _Rearrange(torch.autograd.Function):
    """Rows to other places, where no row goes to two: so the way back is one, too, and needs no adding up.

    `some` says of either way that any row will do where none belongs; otherwise there will be zeros.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, some: bool, some_back: bool) -> Tensor:
        ctx.save_for_backward(there, back)
        ctx.some = some_back, some
        B, H, N, D = x.shape
        first = torch.arange(B * H, device=x.device).view(B, H, 1) * N
        rows = (there.clamp(min=0) + first).flatten()
        moved = x.reshape(-1, D).index_select(0, rows).view(B, H, -1, D)
        return moved if some else moved.masked_fill_((there < 0)[..., None], 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        there, back = ctx.saved_tensors
        return _Rearrange.run(grad, back, there, *ctx.some), None, None, None, None

    @classmethod
    def run(cls, x: Tensor, there: Tensor, back: Tensor, some: bool, some_back: bool) -> Tensor:
        moved: Tensor = cls.apply(x, there, back, some, some_back)  # type: ignore[no-untyped-call]
        return moved


def _same(of_query: Tensor, of_key: Tensor) -> Mask:
    return Mask(allowed=of_query[..., None] == of_key[..., None, :])


def _pieces(x: Tensor, dim: int) -> Sequence[Tensor]:
    return (x,) if torch.compiler.is_compiling() else torch.split(x, PIECE, dim)


def _directions(x: Tensor, like: Tensor) -> Tensor:
    return F.normalize(x.to(like.dtype), dim=-1)
