"""A decoder's step on a CPU as a plain row of operations, for models whose modules do nothing beside them.

To go through modules costs a step of a small model more than its arithmetic: calls within calls, each of which asks
again what does not change while a sentence is written. `DirectDecoder` asks once. What a step means is what the blocks
of `layers.py` do, and where somebody looks, has hooked something in or has changed a block, these are taken.

Shapes: B sentences, K hypotheses of each, W width, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.cache import Cache, KeyValues
from regard.attention.core import Full
from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.layers import DecoderBlock, FeedForward, Residual
from regard.models.transformer import DecoderState, Transformer
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear, PackedWeights
from regard.ops.modules import list_modules

Map = Callable[[Tensor], Tensor]
MODULES = (DecoderBlock, Attention, FeedForward, Residual, Linear, nn.LayerNorm, Dropout, nn.ModuleList)
FORWARDS: dict[type[nn.Module], object] = {kind: kind.forward for kind in MODULES}
"""What is known of modules; one of any other class, derived from these or not, or with another forward, may do more."""


class DirectDecoder:
    """The decoder's blocks and norm as they are now: made for one search, in which they are not looked at again."""

    def __init__(self, model: Transformer, packed: PackedWeights) -> None:
        self._blocks = [_DirectBlock(block, packed) for block in model.decoder]
        self._norm = model.decoder_norm

    @classmethod
    def of(cls, model: Transformer, packed: PackedWeights) -> DirectDecoder | None:
        """None where a step must go through the modules."""
        return cls(model, packed) if _can_be_passed_by(model) else None

    def read(self, x: Tensor, mask: Mask, state: DecoderState) -> Tensor:
        """Embedded tokens, (B, K, W), to vectors that know what was said before, likewise; the caches remember them."""
        for block, memory, cache in zip(self._blocks, state.memories, state.caches, strict=True):
            x = block.read(x, memory, mask, state.memory_mask, cache)
        y: Tensor = self._norm(x)
        return y


def _can_be_passed_by(model: Transformer) -> bool:
    if model.target_embedding.weight.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    hooked = torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    return not hooked and all(map(_does_nothing_else, list_modules(model.decoder)))


def _does_nothing_else(module: nn.Module) -> bool:
    """Whether a module is one of ours as we made it, with nothing hooked in, nothing dropped and nobody looking."""
    known = FORWARDS.get(type(module))
    if known is None or known is not type(module).forward or "forward" in vars(module):
        return False
    if module.training or module._forward_hooks or module._forward_pre_hooks:
        return False
    if isinstance(module, Attention):
        watched = module.qkv_hook is not None or module.head_scales is not None
        return not watched and module.rotary is None and isinstance(module.kind, Full)
    if isinstance(module, DecoderBlock):
        return module.context_norm is None
    return not isinstance(module, Residual) or module.scale is None


class _DirectBlock:
    """One block: what is done, in the order in which it is done, with weights at hand."""

    def __init__(self, block: nn.Module, packed: PackedWeights) -> None:
        assert isinstance(block, DecoderBlock)
        attention, cross, feed_forward = block.attention, block.cross, block.feed_forward

        def product(weight: Tensor, bias: Tensor | None) -> Map:
            multiply = packed.linear if packed.has_copy_of(weight) else F.linear
            return lambda x: multiply(x, weight, bias)

        self.heads = attention.heads
        self.qkv, self.out = (product(one.weight, one.bias) for one in (attention.qkv, attention.out))
        self.cross_heads, self.cross_kind = cross.heads, cross.kind
        # Of cross-attention the queries alone: keys and values of the source are projected once, before all steps.
        bias = cross.qkv.bias
        self.cross_q = product(cross.qkv.weight[: cross.width], None if bias is None else bias[: cross.width])
        self.cross_out = product(cross.out.weight, cross.out.bias)
        self.inner, self.outer = (product(one.weight, one.bias) for one in (feed_forward.inner, feed_forward.outer))
        self.activate = _ACTIVATIONS[feed_forward.activation]
        self.around_attention = _around(block.around_attention)
        self.around_cross = _around(block.around_cross)
        self.around_feed_forward = _around(block.around_feed_forward)

    def read(self, x: Tensor, memory: KeyValues, mask: Mask, memory_mask: Mask, cache: Cache) -> Tensor:
        x = self.around_attention(x, lambda y: self._attend(y, mask, cache))
        x = self.around_cross(x, lambda y: self._attend_to_source(y, memory, memory_mask))
        return self.around_feed_forward(x, lambda y: self.outer(self.activate(self.inner(y))))

    def _attend(self, x: Tensor, mask: Mask, cache: Cache) -> Tensor:
        B, K, W = x.shape
        q, k, v = self.qkv(x).view(B, K, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        context = cache.attend(q, k, v, mask)
        return self.out(context.transpose(1, 2).reshape(B, K, W))

    def _attend_to_source(self, x: Tensor, memory: KeyValues, mask: Mask) -> Tensor:
        B, K, W = x.shape
        q = self.cross_q(x).view(B, K, self.cross_heads, -1).transpose(1, 2)
        return self.cross_out(self.cross_kind(q, *memory, mask).transpose(1, 2).reshape(B, K, W))


def _around(residual: Residual) -> Callable[[Tensor, Map], Tensor]:
    """A residual connection: what it makes of x and a sublayer."""
    norm = residual.norm
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    if residual.pre:
        return lambda x, sublayer: x + sublayer(F.layer_norm(x, shape, weight, bias, eps))
    return lambda x, sublayer: F.layer_norm(x + sublayer(x), shape, weight, bias, eps)


def _gate(x: Tensor) -> Tensor:
    gate, rest = x.chunk(2, -1)
    return F.silu(gate) * rest


_ACTIVATIONS: dict[str, Map] = {"relu": F.relu_, "gelu": F.gelu, "silu": F.silu, "swiglu": _gate}
