"""BERT: a Transformer encoder that returns contextual embeddings of tokens and of sentences.

Shapes: B batch, S tokens, W width.
"""

from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.config import Settings
from regard.layers import Activation, EncoderBlock, FeedForward, Learned, Model
from regard.masks import Layout, Mask, Padded
from regard.models.transformer import token_positions
from regard.ops.dropout import Dropout


class BertConfig(Settings):
    """Configuration of a `Bert`. The defaults are BERT-base."""

    kind: Literal["bert"] = "bert"
    vocab: int = Field(gt=0, description="size of the vocabulary")
    width: int = Field(768, gt=0, description="width of each token")
    layers: int = Field(12, ge=0, le=1000, description="number of encoder blocks")
    heads: int = Field(12, gt=0, description="number of attention heads; must divide the width")
    hidden: int = Field(3072, gt=0, description="hidden features of the feed-forward layers")
    activation: Activation = Field("gelu", description="activation of the feed-forward layers")
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the norms")
    max_length: int = Field(512, gt=0, description="number of learned positions")
    segments: int = Field(2, gt=0, description="number of segment embeddings (token types)")
    pooling: Literal["mean", "class"] = Field(
        "mean", description="embedding of a sentence: the mean of its tokens, or its first token"
    )
    normalise: bool = Field(False, description="whether sentence embeddings are scaled to length 1")
    pad: int = Field(0, ge=0, description="padding token")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of embeddings and of the output of each sublayer")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of attention weights")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.pad >= self.vocab:
            raise ValueError(f"pad {self.pad} is not in the vocabulary")
        return self


class Bert(Model):
    """Token, position and segment embeddings, followed by post-norm encoder blocks."""

    input_type = "sentences"
    config: BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Parameter(torch.empty(config.vocab, config.width))
        self.positions = Learned(config.max_length, config.width)
        self.segment_embedding = nn.Parameter(torch.empty(config.segments, config.width))
        for table in (self.token_embedding, self.segment_embedding):
            nn.init.normal_(table, std=0.02)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(self._block() for _ in range(config.layers))

    def forward(self, tokens: Tensor, layout: Layout | None = None, segments: Tensor | None = None) -> Tensor:
        """Return contextual embeddings, (B, S) to (B, S, W); all tokens are in segment 0 by default."""
        positions, longest = token_positions(tokens, layout)
        segment = self.segment_embedding[0] if segments is None else F.embedding(segments, self.segment_embedding)
        x = F.embedding(tokens, self.token_embedding) + self.positions(positions, longest) + segment
        x = self.dropout(self.norm(x))
        mask = Mask.between(layout, layout)
        for block in self.encoder:
            x = block(x, mask, positions)
        y: Tensor = x
        return y

    def pool(self, x: Tensor, layout: Padded) -> Tensor:
        """Return sentence embeddings, (B, S, W) to (B, W)."""
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
