"""Linear attention: without the softmax, (φ(q) φ(k)ᵀ) v = φ(q) (φ(k)ᵀ v) by associativity.

The score of a query and a key is a product of features, φ(q)·φ(k). All that a query needs of the keys is then the sum
Σ φ(k) vᵀ, whose size does not depend on their number. There are three forms of the same computation: quadratic (all
scores, the reference), chunked (the causal sum by chunks of tokens) and recurrent (token by token, as in decoding).

Shapes: B batch, H heads, T queries, S keys, D head width, F features, n chunks of c tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Self, get_args

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.core import apply_weights, check_at_least, check_choice, check_inputs
from regard.attention.kinds import Hook, Kind, KindSettings
from regard.attention.packing import attend_padded
from regard.masks import Mask, Padded
from regard.ops import dispatch
from regard.ops.linear_attention import linear_attention
from regard.registry import register

Features = Literal["elu", "random", "plain"]
LinearImplementation = Literal["auto", "quadratic", "chunked", "recurrent", "kernel"]
CHUNK = 128
"""Tokens per chunk on a GPU. On CPU, where scores are more expensive, half as many unless there are many features."""


class Linear(nn.Module, Kind):
    """Attention with the weights φ(q)·φ(k), divided by their sum over the keys; "plain" is not divided.

    Args:
        width: Head width, D.
        features: The feature map φ. "elu" is elu(x) + 1. "random" are positive random features, whose products
            approximate the exponential of softmax attention in expectation. "plain" is the identity.
        size: Number of random features; about D log D by default.
        scale: Factor on q·k; 1/√D by default, 1 for "elu".
        implementation: Implementation to use; "auto" selects the fastest.
    """

    directions: Tensor

    def __init__(
        self,
        width: int,
        features: Features = "elu",
        size: int | None = None,
        scale: float | None = None,
        implementation: LinearImplementation = "auto",
    ) -> None:
        super().__init__()
        check_at_least("linear attention", "width", width, 1)
        check_choice("linear attention", "features", features, get_args(Features))
        check_choice("linear attention", "implementation", implementation, get_args(LinearImplementation))
        check_size(features, size)
        check_scale(features, scale)
        self.features, self.implementation = features, implementation
        self.scale = scale if scale is not None else 1.0 if features == "elu" else 1 / math.sqrt(width)
        if features == "random":
            size = max(16, int(width * math.log(width)) // 16 * 16) if size is None else size
            self.register_buffer("directions", random_directions(size, width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_inputs(q, k, v, mask)
        if dropout:
            raise ValueError("linear attention does not support attention dropout, because it computes no weights")
        if self.implementation == "quadratic":
            return apply_weights(self.weights(q, k, mask), v)
        return attend_padded(self._attend, q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        scores = self.scores(q, k, mask)
        return scores if self.features == "plain" else _divide(scores, scores.sum(-1))

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        precise = torch.promote_types(q.dtype, torch.float32)
        scores = self._map_queries(q.to(precise)) @ self._map_keys(k.to(precise)).transpose(-2, -1)
        allowed = mask.dense(q.shape[-2], k.shape[-2], q.device)
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> LinearCache:
        return LinearCache(self.advance, beam_width)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
        """Return the causal context of the next tokens and the state after them."""
        one_by_one = q.shape[-2] == 1 or (self.implementation == "recurrent" and q.shape[-2] > 0)
        attend = self._attend_recurrent if one_by_one else self._attend_chunked
        return attend(self._map_queries(q), self._map_keys(k), v, state)

    def extra_repr(self) -> str:
        return f"{self.features!r}, scale={self.scale:g}"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend by the formula: map queries and keys to features, and sum keys and values instead of all scores."""
        T, S = q.shape[-2], k.shape[-2]
        quadratic = mask.window is not None or mask.allowed is not None or mask.packed or (mask.causal and T > S)
        if quadratic or not (q.numel() and v.numel()):
            return apply_weights(self.weights(q, k, mask), v)
        if self.implementation == "kernel" or (self.implementation == "auto" and self._kernel_applies(q, k, v, mask)):
            return self._attend_by_kernel(q, k, v, mask)
        phi_q, phi_k = self._map_queries(q), self._map_keys(k)
        if isinstance(mask.keys, Padded):
            phi_k = phi_k.masked_fill(~mask.keys.real()[:, None, :, None], 0.0)
        if not mask.causal:
            return self._attend_to_state(phi_q, _sum_keys(phi_k, v)).to(v.dtype)
        attend = self._attend_recurrent if self.implementation == "recurrent" else self._attend_chunked
        earlier = _sum_keys(phi_k[..., : S - T, :], v[..., : S - T, :]) if S > T else None
        return attend(phi_q, phi_k[..., S - T :, :], v[..., S - T :, :], earlier)[0]

    def _kernel_applies(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
        return self.features != "random" and dispatch.linear_attention_kernel_applies(q, k, v, mask.causal)

    def _attend_by_kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend by the Triton kernels; values that are wider than the keys are split."""
        D, V = q.shape[-1], v.shape[-1]
        if V != D:  # the kernels support values as wide as the keys; features of the values are independent
            blocks = torch.split(F.pad(v, (0, -V % D)), D, -1)
            return torch.cat([self._attend_by_kernel(q, k, block, mask) for block in blocks], -1)[..., :V]
        aligned = not mask.causal or q.shape[-2] == k.shape[-2]
        if self.features == "random" or not aligned or not dispatch.attention_kernels_apply(q, k, v):
            raise ValueError(
                "implementation='kernel' supports elu and plain features on a GPU for heads of 16, 32, 64 or 128 "
                "features, and causality for as many queries as keys"
            )
        lengths = mask.keys.lengths if isinstance(mask.keys, Padded) else None
        elu = self.features == "elu"
        return linear_attention(q, k, v, lengths, causal=mask.causal, elu=elu, scale=self.scale)

    # Forms of the causal sum

    def _attend_chunked(
        self, phi_q: Tensor, phi_k: Tensor, v: Tensor, state: LinearState | None
    ) -> tuple[Tensor, LinearState]:
        """All scores within a chunk, and the sum over all earlier chunks."""
        T = v.shape[-2]
        chunk = CHUNK // 2 if v.device.type == "cpu" and phi_k.shape[-1] <= CHUNK else CHUNK
        c = max(1, min(T, chunk))
        phi_q, phi_k, values = (_cut(x, c) for x in (phi_q, phi_k, v.to(phi_k.dtype)))
        scores = (phi_q @ phi_k.transpose(-2, -1)).tril()
        sums = _sum_keys(phi_k, values)
        start = (
            LinearState(*(part.new_zeros(*part.shape[:2], *part.shape[3:]) for part in sums))
            if state is None
            else state
        )
        running = [torch.cat((x[:, :, None], y), 2).cumsum(2) for x, y in zip(start, sums, strict=True)]
        earlier = LinearState(*(part[:, :, :-1].to(phi_q.dtype) for part in running))
        context = scores @ values + phi_q @ earlier.key_values
        if self.features != "plain":
            context = _divide(context, scores.sum(-1) + (phi_q @ earlier.keys[..., None]).squeeze(-1))
        return context.flatten(2, 3)[:, :, :T].to(v.dtype), LinearState(*(part[:, :, -1] for part in running))

    def _attend_recurrent(
        self, phi_q: Tensor, phi_k: Tensor, v: Tensor, state: LinearState | None
    ) -> tuple[Tensor, LinearState]:
        """Token by token."""
        precise = torch.promote_types(v.dtype, torch.float32)
        phi_q, phi_k = phi_q.to(precise), phi_k.to(precise)
        contexts = []
        for t in range(v.shape[-2]):
            token = slice(t, t + 1)
            added = _sum_keys(phi_k[..., token, :], v[..., token, :])
            state = added if state is None else LinearState(*(x + y for x, y in zip(state, added, strict=True)))
            contexts.append(self._attend_to_state(phi_q[..., token, :], state))
        assert state is not None
        return torch.cat(contexts, -2).to(v.dtype), state

    def _attend_to_state(self, phi_q: Tensor, state: LinearState) -> Tensor:
        """Return the context of queries that all attend to the same keys."""
        context = phi_q @ state.key_values.to(phi_q.dtype)
        if self.features == "plain":
            return context
        return _divide(context, (phi_q @ state.keys[..., None].to(phi_q.dtype)).squeeze(-1))

    # Feature maps; matmuls of features are in bfloat16 if q and k are, otherwise in float32 or better

    def _map_queries(self, q: Tensor) -> Tensor:
        """Return the features of queries, (B, H, T, F).

        Queries with plain features carry the scale of q·k; otherwise queries and keys carry its square root each.
        """
        dtype = _feature_dtype(q)
        if self.features == "plain":
            return (q * self.scale).to(dtype)
        if self.features == "elu":
            return _elu_plus_one(q.to(dtype), self.scale)
        exponent = self._exponent(q)
        # A factor per query cancels when the weights are divided by their sum.
        return (exponent - exponent.amax(-1, keepdim=True).detach()).exp().to(dtype)

    def _map_keys(self, k: Tensor) -> Tensor:
        """Return the features of keys, (B, H, S, F)."""
        dtype = _feature_dtype(k)
        if self.features == "plain":
            return k.to(dtype)
        if self.features == "elu":
            return _elu_plus_one(k.to(dtype), self.scale)
        # Subtracting the maximum over the keys would let queries depend on later keys; clamp against overflow instead.
        return self._exponent(k).clamp(-40, 40).exp().to(dtype)

    def _exponent(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * math.sqrt(self.scale)
        return x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2


def check_size(features: Features, size: int | None) -> None:
    """Raise ValueError if a number of features is given for features that are not random."""
    if size is None:
        return
    if features != "random":
        raise ValueError(f"size is the number of random features; features {features!r} has none")
    check_at_least("linear attention", "size", size, 1)


def check_scale(features: Features, scale: float | None) -> None:
    """Raise ValueError if the scale is negative and the features need its square root."""
    if scale is not None and scale < 0 and features != "plain":
        raise ValueError(
            f"features {features!r} multiply queries and keys by the square root of qk_scale, so it must not be "
            f"negative, found {scale:g}"
        )


def random_directions(size: int, width: int) -> Tensor:
    """Draw Gaussian vectors, (size, width), that are orthogonal within every group of `width`."""
    axes, triangles = torch.linalg.qr(torch.randn(math.ceil(size / width), width, width))
    # QR does not determine the signs of the axes; without this correction they are not uniformly distributed.
    signed: Tensor = axes * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    lengths = torch.randn(size, width).square().sum(1, keepdim=True).sqrt()
    return signed.transpose(1, 2).reshape(-1, width)[:size] * lengths


def _elu_plus_one(x: Tensor, scale: float) -> Tensor:
    x = x if scale == 1 else x * math.sqrt(scale)
    if x.dtype == torch.bfloat16:  # elu(x) is close to -1 for small x, so that adding 1 would leave rounding errors
        return x.clamp(max=0).exp() + x.relu()
    return F.elu(x).add_(1)


def _sum_keys(phi_k: Tensor, v: Tensor) -> LinearState:
    """Sum over the tokens, which are the second dimension from the end."""
    precise = torch.promote_types(v.dtype, torch.float32)
    return LinearState((phi_k.transpose(-2, -1) @ v.to(phi_k.dtype)).to(precise), phi_k.sum(-2, dtype=precise))


def _divide(context: Tensor, total: Tensor) -> Tensor:
    """Divide by the sum of the weights; fully masked rows stay zero."""
    return context / total.masked_fill(total == 0, 1)[..., None]


def _cut(x: Tensor, c: int) -> Tensor:
    """(B, H, T, ·) to (B, H, n, c, ·), padded with zeros."""
    B, H, T, width = x.shape
    x = F.pad(x, (0, 0, 0, -T % c)) if T % c else x
    return x.reshape(B, H, -(-T // c), c, width)


def _feature_dtype(x: Tensor) -> torch.dtype:
    """bfloat16 or at least float32: features overflow float16."""
    return torch.bfloat16 if x.dtype == torch.bfloat16 else torch.promote_types(x.dtype, torch.float32)


# Decoding


class LinearState(NamedTuple):
    """Running sums over the keys of linear attention, in float32 or better."""

    key_values: Tensor  # Σ φ(k) vᵀ, (B, H, F, D)
    keys: Tensor  # Σ φ(k), (B, H, F)

    def select(self, rows: Tensor) -> LinearState:
        return LinearState(self.key_values[rows], self.keys[rows])


Advance = Callable[[Tensor, Tensor, Tensor, LinearState | None], tuple[Tensor, LinearState]]


class LinearCache:
    """The running sums of linear attention: constant size for any number of tokens.

    Every hypothesis has sums of its own, so each step takes one token per hypothesis.

    Args:
        advance: Function that attends causally from new tokens, (q, k, v, state) -> (context, new state).
        beam_width: Number of hypotheses per sentence.
    """

    def __init__(self, advance: Advance, beam_width: int = 1) -> None:
        self.advance, self.beam_width = advance, beam_width
        self.length = 0
        self.state: LinearState | None = None  # one row per hypothesis

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0, hook: Hook = None) -> Tensor:
        if hook is not None:
            raise ValueError("linear attention stores no keys while decoding, so its weights cannot be observed")
        B, H, T, _ = q.shape
        self.length += T
        if self.beam_width == 1:
            context, self.state = self.advance(q, k, v, self.state)
            return context
        if self.state is None and T == 1:  # the first token is the same for all hypotheses of a sentence
            context, state = self.advance(q, k, v, None)
            self.state = LinearState(*(part.repeat_interleave(self.beam_width, 0) for part in state))
            return context
        q, k, v = (x.transpose(1, 2).reshape(B * T, H, 1, x.shape[-1]) for x in (q, k, v))
        context, self.state = self.advance(q, k, v, self.state)
        return context.view(B, T, H, -1).transpose(1, 2)

    def reorder(self, rows: Tensor, sentences: Tensor | None) -> LinearCache:
        reordered = LinearCache(self.advance, self.beam_width)
        reordered.length = self.length
        reordered.state = None if self.state is None else self.state.select(rows)
        return reordered


# Settings


@register
class LinearSettings(KindSettings):
    """Every token attends to all others through a sum of constant size."""

    kind: Literal["linear"] = "linear"
    features: Features = Field(
        "elu", description="feature map: elu (elu(x) + 1), random (approximates softmax) or plain (the identity)"
    )
    size: int | None = Field(None, gt=0, description="number of random features; about D log D by default")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_size(self.features, self.size)
        return self

    def check(self, qk_scale: float | None, attention_dropout: float) -> None:
        if attention_dropout:
            raise ValueError("attention_dropout must be 0 for linear attention, which computes no attention weights")
        check_scale(self.features, qk_scale)

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Linear(width, self.features, self.size, scale)
