"""Linear attention: without the softmax, products may be taken in another order, V (Kᵀ Q) = (V Kᵀ) Q.

The scores of a query and a key are a product of features, φ(q)·φ(k). All that a query needs of the keys is then one sum
over them, Σ φ(k) vᵀ, which does not grow with their number. Three forms of one formula: quadratic (all scores, the
reference), chunked (the causal sum by blocks), recurrent (token by token, as in decoding).

Shapes: B batch, H heads, T queries, S keys, D head width, F features, n chunks of c tokens.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.cache import LinearCache, LinearState
from regard.attention.kind import Kind, check_at_least, check_choice
from regard.attention.masks import Mask, Padded
from regard.attention.packing import pack_padded, pad_packed, self_attention_rows
from regard.ops import dispatch
from regard.ops.linear_attention import attend_linear

Features = Literal["elu", "random", "plain"]
LinearPath = Literal["auto", "quadratic", "chunked", "recurrent", "kernel"]
CHUNK = 128
"""Tokens of a chunk; a CPU, to which scores cost more than to a GPU, takes half of it where features are few."""


class Linear(nn.Module, Kind):
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
        check_at_least("linear attention", "width", width, 1)
        check_choice("linear attention", "features", features, get_args(Features))
        check_choice("linear attention", "path", path, get_args(LinearPath))
        check_size(features, size)
        check_scale(features, scale)
        self.features, self.path = features, path
        self.scale = scale if scale is not None else 1.0 if features == "elu" else 1 / math.sqrt(width)
        if features == "random":
            size = max(16, int(width * math.log(width)) // 16 * 16) if size is None else size
            self.register_buffer("directions", random_directions(size, width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        if dropout:
            raise ValueError("linear attention never makes the weights that attention dropout would drop")
        rows = self_attention_rows(mask)
        if rows is not None and self.path != "quadratic":
            layout, mask = rows
            return pack_padded(
                self._attend(pad_packed(q, layout), pad_packed(k, layout), pad_packed(v, layout), mask), layout
            )
        return self._attend(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        scores = self.scores(q, k, mask)
        return scores if self.features == "plain" else _divide(scores, scores.sum(-1))

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = self._map_queries(q.to(wide)) @ self._map_keys(k.to(wide)).transpose(-2, -1)
        may = mask.dense(q.shape[-2], k.shape[-2], q.device)
        return scores if may is None else scores.masked_fill(~may, 0.0)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, sums: LinearState | None) -> tuple[Tensor, LinearState]:
        """The context of the next tokens, each of which sees itself and all before it; and the sums behind them."""
        phi_q, phi_k = self._map_queries(q), self._map_keys(k)
        forward = self._recur if q.shape[-2] == 1 or self.path == "recurrent" else self._by_chunks
        return forward(phi_q, phi_k, v, sums)

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> LinearCache:
        return LinearCache(self.advance, beam_width)

    def extra_repr(self) -> str:
        return f"{self.features!r}, scale={self.scale:g}"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        T, S = q.shape[-2], k.shape[-2]
        symbolic = mask.window is None and mask.allowed is None and not mask.packed
        if self.path == "quadratic" or not symbolic or (mask.causal and T > S):
            weights = self.weights(q, k, mask)
            return (weights @ v.to(weights.dtype)).to(v.dtype)
        if self.path == "kernel" or (self.path == "auto" and self._suits_kernel(q, k, v, mask)):
            lengths = mask.keys.lengths if isinstance(mask.keys, Padded) else None
            elu = self.features == "elu"
            return attend_linear(q, k, v, lengths, causal=mask.causal, elu=elu, scale=self.scale)
        phi_q, phi_k = self._map_queries(q), self._map_keys(k)
        if isinstance(mask.keys, Padded):
            phi_k = phi_k.masked_fill(~mask.keys.real()[:, None, :, None], 0.0)
        if not mask.causal:
            return self._read(phi_q, _add_up(phi_k, v)).to(v.dtype)
        forward = self._recur if self.path == "recurrent" else self._by_chunks
        earlier = _add_up(phi_k[..., : S - T, :], v[..., : S - T, :]) if S > T else None
        return forward(phi_q, phi_k[..., S - T :, :], v[..., S - T :, :], earlier)[0]

    def _suits_kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
        return self.features != "random" and dispatch.linear_attention_kernel_applies(q, k, v, mask.causal)

    # The causal sum

    def _by_chunks(
        self, phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: LinearState | None
    ) -> tuple[Tensor, LinearState]:
        """Within a chunk all scores, of the chunks before it their sums alone."""
        T = v.shape[-2]
        c = min(T, CHUNK // 2 if v.device.type == "cpu" and phi_k.shape[-1] <= CHUNK else CHUNK)
        phi_q, phi_k, values = (_cut(x, c) for x in (phi_q, phi_k, v.to(phi_k.dtype)))
        scores = (phi_q @ phi_k.transpose(-2, -1)).tril()
        each = _add_up(phi_k, values)
        start = _zeros_like(each) if sums is None else sums
        running = LinearState(*(torch.cat((x[:, :, None], y), 2).cumsum(2) for x, y in zip(start, each, strict=True)))
        earlier = LinearState(*(part[:, :, :-1].to(phi_q.dtype) for part in running))
        context = scores @ values + phi_q @ earlier.key_values
        if self.features != "plain":
            context = _divide(context, scores.sum(-1) + (phi_q @ earlier.keys[..., None]).squeeze(-1))
        return context.flatten(2, 3)[:, :, :T].to(v.dtype), LinearState(*(part[:, :, -1] for part in running))

    def _recur(self, phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: LinearState | None) -> tuple[Tensor, LinearState]:
        """Token by token."""
        wide = torch.promote_types(v.dtype, torch.float32)
        phi_q, phi_k = phi_q.to(wide), phi_k.to(wide)
        context = []
        for t in range(v.shape[-2]):
            here = slice(t, t + 1)
            added = _add_up(phi_k[..., here, :], v[..., here, :])
            sums = added if sums is None else LinearState(sums.key_values + added.key_values, sums.keys + added.keys)
            context.append(self._read(phi_q[..., here, :], sums))
        assert sums is not None
        return torch.cat(context, -2).to(v.dtype), sums

    def _read(self, phi_q: Tensor, sums: LinearState) -> Tensor:
        """What queries get from keys that they all see."""
        context = phi_q @ sums.key_values.to(phi_q.dtype)
        if self.features == "plain":
            return context
        return _divide(context, (phi_q @ sums.keys[..., None].to(phi_q.dtype)).squeeze(-1))

    # Features: products of them are taken in bfloat16 where q and k come so, else in float32 or better

    def _map_queries(self, q: Tensor) -> Tensor:
        dtype = _fast(q)
        if self.features == "plain":
            return (q * self.scale).to(dtype)
        if self.features == "elu":
            return _elu_plus_one(q.to(dtype), self.scale)
        exponent = self._exponent(q)
        # A factor of its own for every query goes out again when the weights are divided by their sum.
        return (exponent - exponent.amax(-1, keepdim=True).detach()).exp().to(dtype)

    def _map_keys(self, k: Tensor) -> Tensor:
        dtype = _fast(k)
        if self.features == "plain":
            return k.to(dtype)
        if self.features == "elu":
            return _elu_plus_one(k.to(dtype), self.scale)
        # No factor of the loudest key here: it would tell queries about later keys. Far beyond this float32 ends.
        return self._exponent(k).clamp(-40, 40).exp().to(dtype)

    def _exponent(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * math.sqrt(self.scale)
        return x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2


def check_size(features: Features, size: int | None) -> None:
    """Refuses a number of features where these are not random."""
    if size is None:
        return
    if features != "random":
        raise ValueError(f"size is the number of random features; features {features!r} has none")
    check_at_least("linear attention", "size", size, 1)


def check_scale(features: Features, scale: float | None) -> None:
    """Refuses a factor that cannot be shared between queries and keys."""
    if scale is not None and scale < 0 and features != "plain":
        raise ValueError(
            f"features {features!r} of queries and of keys each take the square root of qk_scale, so it must not be "
            f"negative, found {scale:g}"
        )


def random_directions(size: int, width: int) -> Tensor:
    """Gaussian vectors, (size, width), at right angles to each other within every group of `width`."""
    axes, triangles = torch.linalg.qr(torch.randn(math.ceil(size / width), width, width))
    # Without these signs the axes would favour some directions: QR leaves them to its algorithm.
    turned: Tensor = axes * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    lengths = torch.randn(size, width).square().sum(1, keepdim=True).sqrt()
    return turned.transpose(1, 2).reshape(-1, width)[:size] * lengths


def _elu_plus_one(x: Tensor, scale: float) -> Tensor:
    x = x if scale == 1 else x * math.sqrt(scale)
    if x.dtype == torch.bfloat16:  # near -1 it has so few numbers that little but rounding would be left of the sum
        return x.clamp(max=0).exp() + x.relu()
    return F.elu(x).add_(1)


def _add_up(phi_k: Tensor, v: Tensor) -> LinearState:
    """The sums over the tokens in the last dimension but one."""
    wide = torch.promote_types(v.dtype, torch.float32)
    return LinearState((phi_k.transpose(-2, -1) @ v.to(phi_k.dtype)).to(wide), phi_k.sum(-2, dtype=wide))


def _zeros_like(sums: LinearState) -> LinearState:
    """As the sums of each chunk, but of no token at all."""
    return LinearState(*(torch.zeros_like(part[:, :, 0]) for part in sums))


def _divide(context: Tensor, total: Tensor) -> Tensor:
    """Zero where there was nothing to add up."""
    return context / total.masked_fill(total == 0, 1)[..., None]


def _cut(x: Tensor, c: int) -> Tensor:
    """(B, H, T, ·) to (B, H, n, c, ·), filled up with zeros."""
    B, H, T, width = x.shape
    x = F.pad(x, (0, 0, 0, -T % c)) if T % c else x
    return x.reshape(B, H, -1, c, width)


def _fast(x: Tensor) -> torch.dtype:
    """Features outgrow float16."""
    return torch.bfloat16 if x.dtype == torch.bfloat16 else torch.promote_types(x.dtype, torch.float32)
