"""Decoder blocks of one decoding step on a CPU as a flat sequence of operations.

For small models, module calls take longer than the arithmetic of a step. `fuse` checks the blocks once per search and
replaces them by functions that call the operations directly.

Shapes: B sentences, K hypotheses per sentence, W width, H heads, D head width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.ops import dispatch
from regard.ops.dispatch import list_modules
from regard.ops.linear import Linear

Function = Callable[[Tensor], Tensor]

SUPPORTED: dict[str, tuple[str, ...]] = {
    "regard.layers.DecoderBlock": ("source_norm", "scale1"),
    "regard.layers.FeedForward": (),
    "regard.layers.DropPath": (),
    "regard.attention.multi_head.Attention": ("qkv_hook", "head_scales", "rotary"),
    "regard.ops.dropout.Dropout": (),
    "regard.ops.linear.Linear": (),
    "torch.nn.modules.normalization.LayerNorm": (),
}
"""Module classes that can be fused, with the options that must be None. Ops do not import layers, hence the names."""


def fuse(blocks: Sequence[nn.Module]) -> Sequence[Callable[..., Tensor]]:
    """Return functions that compute the same as decoder blocks with a cache, or the blocks if one cannot be fused."""
    return [FusedDecoderBlock(block) for block in blocks] if _applies(blocks) else list(blocks)


class FusedDecoderBlock:
    """A decoder block in evaluation mode, for the tokens of one decoding step."""

    def __init__(self, block: Any) -> None:
        attention, cross, feed_forward = block.attention, block.cross, block.feed_forward
        self.heads, self.cross_heads, self.cross_kind = attention.heads, cross.heads, cross.kind
        self.qkv, self.out = _linear(attention.qkv), _linear(attention.out)
        # Only the queries of cross-attention: the keys and values of the source have been projected in advance.
        self.cross_q, self.cross_out = _linear(cross.qkv, cross.width), _linear(cross.out)
        self.inner, self.outer = _linear(feed_forward.inner), _linear(feed_forward.outer)
        self.activation = ACTIVATIONS[feed_forward.activation]
        self.around_attention = _residual(block.norm1, block.pre_norm)
        self.around_cross = _residual(block.norm2, block.pre_norm)
        self.around_feed_forward = _residual(block.norm3, block.pre_norm)

    def __call__(
        self, x: Tensor, source: tuple[Tensor, Tensor], mask: Mask, source_mask: Mask, positions: Tensor, cache: Any
    ) -> Tensor:
        """Decode the next tokens, (B, K, W) to (B, K, W); see `DecoderBlock.forward`."""
        x = self.around_attention(x, lambda y: self._attend(y, mask, cache))
        x = self.around_cross(x, lambda y: self._attend_to_source(y, source, source_mask))
        return self.around_feed_forward(x, lambda y: self.outer(self.activation(self.inner(y))))

    def _attend(self, x: Tensor, mask: Mask, cache: Any) -> Tensor:
        B, K, W = x.shape
        q_BHKD, k_BHKD, v_BHKD = self.qkv(x).view(B, K, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        context_BHKD = cache.attend(q_BHKD, k_BHKD, v_BHKD, mask)
        return self.out(context_BHKD.transpose(1, 2).reshape(B, K, W))

    def _attend_to_source(self, x: Tensor, source: tuple[Tensor, Tensor], mask: Mask) -> Tensor:
        B, K, W = x.shape
        q_BHKD = self.cross_q(x).view(B, K, self.cross_heads, -1).transpose(1, 2)
        context_BHKD = self.cross_kind(q_BHKD, *source, mask)
        return self.cross_out(context_BHKD.transpose(1, 2).reshape(B, K, W))


def _linear(layer: Linear, outputs: int | None = None) -> Function:
    """Return a linear layer, or its first `outputs` output features, as a function with prepacked weights if any."""
    weight, bias = layer.weight[:outputs], None if layer.bias is None else layer.bias[:outputs]
    prepacked = layer.prepacked
    linear = F.linear if prepacked is None or not prepacked.can_pack(weight) else prepacked.linear
    return lambda x: linear(x, weight, bias)


def _residual(norm: nn.LayerNorm, pre_norm: bool) -> Callable[[Tensor, Function], Tensor]:
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    if pre_norm:  # torch.layer_norm has less overhead than F.layer_norm
        return lambda x, sublayer: x + sublayer(torch.layer_norm(x, shape, weight, bias, eps))
    return lambda x, sublayer: torch.layer_norm(x + sublayer(x), shape, weight, bias, eps)


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Function] = {"relu": F.relu_, "gelu": F.gelu, "silu": F.silu, "swiglu": _swiglu}


def _applies(blocks: Sequence[nn.Module]) -> bool:
    if not dispatch.FUSED_ENABLED or torch.compiler.is_compiling():
        return False
    if torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    return all(_is_plain(module) for block in blocks for module in list_modules(block))


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module is on the CPU, in evaluation mode, and does nothing besides what is fused."""
    cls = type(module)
    name = _full_name(cls)
    if name not in SUPPORTED:
        return False
    # `forward` may have been replaced, in the class or in this module.
    if _full_name(cls.forward) != f"{name}.forward" or "forward" in vars(module):
        return False
    if module.training or module._forward_hooks or module._forward_pre_hooks:
        return False
    if any(parameter is not None and not parameter.is_cpu for parameter in module._parameters.values()):
        return False
    return all(getattr(module, option) is None for option in SUPPORTED[name])


def _full_name(definition: Any) -> str:
    return f"{definition.__module__}.{definition.__qualname__}"
