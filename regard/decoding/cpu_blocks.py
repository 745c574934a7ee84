"""Decoder blocks of a decoding step on a CPU, as flat sequences of operations.

For small models, calling modules and operations takes longer than their arithmetic. `fuse_cpu_blocks` returns functions
that `Transformer.step` calls instead of the decoder blocks. `SingleStep` replaces the whole step for a single
hypothesis, which needs neither a batch dimension nor masks nor permuted copies: it has about half of the operations.

Shapes: B sentences, K hypotheses per sentence, W width, H heads, D head width, S source tokens, C capacity of a cache.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.layers import DecoderBlock, DropPath, FeedForward, Learned, Sinusoidal
from regard.masks import Mask
from regard.models.transformer import DecoderState, Transformer
from regard.ops import dispatch
from regard.ops.dispatch import list_modules
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear

CAPACITY = 64
"""Tokens for which a new cache of a `SingleStep` has room; it grows by doubling."""
Function = Callable[[Tensor], Tensor]


def fuse_cpu_blocks(blocks: Sequence[nn.Module]) -> Sequence[Callable[..., Tensor]]:
    """Return functions that compute the same as decoder blocks with a cache, or the blocks if one cannot be fused."""
    enabled = dispatch.FUSED_ENABLED and not torch.compiler.is_compiling()
    if not enabled or torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return blocks
    fusible = all(_is_fusible(module) for block in blocks for module in list_modules(block))
    return [FusedDecoderBlock(block) for block in blocks] if fusible else blocks


class FusedDecoderBlock:
    """A decoder block in evaluation mode, for the tokens of one decoding step."""

    def __init__(self, block: Any) -> None:
        attention, cross, feed_forward = block.attention, block.cross, block.feed_forward
        self.heads, self.kind = attention.heads, attention.kind
        self.cross_heads, self.cross_kind = cross.heads, cross.kind
        self.qkv, self.out = _linear(attention.qkv), _linear(attention.out)
        # Only the queries of cross-attention: the keys and values of the source have been projected in advance.
        self.cross_q, self.cross_out = _linear(cross.qkv, cross.width), _linear(cross.out)
        self.inner, self.outer = _linear(feed_forward.inner), _linear(feed_forward.outer)
        self.activation = ACTIVATIONS[feed_forward.activation]
        self.around_attention = _residual(block.norm1, block.pre_norm)
        self.around_cross = _residual(block.norm2, block.pre_norm)
        self.around_feed_forward = _residual(block.norm3, block.pre_norm)

    @property
    def is_full(self) -> bool:
        """Whether both kinds are plain full attention, and nothing else."""
        return all(type(kind) is Full and kind.implementation == "auto" for kind in (self.kind, self.cross_kind))

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
FUSIBLE: dict[type[nn.Module], tuple[str, ...]] = {
    DecoderBlock: ("source_norm", "scale1"),
    Attention: ("qkv_hook", "head_scales", "rotary"),
    **dict.fromkeys((FeedForward, DropPath, Dropout, Linear, nn.LayerNorm), ()),
}
"""Module classes that can be fused, with the options that must be None."""
_FORWARDS = {cls: cls.forward for cls in FUSIBLE}


def _is_fusible(module: nn.Module) -> bool:
    """Return whether a module is on the CPU, in evaluation mode, and does nothing besides what is fused."""
    cls = type(module)
    # `forward` may have been replaced, in the class or in this module.
    if cls not in FUSIBLE or cls.forward is not _FORWARDS[cls] or "forward" in vars(module):
        return False
    if module.training or module._forward_hooks or module._forward_pre_hooks:
        return False
    on_cpu = all(parameter is None or parameter.is_cpu for parameter in module._parameters.values())
    return on_cpu and all(getattr(module, option) is None for option in FUSIBLE[cls])


# A single hypothesis


class SingleStep:
    """Decodes a single hypothesis of one sentence. The results agree with `Transformer.step` up to rounding.

    Args:
        model: A Transformer with full attention.
        state: The state of its decoder after `Transformer.start`, with fused blocks.
    """

    def __init__(self, model: Transformer, state: DecoderState) -> None:
        embedding, norm = model.target_embedding, model.decoder_norm
        self.weight, self.scale, self.positions = embedding.weight, embedding.scale, embedding.positions
        self.norm = _norm(norm) if isinstance(norm, nn.LayerNorm) else None
        self.logits = model.logits
        pairs = zip(state.blocks, state.source, strict=True)
        self.layers = [SingleLayer(cast(FusedDecoderBlock, block), *source) for block, source in pairs]
        self.position = 0

    @classmethod
    def of(cls, model: Transformer, state: DecoderState) -> Self | None:
        """Return the step for a model, or None if its blocks are not fused or its attention or positions differ."""
        positions = model.target_embedding.positions
        full = all(isinstance(block, FusedDecoderBlock) and block.is_full for block in state.blocks)
        supported = full and (positions is None or isinstance(positions, Sinusoidal | Learned))
        return cls(model, state) if supported and not torch.is_autocast_enabled("cpu") else None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Append a token, (1,), and return the logits of the next one, (1, V)."""
        x = self._embed(tokens)
        for layer in self.layers:
            x = layer(x, self.position)
        self.position += 1
        return self.logits(x if self.norm is None else self.norm(x))

    def _embed(self, tokens: Tensor) -> Tensor:
        vector = torch.embedding(self.weight, tokens)
        if self.positions is None:
            return vector * self.scale
        table = (
            self.positions.weight if isinstance(self.positions, Learned) else self.positions.up_to(self.position + 1)
        )
        return torch.add(table[self.position], vector, alpha=self.scale)

    def copy(self) -> "SingleStep":
        """Return a copy with its own cache."""
        copied = copy.copy(self)
        copied.layers = [layer.copy() for layer in self.layers]
        return copied


class SingleLayer:
    """A fused decoder block of a `SingleStep`, for a row of features, (1, W), with its cache."""

    def __init__(self, block: FusedDecoderBlock, source_keys: Tensor, source_values: Tensor) -> None:
        self.block, self.source_keys, self.source_values = block, source_keys, source_values
        _, self.cross_heads, _, self.cross_width = source_keys.shape
        self.heads, self.width = block.heads, self.cross_heads * self.cross_width // block.heads
        self.cache = source_keys.new_empty(2, 1, self.heads, CAPACITY, self.width)  # keys and values, (2, 1, H, C, D)

    def __call__(self, x: Tensor, position: int) -> Tensor:
        block = self.block
        x = block.around_attention(x, lambda y: self._attend(y, position))
        x = block.around_cross(x, self._attend_to_source)
        output: Tensor = block.around_feed_forward(x, lambda y: block.outer(block.activation(block.inner(y))))
        return output

    def _attend(self, x: Tensor, position: int) -> Tensor:
        H, D = self.heads, self.width
        if position == self.cache.shape[3]:
            self.cache = torch.cat((self.cache, torch.empty_like(self.cache)), 3)
        qkv = self.block.qkv(x).view(3, 1, H, 1, D)
        self.cache.narrow(3, position, 1).copy_(qkv.narrow(0, 1, 2))
        keys, values = self.cache.narrow(3, 0, position + 1).unbind(0)
        context = F.scaled_dot_product_attention(qkv[0], keys, values, scale=self.block.kind.scale)
        output: Tensor = self.block.out(context.view(1, H * D))
        return output

    def _attend_to_source(self, x: Tensor) -> Tensor:
        H, D = self.cross_heads, self.cross_width
        q = self.block.cross_q(x).view(1, H, 1, D)
        scale = self.block.cross_kind.scale
        context = F.scaled_dot_product_attention(q, self.source_keys, self.source_values, scale=scale)
        output: Tensor = self.block.cross_out(context.view(1, H * D))
        return output

    def copy(self) -> "SingleLayer":
        copied = copy.copy(self)
        copied.cache = self.cache.clone()
        return copied


def _norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
