"""A decoder's step on a CPU as a plain row of operations, for models whose modules do nothing beside them.

To go through modules costs a step of a small model more than its arithmetic: calls within calls, each of which asks
again what cannot have changed since the sentence began. `DirectDecoder` asks once. What a step means is what the blocks
of `layers.py` do, and where somebody looks, has hooked something in or has changed a block, these are taken.

Shapes: B sentences, K hypotheses of each, W width, H heads, S tokens of a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import Attention, Cache, Full, KeyValues, Mask, attend
from regard.dropout import Dropout
from regard.layers import DecoderBlock, FeedForward, Residual
from regard.models.transformer import DecoderState, Transformer
from regard.products import Linear, PackedWeights
from regard.walking import walk

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
KNOWN = {DecoderBlock, Attention, FeedForward, Residual, Linear, nn.LayerNorm, Dropout, nn.ModuleList}
"""Modules of which it is known what they do; one of any other class, derived from these or not, may do more."""


class DirectDecoder:
    """The decoder's blocks and norm, as they are now: made for one search, after which weights may change."""

    def __init__(self, model: Transformer, packed: PackedWeights) -> None:
        self._blocks = [_DirectBlock(block, packed) for block in model.decoder if isinstance(block, DecoderBlock)]
        self._norm = model.decoder_norm

    @classmethod
    def of(cls, model: Transformer, packed: PackedWeights) -> DirectDecoder | None:
        """None where a step must go through the modules."""
        return cls(model, packed) if _is_plain(model) else None

    def read(self, x: Tensor, mask: Mask, state: DecoderState) -> Tensor:
        """Embedded tokens, (B, K, W), to vectors that know what was said before, likewise; the caches remember them."""
        for block, memory, cache in zip(self._blocks, state.memories, state.caches, strict=True):
            assert isinstance(cache, Cache)
            x = block.read(x, memory, mask, state.memory_mask, cache)
        y: Tensor = self._norm(x)
        return y


def _is_plain(model: Transformer) -> bool:
    if model.training or model.target_embedding.weight.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    hooked = torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    return not hooked and all(map(_does_nothing_else, walk(model.decoder)))


def _does_nothing_else(module: nn.Module) -> bool:
    """Whether a module is one of ours as we made it, with nothing hooked in and nobody looking."""
    if type(module) not in KNOWN or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if isinstance(module, Attention):
        watched = module.observer is not None or module.head_factors is not None
        return not watched and module.rotary is None and isinstance(module.kind, Full)
    if isinstance(module, DecoderBlock):
        return module.memory_norm is None
    return not isinstance(module, Residual) or module.scale is None


class _DirectBlock:
    """One block: what is done, in the order in which it is done, with weights at hand."""

    def __init__(self, block: DecoderBlock, packed: PackedWeights) -> None:
        self.pre, self.heads, self.width = block.around_attention.pre, block.attention.heads, block.attention.width
        self.scale, self.cross_scale = (_scale_of(one) for one in (block.attention, block.cross))
        self.norms = [
            _norm(one.norm) for one in (block.around_attention, block.around_cross, block.around_feed_forward)
        ]
        multiply = partial(_bind, packed)
        self.project = multiply(block.attention.qkv.weight, block.attention.qkv.bias)
        self.out = multiply(block.attention.out.weight, block.attention.out.bias)
        # Of cross-attention the first third: keys and values of the source are projected once, before all steps.
        bias = block.cross.qkv.bias
        self.ask = multiply(block.cross.qkv.weight[: self.width], None if bias is None else bias[: self.width])
        self.answer = multiply(block.cross.out.weight, block.cross.out.bias)
        self.widen = multiply(block.feed_forward.inner.weight, block.feed_forward.inner.bias)
        self.narrow = multiply(block.feed_forward.outer.weight, block.feed_forward.outer.bias)
        self.activate = _ACTIVATIONS[block.feed_forward.activation]

    def read(self, x: Tensor, memory: KeyValues, mask: Mask, memory_mask: Mask, cache: Cache) -> Tensor:
        first, second, third = self.norms
        if self.pre:
            x = x + self._look_at_itself(first(x), mask, cache)
            x = x + self._look_at_source(second(x), memory, memory_mask)
            return x + self.narrow(self.activate(self.widen(third(x))))
        x = first(x + self._look_at_itself(x, mask, cache))
        x = second(x + self._look_at_source(x, memory, memory_mask))
        return third(x + self.narrow(self.activate(self.widen(x))))

    def _look_at_itself(self, x: Tensor, mask: Mask, cache: Cache) -> Tensor:
        B, K, _ = x.shape
        q, k, v = self.project(x).view(B, K, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        keys, values = cache.append(k, v)
        return self.out(self._join(attend(q, keys, values, mask, scale=self.scale)))

    def _look_at_source(self, x: Tensor, memory: KeyValues, mask: Mask) -> Tensor:
        B, K, _ = x.shape
        q = self.ask(x).view(B, K, self.heads, -1).transpose(1, 2)
        return self.answer(self._join(attend(q, memory.keys, memory.values, mask, scale=self.cross_scale)))

    def _join(self, context: Tensor) -> Tensor:
        B, _, K, _ = context.shape
        return context.transpose(1, 2).reshape(B, K, self.width)


def _scale_of(attention: Attention) -> float:
    assert isinstance(attention.kind, Full)
    given = attention.kind.scale
    return (attention.width // attention.heads) ** -0.5 if given is None else given


def _bind(packed: PackedWeights, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The product with this weight."""
    multiply: Multiply = packed.linear if packed.copies(weight) else F.linear
    return lambda x: multiply(x, weight, bias)


def _norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
    return lambda x: F.layer_norm(x, shape, weight, bias, eps)


def _gate(x: Tensor) -> Tensor:
    gate, rest = x.chunk(2, -1)
    return F.silu(gate) * rest


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": _gate,
}
