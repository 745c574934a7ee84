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
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import attend, attention_scores, attention_weights
from regard.attention.kind import Kind, check_at_least, check_choice, check_fraction
from regard.attention.masks import Mask, Packed, Padded, in_window
from regard.attention.packing import pack_padded, pad_packed, self_attention_rows
from regard.ops import dispatch
from regard.ops.cluster_sort import nearest, sort_by_group
from regard.ops.dispatch import AttentionPath
from regard.ops.varlen_attention import attend_key_ranges

RoutingPath = Literal["auto", "reference", "dense", "clusters", "sorted"]
MANY = 64
"""Fewer queries are done sooner with all scores and a mask than sorted by clusters."""
SMALL = 64
"""Up to so many members of a cluster a CPU is done sooner with the formula than with the blocks of the fused kernel."""
PIECE = 4096
"""Tokens that are compared with the centroids at a time: all of a long sequence would fill the memory."""
STEP = 16
"""On a GPU rows of clusters are a multiple of this long: its kernels copy masks of other shapes first."""


class Routing(nn.Module, Kind):
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
        for name, value in (("heads", heads), ("width", width), ("clusters", clusters)):
            check_at_least("routing attention", name, value, 1)
        check_fraction("routing attention", "decay", decay)
        if balance < 0:
            raise ValueError(f"routing attention: balance must not be negative, found {balance:g}")
        check_choice("routing attention", "path", path, get_args(RoutingPath))
        self.clusters, self.decay, self.balance, self.scale, self.path = clusters, decay, balance, scale, path
        self.register_buffer("centroids", F.normalize(torch.randn(heads, clusters, width), dim=-1))
        self.register_buffer("leads", torch.zeros(2, heads, clusters))  # of queries, of keys

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        many = (
            self.path == "auto"
            and q.shape[-2] >= MANY
            and mask.allowed is None
            and dispatch.attention_kernels_apply(q, k, v)
        )
        if many or self.path == "sorted":
            return self._attend_sorted(q, k, v, mask, dropout)
        rows = self_attention_rows(mask)
        if rows is not None and self.path != "reference":
            layout, mask = rows
            return pack_padded(
                self._attend(pad_packed(q, layout), pad_packed(k, layout), pad_packed(v, layout), mask, dropout), layout
            )
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
        few = q.shape[-2] < MANY or mask.allowed is not None or mask.packed
        if path == "auto" and (few or torch.compiler.is_compiling()):
            path = "dense"  # a compiled graph cannot wait to see how large the clusters turn out
        if path in ("auto", "clusters"):
            everyone = mask.keys is None and mask.queries is None
            queries, keys = _Members.of_both(of_query, of_key, self.clusters, everyone)
            if path == "clusters" or 2 * self.clusters * queries.most * keys.most < q.shape[-2] * k.shape[-2]:
                return self._attend_clusters(q, k, v, mask, queries, keys, dropout)
        plain: AttentionPath = "reference" if path == "reference" else "auto"
        return attend(q, k, v, mask & _same(of_query, of_key), scale=self.scale, dropout=dropout, path=plain)

    # Membership

    @torch.no_grad()
    def assign(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """The cluster of every query, (B, H, T), and of every key, (B, H, S); padding is beyond the last cluster."""
        queries, keys = mask.queries, mask.keys
        if q.shape == k.shape:  # a causal mask need not say how the keys lie, another need not say it of the queries
            queries, keys = keys if queries is None else queries, queries if keys is None else keys
        of_query, of_key = self._nearest(q, self.leads[0]), self._nearest(k, self.leads[1])
        if isinstance(queries, Padded) and queries.size == q.shape[-2]:
            of_query = of_query.masked_fill(~queries.real()[:, None], self.clusters)
        if isinstance(keys, Padded) and keys.size == k.shape[-2]:
            of_key = of_key.masked_fill(~keys.real()[:, None], self.clusters + 1)
        return of_query, of_key

    def _nearest(self, x: Tensor, leads: Tensor) -> Tensor:
        """The cluster of every token."""
        if dispatch.attention_kernels_apply(x, x, x):
            return nearest(x, self.centroids, leads)
        centroids = self.centroids.transpose(-2, -1)
        likenesses = ((_directions(piece, centroids) @ centroids).add_(leads[..., None, :]) for piece in _pieces(x, -2))
        found = [likeness.argmax(-1) for likeness in likenesses]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

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
        total = sizes.sum(-1, keepdim=True)
        shares = self.clusters * sizes / total.clamp(min=1)
        self.leads.add_(self.balance * (1 - shares).clamp(-1, 1) * (total > 0))  # padding alone says nothing of sizes

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
        places = mask.positions(q.shape[-2], k.shape[-2], q.device)
        learning = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        runs, order = sort_by_group(of_query, of_key, groups, *places, mask.reach, learning)
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        return attend_key_ranges(q, k, v, runs, scale, dropout, order)

    # Clusters beside each other, each a small attention of its own

    def _attend_clusters(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, queries: _Members, keys: _Members, dropout: float
    ) -> Tensor:
        allowed, shape = keys.taken[..., None, :], q.shape[:-1]
        if mask.reach != (None, None):
            query_place, key_place = mask.positions(q.shape[-2], k.shape[-2], q.device)
            near = in_window(mask.reach, query_place[queries.tokens][..., None], key_place[keys.tokens][..., None, :])
            assert near is not None
            allowed = allowed & near
        q, k, v = queries.gather(q), keys.gather(k), keys.gather(v)
        path: AttentionPath = "auto"
        if q.device.type == "cpu":  # whose kernel lays heads last, so that with more than one all would be copied
            q, k, v, allowed = (x.flatten(0, 1)[:, None] for x in (q, k, v, allowed))
            path = "reference" if keys.most <= SMALL else "auto"
        context = attend(q, k, v, Mask(allowed=allowed), scale=self.scale, dropout=dropout, path=path)
        return queries.spread(context, shape)


class _Members(NamedTuple):
    """Who belongs to which cluster, in rows of equal length, members in their original order; R rows, B · H."""

    tokens: Tensor  # the token at each place of each cluster, (R, C, M); some token where there is none
    taken: Tensor  # whether there is one, (R, C, M)
    rows: Tensor  # the same tokens, counted through all rows, (R · C · M,)
    slots: Tensor  # the place of each token among all places of all rows, (R · T,); some place for padding
    real: Tensor | None  # which tokens have a place, (B, H, T), because they are no padding; None: all

    @property
    def most(self) -> int:
        return self.tokens.shape[-1]

    @classmethod
    def of_both(cls, of_query: Tensor, of_key: Tensor, clusters: int, everyone: bool) -> tuple[_Members, _Members]:
        if of_query.shape != of_key.shape:
            (queries,), (keys,) = (cls.of([side], clusters, everyone) for side in (of_query, of_key))
        else:
            queries, keys = cls.of([of_query, of_key], clusters, everyone)  # one wait for the sizes
        return queries, keys

    @classmethod
    def of(cls, sides: Sequence[Tensor], clusters: int, everyone: bool) -> list[_Members]:
        """Those of each side, of which all have the same shape, (B, H, T)."""
        B, H, T = sides[0].shape
        n, R, device = len(sides), B * H, sides[0].device
        cluster = torch.cat([side.view(R, T) for side in sides])
        ordered = torch.sort(cluster, dim=-1, stable=True)
        bounds = torch.arange(clusters + 1, dtype=cluster.dtype, device=device).repeat(n * R, 1)
        edges = torch.searchsorted(ordered.values, bounds)
        starts, sizes = edges[:, :-1, None], edges.diff(dim=-1)[..., None]
        most = max(1, int(sizes.max()))
        most += -most % STEP if cluster.is_cuda else 0
        place = torch.arange(most, device=device)
        taken = place < sizes
        tokens = ordered.indices.gather(-1, (starts + place).flatten(1).clamp_(max=T - 1)).view(n, R, -1)
        first = torch.arange(0, R * T, T, device=device)[:, None]
        rows = (tokens + first).flatten(1)
        # A last slot more, which nobody will read, for places where there is no token.
        slots = rows.new_zeros(n, R * T + 1)
        all_places = torch.arange(rows.shape[1], device=device).expand(n, -1)
        slots.scatter_(1, rows.masked_fill(~taken.view(n, -1), R * T), all_places)
        return [
            cls(
                tokens[i].view(R, clusters, most),
                taken.view(n, R, clusters, most)[i],
                rows[i],
                slots[i, :-1],
                None if everyone else side < clusters,
            )
            for i, side in enumerate(sides)
        ]

    def gather(self, x: Tensor) -> Tensor:
        """(B, H, T, D) to (R, C, M, D); without padding, some token stands where there is none."""
        taken = None if self.real is None else self.taken
        return _Rearrange.run(x, self.rows, self.slots, taken, self.real, self.taken.shape)

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """(R, C, M, D) to (B, H, T, D), of which `shape` is B, H and T; padding gets zeros."""
        return _Rearrange.run(x, self.slots, self.rows, self.real, self.taken, shape)


class _Rearrange(torch.autograd.Function):
    """Rows to other places, where no row goes to two: so the way back is one, too, and needs no adding up.

    Where none belongs, as either side may say, there will be zeros; where a side does not say it, any row will do.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        there: Tensor,
        back: Tensor,
        filled: Tensor | None,
        filled_back: Tensor | None,
        shape: Sequence[int],
    ) -> Tensor:
        ctx.save_for_backward(there, back, filled, filled_back)
        ctx.shape = x.shape[:-1]
        moved = x.reshape(-1, x.shape[-1]).index_select(0, there)
        if filled is not None:
            moved.masked_fill_(~filled.reshape(-1, 1), 0.0)
        return moved.view(*shape, x.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        there, back, filled, filled_back = ctx.saved_tensors
        return _Rearrange.run(grad, back, there, filled_back, filled, ctx.shape), None, None, None, None, None

    @classmethod
    def run(cls, x: Tensor, *how: Any) -> Tensor:
        moved: Tensor = cls.apply(x, *how)  # type: ignore[no-untyped-call]
        return moved


def _same(of_query: Tensor, of_key: Tensor) -> Mask:
    return Mask(allowed=of_query[..., None] == of_key[..., None, :])


def _pieces(x: Tensor, dim: int) -> Sequence[Tensor]:
    return (x,) if torch.compiler.is_compiling() else torch.split(x, PIECE, dim)


def _directions(x: Tensor, like: Tensor) -> Tensor:
    return F.normalize(x.to(like.dtype), dim=-1)
