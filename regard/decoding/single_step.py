"""A decoding step of a single hypothesis on a CPU.

It needs neither a batch dimension nor masks nor permuted copies, so that it has about half of the operations of
`Transformer.step`; for small models, calling operations takes longer than their arithmetic.

Shapes: W width, H heads, D head width, S source tokens, C capacity of a cache.
"""

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers import Learned, Sinusoidal
from regard.models.transformer import DecoderState, Transformer

CAPACITY = 64
"""Tokens for which a new cache of a `SingleStep` has room; it grows by doubling."""


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
        blocks: Any = state.blocks  # each a `FusedDecoderBlock`
        self.layers = [_SingleLayer(block, *source) for block, source in zip(blocks, state.source, strict=True)]
        self.position = 0

    @classmethod
    def of(cls, model: Transformer, state: DecoderState) -> Self | None:
        """Return the step for a model, or None if its blocks are not fused or its attention or positions differ."""
        positions = model.target_embedding.positions
        full = all(getattr(block, "is_full", False) for block in state.blocks)
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


class _SingleLayer:
    """A fused decoder block for a row of features, (1, W), with its cache."""

    def __init__(self, block: Any, source_keys: Tensor, source_values: Tensor) -> None:
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

    def copy(self) -> "_SingleLayer":
        copied = copy.copy(self)
        copied.cache = self.cache.clone()
        return copied


def _norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
