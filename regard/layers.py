"""What stands between attention and a model: feed-forward, residual connections, encoder and decoder blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import Attention, Cache, KeyValues, Mask, RunningSums
from regard.products import Linear

Activation = Literal["relu", "gelu", "swiglu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "gelu": F.gelu, "swiglu": F.silu}


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, for every token by itself.

    "swiglu" multiplies the activated half of the first map with its other half; `hidden` is the width of one half.
    """

    def __init__(self, width: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.activate = _ACTIVATIONS[activation]
        self.inner = Linear(width, 2 * hidden if self.gated else hidden)
        self.dropout = nn.Dropout(dropout)
        self.outer = Linear(hidden, width)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, x = self.inner(x).chunk(2, -1)
            x = self.activate(gate) * x
        else:
            x = self.activate(self.inner(x))
        y: Tensor = self.outer(self.dropout(x))
        return y


class Residual(nn.Module):
    """Add & Norm round a sublayer: norm(x + sublayer(x)), the paper's "post"; or x + sublayer(norm(x)), "pre"."""

    def __init__(self, width: int, norm: Literal["post", "pre"], dropout: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)
        self.pre = norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            y: Tensor = x + self.dropout(sublayer(self.norm(x)))
        else:
            y = self.norm(x + self.dropout(sublayer(x)))
        return y


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each within a residual connection."""

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.around_attention = Residual(attention.width, norm, dropout, eps)
        self.around_feed_forward = Residual(attention.width, norm, dropout, eps)

    def forward(self, x: Tensor, mask: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(y, mask=mask, positions=positions))
        y: Tensor = self.around_feed_forward(x, self.feed_forward)
        return y


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to the encoder's output, then feed-forward, each within a residual connection."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention,
        feed_forward: FeedForward,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.around_attention = Residual(attention.width, norm, dropout, eps)
        self.around_cross = Residual(attention.width, norm, dropout, eps)
        self.around_feed_forward = Residual(attention.width, norm, dropout, eps)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValues,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        cache: Cache | RunningSums | None = None,
    ) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(y, mask=mask, positions=positions, cache=cache))
        x = self.around_cross(x, lambda y: self.cross(y, memory, mask=memory_mask))
        y: Tensor = self.around_feed_forward(x, self.feed_forward)
        return y


class AttentionUnit(nn.Module):
    """The smallest complete unit: self-attention, residual connection, LayerNorm, Linear."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(width, heads, attention_dropout=dropout)
        self.norm = nn.LayerNorm(width)
        self.linear = Linear(width, width)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        y: Tensor = self.linear(self.norm(x + self.attention(x, mask=mask)))
        return y
