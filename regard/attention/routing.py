"""Routing attention: online k-means clusters of queries and keys decide which query attends to which key.

Every query and every key belongs to the cluster of its nearest centroid; queries and keys share the centroids. A query
attends to the keys of its cluster that the mask allows. The cluster of a token depends on this token only, so later
tokens and other sentences cannot change it.

With √n clusters of √n tokens the cost of n tokens is O(n^1.5); with one cluster this is full attention.

Shapes: B batch, H heads, T queries, S keys, D head width, C clusters, M members of the largest cluster.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from regard.attention.core import attend, attention_scores, check_at_least, check_choice, check_inputs, equal_widths
from regard.attention.kinds import Kind, KindSettings
from regard.attention.packing import attend_padded
from regard.masks import Mask, Packed, Padded, in_window
from regard.ops import dispatch
from regard.ops.cluster_sort import nearest_centroid, sort_by_cluster
from regard.ops.dispatch import AttentionImplementation
from regard.ops.varlen_attention import attend_key_ranges
from regard.registry import register

RoutingImplementation = Literal["auto", "reference", "dense", "clusters", "sorted"]
MIN_QUERIES = 64
"""With fewer queries, all scores and a mask are faster than sorting by cluster."""
MAX_FORMULA_MEMBERS = 64
"""On CPU, the formula is faster than SDPA within clusters of up to this size."""
CHUNK = 4096
"""Tokens that are compared with the centroids at once, to bound the memory for long sequences."""


class Routing(nn.Module, Kind):
    """Softmax attention within clusters; in training, every call updates the centroids.

    A bias on the similarity to each centroid keeps the clusters at about equal size: it grows while a cluster gets less
    than its share. Without it, few clusters would take almost all tokens, at the cost of full attention.

    Args:
        heads: Number of heads, each with its own centroids.
        width: Head width, D.
        clusters: Number of clusters, C.
        decay: Weight of the previous centroid in its moving average.
        balance: Step size of the balancing bias.
        scale: Factor on the scores; 1/√D by default.
        implementation: Implementation to use; "auto" selects the fastest.
    """

    centroids: Tensor
    balance_bias: Tensor

    def __init__(
        self,
        heads: int,
        width: int,
        clusters: int,
        decay: float = 0.99,
        balance: float = 0.02,
        scale: float | None = None,
        implementation: RoutingImplementation = "auto",
    ) -> None:
        super().__init__()
        for name, value in (("heads", heads), ("width", width), ("clusters", clusters)):
            check_at_least("routing attention", name, value, 1)
        if not 0 <= decay <= 1:
            raise ValueError(f"routing attention: decay must be between 0 and 1, not {decay!r}")
        if balance < 0:
            raise ValueError(f"routing attention: balance must not be negative, found {balance:g}")
        check_choice("routing attention", "implementation", implementation, get_args(RoutingImplementation))
        self.clusters, self.decay, self.balance, self.scale = clusters, decay, balance, scale
        self.implementation = implementation
        self.register_buffer("centroids", F.normalize(torch.randn(heads, clusters, width), dim=-1))
        self.register_buffer("balance_bias", torch.zeros(2, heads, clusters))  # of queries, of keys

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_inputs(q, k, v, mask)
        if self.implementation == "sorted" or (self.implementation == "auto" and self._sorting_applies(q, k, v, mask)):
            return self._attend_sorted(q, k, v, mask, dropout)
        attend_clusters = partial(self._attend, dropout=dropout)
        if self.implementation == "reference":
            return attend_clusters(q, k, v, mask)
        return attend_padded(attend_clusters, q, k, v, mask)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask & _same_cluster(*self.assign(q, k, mask)), scale=self.scale)

    def extra_repr(self) -> str:
        return f"clusters={self.clusters}, decay={self.decay:g}, balance={self.balance:g}"

    def _sorting_applies(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
        return q.shape[-2] >= MIN_QUERIES and mask.allowed is None and dispatch.attention_kernels_apply(q, k, v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend within clusters by the selected implementation, after moving the centroids in training."""
        query_clusters, key_clusters = self.assign(q, k, mask)
        if self.training:
            self.update_centroids(q, k, query_clusters, key_clusters)
        implementation, T, S = self.implementation, q.shape[-2], k.shape[-2]
        supported = mask.allowed is None and not mask.packed
        if implementation == "clusters" and not supported:
            raise ValueError("implementation='clusters' supports no dense mask and no packed cross-attention")
        # The sizes of clusters are data, on which a compiled graph cannot depend.
        slow = T < MIN_QUERIES or not supported or torch.compiler.is_compiling()
        if (implementation == "auto" and slow) or not (q.numel() and k.numel()):
            implementation = "dense"
        if implementation in ("auto", "clusters"):
            padded = mask.keys is not None or mask.queries is not None
            queries, keys = _Members.of(query_clusters, key_clusters, self.clusters, padded)
            if implementation == "clusters" or 2 * self.clusters * queries.largest * keys.largest < T * S:
                return self._attend_clusters(q, k, v, mask, queries, keys, dropout)
        masked = mask & _same_cluster(query_clusters, key_clusters)
        inner: AttentionImplementation = "reference" if implementation == "reference" else "auto"
        return attend(q, k, v, masked, scale=self.scale, dropout=dropout, implementation=inner)

    # Clustering

    @torch.no_grad()
    def assign(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Return the cluster of every query, (B, H, T), and key, (B, H, S); C or more for padding."""
        queries, keys = mask.queries, mask.keys
        if q.shape == k.shape:  # self-attention: either layout may be missing in the mask
            queries, keys = keys if queries is None else queries, queries if keys is None else keys
        query_clusters, key_clusters = self._nearest(q, self.balance_bias[0]), self._nearest(k, self.balance_bias[1])
        if isinstance(queries, Padded) and queries.size == q.shape[-2]:
            query_clusters = query_clusters.masked_fill(~queries.real()[:, None], self.clusters)
        if isinstance(keys, Padded) and keys.size == k.shape[-2]:
            key_clusters = key_clusters.masked_fill(~keys.real()[:, None], self.clusters + 1)
        return query_clusters, key_clusters

    def _nearest(self, x: Tensor, bias: Tensor) -> Tensor:
        if dispatch.attention_kernels_apply(x, x, x):
            return nearest_centroid(x, self.centroids, bias)
        centroids = self.centroids.transpose(-2, -1)
        similarities = ((_directions(part, centroids) @ centroids).add_(bias[..., None, :]) for part in _chunks(x, -2))
        nearest = [similarity.argmax(-1) for similarity in similarities]
        return nearest[0] if len(nearest) == 1 else torch.cat(nearest, -1)

    @torch.no_grad()
    def update_centroids(self, q: Tensor, k: Tensor, query_clusters: Tensor, key_clusters: Tensor) -> None:
        """Move the centroids towards the mean of their members, and the bias towards equal sizes, without padding."""
        sums, sizes = torch.zeros_like(self.centroids), torch.zeros_like(self.balance_bias)
        indices = torch.arange(self.clusters, device=q.device)
        for side, (x, clusters) in enumerate(((q, query_clusters), (k, key_clusters))):
            for part, part_clusters in zip(_chunks(x, -2), _chunks(clusters, -1), strict=True):
                members = (part_clusters[..., None] == indices).to(sums.dtype)
                sums += (members.transpose(-2, -1) @ _directions(part, sums)).sum(0)
                sizes[side] += members.sum((0, 2))
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * F.normalize(sums, dim=-1), dim=-1)
        # Empty clusters keep their centroid, and all do in a step with NaN, which the training loop skips.
        valid = (sizes.sum(0)[..., None] > 0) & moved.isfinite().all(-1, keepdim=True)
        self.centroids.copy_(torch.where(valid, moved, self.centroids))
        total = sizes.sum(-1, keepdim=True)
        shares = self.clusters * sizes / total.clamp(min=1)
        self.balance_bias.add_(self.balance * (1 - shares).clamp(-1, 1) * (total > 0))  # no update by padding alone

    # Clusters as ranges of sorted tokens, on a GPU

    def _attend_sorted(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend by kernel to key ranges of tokens sorted by cluster, after moving the centroids in training."""
        padded = equal_widths(q, k, v)
        if mask.allowed is not None or not dispatch.attention_kernels_apply(*padded):
            raise ValueError(
                "implementation='sorted' supports heads of up to 128 features on a GPU, without a dense mask"
            )
        query_clusters, key_clusters = self.assign(q, k, mask)
        if self.training:
            self.update_centroids(q, k, query_clusters, key_clusters)
        clusters = self.clusters + 2  # with one for padding queries and one for padding keys
        if isinstance(mask.queries, Packed) and isinstance(mask.keys, Packed):
            query_clusters = query_clusters + clusters * mask.queries.segments()
            key_clusters = key_clusters + clusters * mask.keys.segments()
            clusters *= len(mask.keys.offsets) - 1
        positions = mask.positions(q.shape[-2], k.shape[-2], q.device)
        backward = dispatch.records_grad(q, k, v)
        ranges, order = sort_by_cluster(query_clusters, key_clusters, clusters, *positions, mask.reach, backward)
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        return attend_key_ranges(*padded, ranges, scale, dropout, order)[..., : v.shape[-1]]

    # Clusters as a batch of small attentions

    def _attend_clusters(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, queries: "_Members", keys: "_Members", dropout: float
    ) -> Tensor:
        """Attend with the members of each cluster gathered into a row, padded to the largest cluster.

        Rows become the batch and clusters the heads, (R, C, M, D). The context of empty query slots is never read.
        """
        shape, on_cpu = q.shape[:-1], q.device.type == "cpu"
        allowed = keys.occupied[..., None, :]  # (R, C, 1, M)
        if mask.reach != (None, None):  # a causal mask or a window
            positions = mask.positions(q.shape[-2], k.shape[-2], q.device)
            query_positions, key_positions = positions[0][queries.tokens], positions[1][keys.tokens]
            in_reach = in_window(mask.reach, query_positions[..., None], key_positions[..., None, :])
            assert in_reach is not None
            allowed = allowed & in_reach  # (R, C, M, M)
        q, k, v = queries.gather(q), keys.gather(k), keys.gather(v)
        if on_cpu:  # one head, (R · C, 1, M, D): SDPA on CPU copies inputs with more than one
            q, k, v, allowed = (x.flatten(0, 1)[:, None] for x in (q, k, v, allowed))
        few = on_cpu and keys.largest <= MAX_FORMULA_MEMBERS
        inner: AttentionImplementation = "reference" if few else "auto"
        context = attend(q, k, v, Mask(allowed=allowed), scale=self.scale, dropout=dropout, implementation=inner)
        return queries.scatter(context, shape)


class _Members(NamedTuple):
    """The tokens of each cluster in slots of equal number, in their original order; R = B · H rows."""

    tokens: Tensor  # token in each slot, (R, C, M); arbitrary in empty slots
    occupied: Tensor  # which slots hold a token, (R, C, M)
    rows: Tensor  # the same tokens as indices into all rows, (R · C · M,)
    slots: Tensor  # slot of each token, as an index into the slots of all rows, (R · T,); arbitrary for padding
    real: Tensor | None  # which tokens are not padding, (B, H, T); None if there is no padding

    @property
    def largest(self) -> int:
        return self.tokens.shape[-1]

    @classmethod
    def of(cls, query_clusters: Tensor, key_clusters: Tensor, clusters: int, padded: bool) -> "list[_Members]":
        """Return the members of the clusters of queries and of keys."""
        if query_clusters.shape != key_clusters.shape:
            return [*cls._of([query_clusters], clusters, padded), *cls._of([key_clusters], clusters, padded)]
        return cls._of([query_clusters, key_clusters], clusters, padded)  # the host waits for both sizes at once

    @classmethod
    def _of(cls, sides: Sequence[Tensor], clusters: int, padded: bool) -> "list[_Members]":
        """Return the members of each side; sides are cluster indices of equal shape, (B, H, T)."""
        B, H, T = sides[0].shape
        n, R, device = len(sides), B * H, sides[0].device
        cluster = torch.cat([side.view(R, T) for side in sides])
        ordered = torch.sort(cluster, dim=-1, stable=True)
        bounds = torch.arange(clusters + 1, dtype=cluster.dtype, device=device).repeat(n * R, 1)
        edges = torch.searchsorted(ordered.values, bounds)
        starts, sizes = edges[:, :-1, None], edges.diff(dim=-1)[..., None]
        largest = max(1, int(sizes.max()))
        slot = torch.arange(largest, device=device)
        occupied = slot < sizes
        tokens = ordered.indices.gather(-1, (starts + slot).flatten(1).clamp_(max=T - 1)).view(n, R, -1)
        first = torch.arange(0, R * T, T, device=device)[:, None]
        rows = (tokens + first).flatten(1)
        slots = rows.new_zeros(n, R * T + 1)  # the last column receives the writes of empty slots
        all_slots = torch.arange(rows.shape[1], device=device).expand(n, -1)
        slots.scatter_(1, rows.masked_fill(~occupied.view(n, -1), R * T), all_slots)
        return [
            cls(
                tokens[i].view(R, clusters, largest),
                occupied.view(n, R, clusters, largest)[i],
                rows[i],
                slots[i, :-1],
                side < clusters if padded else None,
            )
            for i, side in enumerate(sides)
        ]

    def gather(self, x: Tensor) -> Tensor:
        """(B, H, T, D) to (R, C, M, D). Empty slots are zero if there is padding, otherwise arbitrary tokens."""
        occupied = None if self.real is None else self.occupied
        return _IndexRows.run(x, self.rows, self.slots, occupied, self.real, self.occupied.shape)

    def scatter(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """(R, C, M, D) to (*shape, D) with shape (B, H, T); padding is zero."""
        return _IndexRows.run(x, self.slots, self.rows, self.real, self.occupied, shape)


class _IndexRows(torch.autograd.Function):
    """Index rows by a one-to-one mapping, so that the gradient is indexed by the inverse and never accumulated.

    `valid` and `inverse_valid` mark the outputs that are set in either direction; the others are zero. None means that
    all are set.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor,
        inverse: Tensor,
        valid: Tensor | None,
        inverse_valid: Tensor | None,
        shape: Sequence[int],
    ) -> Tensor:
        ctx.save_for_backward(index, inverse, valid, inverse_valid)
        ctx.shape = x.shape[:-1]
        y = x.reshape(-1, x.shape[-1]).index_select(0, index)
        if valid is not None:
            y.masked_fill_(~valid.reshape(-1, 1), 0.0)
        return y.view(*shape, x.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, inverse, valid, inverse_valid = ctx.saved_tensors
        return _IndexRows.run(grad, inverse, index, inverse_valid, valid, ctx.shape), None, None, None, None, None

    @classmethod
    def run(cls, x: Tensor, *arguments: Any) -> Tensor:
        y: Tensor = cls.apply(x, *arguments)  # type: ignore[no-untyped-call]
        return y


def _same_cluster(query_clusters: Tensor, key_clusters: Tensor) -> Mask:
    return Mask(allowed=query_clusters[..., None] == key_clusters[..., None, :])


def _chunks(x: Tensor, dim: int) -> Sequence[Tensor]:
    return (x,) if torch.compiler.is_compiling() else torch.split(x, CHUNK, dim)


def _directions(x: Tensor, like: Tensor) -> Tensor:
    return F.normalize(x.to(like.dtype), dim=-1)


# Settings


@register
class RoutingSettings(KindSettings):
    """Every token attends to the tokens of its cluster; clusters are learned."""

    kind: Literal["routing"] = "routing"
    clusters: int = Field(8, gt=0, description="number of clusters; try the square root of the typical length")
    decay: float = Field(0.99, ge=0, le=1, description="weight of the previous centroid in its moving average")
    balance: float = Field(0.02, ge=0, description="step size of the bias that keeps clusters at equal size")

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Routing(heads, width, self.clusters, self.decay, self.balance, scale)
