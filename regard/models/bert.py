"""An encoder alone, as BERT is one: a context-aware vector for every token of a text, and one for the text.

Shapes: B batch, S tokens, W width.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.masks import Layout, Mask, Padded
from regard.attention.multi_head import Attention
from regard.attention.positions import Learned
from regard.config import Settings
from regard.layers import Activation, EncoderBlock, FeedForward
from regard.models.base import Model
from regard.models.transformer import token_positions
from regard.ops.dropout import Dropout


class BertConfig(Settings):
    """Everything that a `Bert` is built from. The defaults are BERT's base model."""

    kind: Literal["bert"] = "bert"
    vocab: int = Field(gt=0, description="how many pieces the tokenizer has")
    width: int = Field(768, gt=0, description="of every token")
    layers: int = Field(12, ge=0, le=1000, description="blocks of attention and feed-forward")
    heads: int = Field(12, gt=0, description="of every attention; they must divide the width")
    hidden: int = Field(3072, gt=0, description="width inside the feed-forward")
    activation: Activation = Field("gelu", description="inside the feed-forward")
    norm_eps: float = Field(1e-12, gt=0, description="keeps the norms from dividing by nothing")
    max_length: int = Field(512, gt=0, description="how many learned positions")
    segments: int = Field(2, gt=0, description="how many texts that are read as one can be told apart")
    pooling: Literal["mean", "class"] = Field(
        "mean", description="what stands for a text: the mean of its tokens, or the first, which belongs to none"
    )
    normalise: bool = Field(False, description="whether the vector of a text is brought to length 1")
    pad: int = Field(0, ge=0, description="the piece that fills up a batch")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and on what each sublayer adds")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="on attention weights")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.pad >= self.vocab:
            raise ValueError(f"pad {self.pad} is not in the vocabulary")
        return self


class Bert(Model):
    """Pieces, places and segments are embedded and added; then post-norm blocks, every token seeing every other."""

    config: BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.pieces = nn.Parameter(torch.empty(config.vocab, config.width))
        self.positions = Learned(config.max_length, config.width)
        self.segments = nn.Parameter(torch.empty(config.segments, config.width))
        for table in (self.pieces, self.segments):
            nn.init.normal_(table, std=0.02)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(self._block() for _ in range(config.layers))

    def forward(self, tokens: Tensor, layout: Layout | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, S) to context-aware vectors (B, S, W); all are of the first segment unless told otherwise."""
        positions, longest = token_positions(tokens, layout)
        segment = self.segments[0] if segments is None else F.embedding(segments, self.segments)
        x = F.embedding(tokens, self.pieces) + self.positions(positions, longest) + segment
        x = self.dropout(self.norm(x))
        mask = Mask.between(layout, layout)
        for block in self.encoder:
            x = block(x, mask, positions)
        y: Tensor = x
        return y

    def pool(self, x: Tensor, layout: Padded) -> Tensor:
        """The vectors of tokens, (B, S, W), to one for each text, (B, W)."""
        if self.config.pooling == "class":
            pooled = x[:, 0]
        else:
            real = layout.real()[..., None]
            pooled = x.masked_fill(~real, 0).sum(1) / real.sum(1)
        return F.normalize(pooled, dim=-1) if self.config.normalise else pooled

    def _block(self) -> EncoderBlock:
        c = self.config
        attention = Attention(c.width, c.heads, attention_dropout=c.attention_dropout)
        return EncoderBlock(attention, FeedForward(c.width, c.hidden, c.activation), "post", c.dropout, c.norm_eps)
