"""Linear attention: without the softmax, products may be taken in another order, V (Kᵀ Q) = (V Kᵀ) Q.

The scores of a query and a key are a product of features, φ(q)·φ(k). All that a query needs of the keys is then one sum
over them, Σ φ(k) vᵀ, which does not grow with their number. Three forms of one formula: quadratic (all scores, the
reference), chunked (the causal sum by blocks), recurrent (token by token, as in decoding).

Shapes: B batch, H heads, T queries, S keys, D head width, F features, n chunks of c tokens.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import in_rows, repack, unpack
from regard.attention.masks import Mask, Padded

Features = Literal["elu", "random", "plain"]
LinearPath = Literal["auto", "quadratic", "chunked", "recurrent"]
CHUNK = 128


class Sums(NamedTuple):
    """What the keys seen so far come to: Σ φ(k) vᵀ, (B, H, F, D), and Σ φ(k), (B, H, F), in float32 or better."""

    values: Tensor
    features: Tensor


class Linear(nn.Module):
    """Attention whose weights are φ(q)·φ(k), divided by their sum; "plain" is the bare product, not divided.

    Args:
        width: of a head.
        features: "elu" is elu(x) + 1; "random" are positive random features, whose products have the exponential of
            softmax as their mean; "plain" is x itself.
        size: how many random features; about D log D unless given.
        scale: factor on q·k; unless given 1/√D, and 1 for "elu".
        path: "auto" takes the fastest that fits; a named path is for tests and benchmarks.
    """

    directions: Tensor

    def __init__(
        self,
        width: int,
        features: Features = "elu",
        size: int | None = None,
        scale: float | None = None,
        path: LinearPath = "auto",
    ) -> None:
        super().__init__()
        self.features, self.path = features, path
        self.scale = scale if scale is not None else 1.0 if features == "elu" else 1 / math.sqrt(width)
        if features == "random":
            size = max(16, int(width * math.log(width)) // 16 * 16) if size is None else size
            self.register_buffer("directions", random_directions(size, width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        if dropout:
            raise ValueError("linear attention never makes the weights that attention dropout would drop")
        rows = in_rows(mask)
        if rows is not None and self.path != "quadratic":
            layout, mask = rows
            return repack(self._attend(unpack(q, layout), unpack(k, layout), unpack(v, layout), mask), layout)
        return self._attend(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        scores = self._map_queries(q) @ self._map_keys(k).transpose(-2, -1)
        may = mask.dense(q.shape[-2], k.shape[-2], q.device)
        if may is not None:
            scores = scores.masked_fill(~may, 0.0)
        return scores if self.features == "plain" else _divide(scores, scores.sum(-1))

    def advance(self, q: Tensor, k: Tensor, v: Tensor, sums: Sums | None) -> tuple[Tensor, Sums]:
        """The context of the next tokens, each of which sees itself and all before it; and the sums behind them."""
        phi_q, phi_k = self._map_queries(q), self._map_keys(k)
        forward = self._recur if q.shape[-2] == 1 or self.path == "recurrent" else self._by_chunks
        return forward(phi_q, phi_k, v, sums)

    def extra_repr(self) -> str:
        return f"{self.features!r}, scale={self.scale:g}"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        T, S = q.shape[-2], k.shape[-2]
        symbolic = mask.window is None and mask.allowed is None and not mask.packed
        if self.path == "quadratic" or not symbolic or (mask.causal and T > S):
            weights = self.weights(q, k, mask)
            return (weights @ v.to(weights.dtype)).to(v.dtype)
        phi_q, phi_k = self._map_queries(q), self._map_keys(k)
        if isinstance(mask.keys, Padded):
            phi_k = phi_k.masked_fill(~mask.keys.real()[:, None, :, None], 0.0)
        if not mask.causal:
            dtype = _fast(v)
            return self._read(phi_q.to(dtype), _add_up(phi_k.to(dtype), v)).to(v.dtype)
        forward = self._recur if self.path == "recurrent" else self._by_chunks
        earlier = _add_up(phi_k[..., : S - T, :], v[..., : S - T, :]) if S > T else None
        return forward(phi_q, phi_k[..., S - T :, :], v[..., S - T :, :], earlier)[0]

    # The causal sum

    def _by_chunks(self, phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: Sums | None) -> tuple[Tensor, Sums]:
        """Within a chunk all scores, of the chunks before it their sums alone."""
        T = v.shape[-2]
        c = min(CHUNK, T)
        dtype = _fast(v)
        phi_q, phi_k, v_ = (_cut(x, c).to(dtype) for x in (phi_q, phi_k, v))
        scores = (phi_q @ phi_k.transpose(-2, -1)).tril()
        each = _add_up(phi_k, v_)
        start = _zeros_like(each) if sums is None else sums
        values, features = (
            torch.cat((first[:, :, None], rest), 2).cumsum(2) for first, rest in zip(start, each, strict=True)
        )
        context = scores @ v_ + phi_q @ values[:, :, :-1].to(dtype)
        if self.features != "plain":
            wide = values.dtype
            total = scores.to(wide).sum(-1) + (phi_q.to(wide) @ features[:, :, :-1, :, None]).squeeze(-1)
            context = _divide(context.to(wide), total)
        after = Sums(values[:, :, -1], features[:, :, -1])
        return context.flatten(2, 3)[:, :, :T].to(v.dtype), after

    def _recur(self, phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: Sums | None) -> tuple[Tensor, Sums]:
        """Token by token."""
        context = []
        for t in range(v.shape[-2]):
            here = slice(t, t + 1)
            added = _add_up(phi_k[..., here, :], v[..., here, :])
            sums = added if sums is None else Sums(sums.values + added.values, sums.features + added.features)
            context.append(self._read(phi_q[..., here, :], sums))
        assert sums is not None
        return torch.cat(context, -2).to(v.dtype), sums

    def _read(self, phi_q: Tensor, sums: Sums) -> Tensor:
        """What queries get from keys that they all see."""
        context = phi_q @ sums.values.to(phi_q.dtype)
        if self.features == "plain":
            return context
        wide = sums.features.dtype
        return _divide(context.to(wide), (phi_q.to(wide) @ sums.features[..., None]).squeeze(-1))

    # Features

    def _map_queries(self, q: Tensor) -> Tensor:
        q = q.to(torch.promote_types(q.dtype, torch.float32))
        if self.features == "plain":
            return q * self.scale
        if self.features == "elu":
            return F.elu(q * math.sqrt(self.scale)) + 1
        exponent = self._exponent(q)
        # A factor of its own for every query goes out again when the weights are divided by their sum.
        return (exponent - exponent.amax(-1, keepdim=True).detach()).exp()

    def _map_keys(self, k: Tensor) -> Tensor:
        k = k.to(torch.promote_types(k.dtype, torch.float32))
        if self.features == "plain":
            return k
        if self.features == "elu":
            return F.elu(k * math.sqrt(self.scale)) + 1
        # No factor of the loudest key here: it would tell queries about later keys. Far beyond this float32 ends.
        return self._exponent(k).clamp(-40, 40).exp()

    def _exponent(self, x: Tensor) -> Tensor:
        x = x * math.sqrt(self.scale)
        return x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2


class RunningSums:
    """The cache of linear attention: of constant size, however many tokens have been decoded.

    Args:
        kind: whose sums these are.
        abreast: how many tokens of a row stand side by side, each the next of a hypothesis of its own.
    """

    def __init__(self, kind: Linear, abreast: int = 1) -> None:
        self.kind, self.abreast = kind, abreast
        self.length = 0
        self.sums: Sums | None = None  # a row for every hypothesis

    def advance(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The context of the next tokens, which the sums take in."""
        B, H, T, D = q.shape
        if self.abreast > 1:
            q, k, v = (x.transpose(1, 2).reshape(B * T, H, 1, D) for x in (q, k, v))
        context, self.sums = self.kind.advance(q, k, v, self.sums)
        self.length += T
        return context.view(B, T, H, D).transpose(1, 2) if self.abreast > 1 else context

    def follow(self, rows: Tensor, sentences: Tensor | None) -> RunningSums:
        """The sums once hypotheses have changed places: each row goes on from the one that `rows` names."""
        chosen = RunningSums(self.kind, self.abreast)
        chosen.length = self.length
        chosen.sums = None if self.sums is None else Sums(*(part[rows] for part in self.sums))
        return chosen


def random_directions(size: int, width: int) -> Tensor:
    """Gaussian vectors, (size, width), at right angles to each other within every group of `width`."""
    axes, triangles = torch.linalg.qr(torch.randn(math.ceil(size / width), width, width))
    # Without these signs the axes would favour some directions: QR leaves them to its algorithm.
    turned: Tensor = axes * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    lengths = torch.randn(size, width).square().sum(1, keepdim=True).sqrt()
    return turned.transpose(1, 2).reshape(-1, width)[:size] * lengths


def _add_up(phi_k: Tensor, v: Tensor) -> Sums:
    """The sums over the tokens in the last dimension but one."""
    wide = torch.promote_types(v.dtype, torch.float32)
    return Sums((phi_k.transpose(-2, -1) @ v.to(phi_k.dtype)).to(wide), phi_k.sum(-2, dtype=wide))


def _zeros_like(sums: Sums) -> Sums:
    """As the sums of each chunk, but of no token at all."""
    return Sums(*(torch.zeros_like(part[:, :, 0]) for part in sums))


def _divide(context: Tensor, total: Tensor) -> Tensor:
    """Zero where there was nothing to add up."""
    return context / total.masked_fill(total == 0, 1)[..., None]


def _cut(x: Tensor, c: int) -> Tensor:
    """(B, H, T, ·) to (B, H, n, c, ·), filled up with zeros."""
    B, H, T, width = x.shape
    return F.pad(x, (0, 0, 0, -T % c)).view(B, H, -1, c, width)


def _fast(v: Tensor) -> torch.dtype:
    """What the large products are taken in; features outgrow float16."""
    return torch.bfloat16 if v.dtype == torch.bfloat16 else torch.promote_types(v.dtype, torch.float32)
