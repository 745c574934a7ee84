"""A Transformer that writes all tokens at once: the same encoder and decoder layers, without the causal mask.

The decoder reads a *canvas*, one place for every token it may write. A place that is not known yet holds the mask,
together with what the encoder says of the same part of the source; a known one holds its token. Every place sees every
other. What such a model cannot see is where to stop, and there are three ways to know:

- "classifier": the encoder guesses how much longer than its source the target is, and the canvas has just that length;
- "end": the canvas is longer than any target should be, and what is written is cut at the first END;
- "ctc": the canvas is longer, too, and places may stay blank: repetitions are joined, then blanks dropped.

Shapes: B batch, S source tokens, T places of the canvas, W width, V vocabulary. A packed batch is one row, B = 1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.masks import Layout, Mask, Packed
from regard.errors import UserError
from regard.models.transformer import EncoderDecoder, EncoderDecoderConfig, token_positions
from regard.ops.linear import Linear

Ints = npt.NDArray[np.int64]
SUM_SCALE = 1 / 16
"""Makes the sum over a sentence of usual length about as large as a single vector."""
MIXING = 0x1E3779B97F4A7C15  # any large odd number


class NATransformerConfig(EncoderDecoderConfig):
    """Everything that a `NATransformer` is built from."""

    kind: Literal["nat"] = "nat"
    length: Literal["classifier", "end", "ctc"] = Field(
        "classifier", description="how the length is known: guessed first; cut at END; or blanks and repetitions go"
    )
    length_reach: int = Field(
        128, gt=0, description="for classifier: how many tokens longer or shorter than its source a target can be"
    )
    upsample_ratio: int = Field(2, gt=0, description="for end and ctc: places of the canvas a source token")
    upsample_extra: int = Field(4, ge=0, description="for end and ctc: further places, whatever the source")

    @property
    def mask_token(self) -> int:
        """What stands at a place that is not known yet; BOS has no other use here."""
        return self.bos

    @property
    def blank_token(self) -> int:
        """What CTC writes where no token begins; padding is never written otherwise."""
        return self.pad

    @property
    def forbidden_tokens(self) -> list[int]:
        """The special tokens that this model must not write."""
        sayable = {"classifier": [], "end": [self.eos], "ctc": [self.blank_token]}[self.length]
        return [token for token in (self.pad, self.bos, self.eos) if token not in sayable]

    def check_effect(self) -> None:
        """Does nothing where every setting is for the way in which this model knows the length.

        Raises:
            UserError: one is not, and would have no effect.
        """
        others = ["upsample_ratio", "upsample_extra"] if self.length == "classifier" else ["length_reach"]
        for name in [name for name in others if getattr(self, name) != type(self).model_fields[name].default]:
            needed = "end or ctc" if self.length == "classifier" else "classifier"
            raise UserError(f"model.{name}: is for model.length={needed}, not {self.length}; leave it away")

    def clip_lengths(self, lengths: Ints) -> Ints:
        """The lengths, as far as this model's positions reach."""
        return np.minimum(lengths, self.max_length) if self.positions == "learned" else lengths

    def upsampled_lengths(self, source_lengths: Ints) -> Ints:
        """How many places the canvas has, where that follows from the source's length alone, END counted."""
        return self.clip_lengths(self.upsample_ratio * source_lengths + self.upsample_extra)


class NATransformer(EncoderDecoder):
    """An encoder reads the source; a decoder fills the whole canvas in one pass, or what is masked of it."""

    config: NATransformerConfig

    def __init__(self, config: NATransformerConfig) -> None:
        super().__init__(config)
        if config.length == "classifier":
            self.length = Linear(config.width, 2 * config.length_reach + 1)
            nn.init.zeros_(self.length.weight)
            nn.init.zeros_(self.length.bias)

    def forward(
        self, source: Tensor, canvas: Tensor, source_layout: Layout | None = None, canvas_layout: Layout | None = None
    ) -> Tensor:
        """The logits of the token at every place of the canvas, (B, T, V)."""
        memory = self.encode(source, source_layout)
        return self.logits(self.decode(canvas, memory, canvas_layout, source_layout))

    def decode(
        self, canvas: Tensor, memory: Tensor, layout: Layout | None = None, memory_layout: Layout | None = None
    ) -> Tensor:
        """A canvas (B, T) of masks and known tokens to vectors (B, T, W), each of which sees the whole canvas."""
        positions, longest = token_positions(canvas, layout)
        x = self.target_embedding(canvas, positions, longest)
        unknown = (canvas == self.config.mask_token)[..., None]
        x = x + stretch(memory, memory_layout, x, layout) * unknown
        return self._decode(x, memory, Mask.between(layout, layout), Mask.between(layout, memory_layout), positions)

    def length_logits(self, memory: Tensor, layout: Layout | None = None) -> Tensor:
        """Scores of each difference between the target's length and the source's, from -reach on, (B, 2 reach + 1).

        They follow from the sum of the source's vectors: what every token adds to the target's length adds up.
        """
        y: Tensor = self.length(add_up(memory, layout) * SUM_SCALE)
        return y

    def untrained_lengths(self) -> Tensor:
        """Which differences no training pair has had, (2 reach + 1,): they are those whose weights are another's, too.

        All begin with equal weights, and what no pair asks for is pushed away exactly like all the others of its kind.
        """
        rows = torch.cat((self.length.weight, self.length.bias[:, None]), 1).detach()
        marks = fingerprints(rows)
        return (marks[:, None] == marks).sum(1) > 1


def stretch(memory: Tensor, memory_layout: Layout | None, canvas: Tensor, layout: Layout | None) -> Tensor:
    """The source's vectors laid out evenly over the canvas, (B, T, W): the first at its beginning, the last at its end.

    The canvas of a source without any token gets zeros.
    """
    if not memory.shape[1]:
        return torch.zeros_like(canvas)
    place, _ = token_positions(canvas, layout)
    if memory_layout is None and layout is None:
        return memory[:, place[0] * memory.shape[1] // max(1, canvas.shape[1])]
    if isinstance(layout, Packed) and isinstance(memory_layout, Packed):
        segments = layout.segments()
        lengths = memory_layout.lengths[segments]
        within = place[0] * lengths // layout.lengths[segments]
        index = (memory_layout.offsets[:-1][segments] + within).clamp(max=memory_layout.size - 1)
        return memory[:, index] * (lengths > 0)[:, None]
    lengths = _lengths(memory, memory_layout)[:, None]
    index = place * lengths // _lengths(canvas, layout)[:, None].clamp(min=1)
    index = torch.minimum(index, (lengths - 1).clamp(min=0))  # places behind the canvas's end have no meaning
    return memory.gather(1, index[..., None].expand(-1, -1, memory.shape[2])) * (lengths > 0)[..., None]


def add_up(x: Tensor, layout: Layout | None) -> Tensor:
    """The sum of the vectors of each sequence, (sequences, W)."""
    if layout is None:
        return x.sum(1)
    if isinstance(layout, Packed):
        return x.new_zeros(len(layout.offsets) - 1, x.shape[2]).index_add(0, layout.segments(), x[0])
    return (x * layout.real()[..., None]).sum(1)


def fingerprints(rows: Tensor) -> Tensor:
    """A number for every row (R, C), the same for equal rows, since integers add up exactly, and hardly for others."""
    bits = rows.double().view(torch.int64)
    bits = bits ^ (bits >> 32)  # numbers of low precision have all that tells them apart in the upper half
    mixed = torch.arange(1, rows.shape[1] + 1, device=rows.device) * MIXING
    mixed = (mixed ^ (mixed >> 31)) * MIXING  # or columns would be weighed by 1, 2, 3, and sums be often equal
    return (bits * (mixed | 1)).sum(1)


def _lengths(x: Tensor, layout: Layout | None) -> Tensor:
    """How many tokens each row has, (B,)."""
    return layout.lengths if layout is not None else torch.full((len(x),), x.shape[1], device=x.device)
