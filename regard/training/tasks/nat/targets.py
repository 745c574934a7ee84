"""The canvas of a training batch: its layout, what should stand on it, and which of that is shown to the model.

Everything here is flat: the places of all sentences, one sentence after the other, whatever the batch's layout.

Shapes: N places of all canvases, B sentences, T places of the longest canvas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.attention.masks import Layout, Packed, Padded
from regard.models.nat import NATransformerConfig


@dataclass(frozen=True)
class Canvas:
    """Where the places of a batch's canvases lie."""

    layout: Layout

    @cached_property
    def sentences(self) -> Tensor:
        """The sentence of every place, (N,)."""
        if isinstance(self.layout, Packed):
            return self.layout.segments()
        return self._real // max(1, self.layout.size)

    @cached_property
    def places(self) -> Tensor:
        """Of every place, how many of its sentence stand before it, (N,)."""
        if isinstance(self.layout, Packed):
            return self.layout.positions()[0]
        return self._real % max(1, self.layout.size)

    @cached_property
    def _real(self) -> Tensor:
        """Where in the padded rows, end to end, the places stand."""
        assert isinstance(self.layout, Padded)
        return self.layout.real().flatten().nonzero()[:, 0]

    def lay_out(self, flat: Tensor, filler: int) -> Tensor:
        """(N,) as the model reads it, (B, T) or (1, N)."""
        if isinstance(self.layout, Packed):
            return flat[None]
        rows = flat.new_full((len(self.layout.lengths), self.layout.size), filler)
        return rows.flatten().index_copy(0, self._real, flat).view(rows.shape)

    def flatten(self, x: Tensor) -> Tensor:
        """What the model says, (B, T, …) or (1, N, …), as (N, …)."""
        return x[0] if isinstance(self.layout, Packed) else x.flatten(0, 1)[self._real]

    def in_rows(self, x: Tensor) -> Tensor:
        """What the model says, one sentence a row, (B, T, …); behind a sentence's end stands anything."""
        if isinstance(self.layout, Padded):
            return x
        starts = self.layout.offsets[:-1, None]
        index = starts + torch.arange(self.layout.longest, device=x.device)
        return x[0][index.clamp(max=self.layout.size - 1)]

    def emit(self, logp: Tensor, states: Tensor) -> Tensor:
        """Of what the model says, (B, T, V) or (1, N, V), each sentence's states, (B, L), at its places: (B, T, L)."""
        if isinstance(self.layout, Packed):
            return self.in_rows(logp.gather(2, states[self.sentences][None]))
        return logp.gather(2, states[:, None].expand(-1, logp.shape[1], -1))

    def from_rows(self, rows: Tensor) -> Tensor:
        """(B, T) as (N,)."""
        return rows[self.sentences, self.places]

    def count(self, marks: Tensor) -> Tensor:
        """How many places of each sentence are marked, (B,)."""
        zeros = torch.zeros(len(self.layout.lengths), dtype=torch.long, device=marks.device)
        return zeros.index_add(0, self.sentences, marks.long())

    def pick(self, counts: Tensor, among: Tensor | None = None) -> Tensor:
        """Marks so many random places of each sentence, (N,), among those that are marked already, where given."""
        chance = torch.rand(len(self.sentences), device=self.sentences.device, dtype=torch.float64)
        if among is not None:
            chance = torch.where(among, chance / 2, 0.5 + chance / 2)  # the others come last
        order = (self.sentences + chance).argsort()
        ranks = torch.empty_like(order).scatter_(0, order, self.places)
        picked = ranks < counts[self.sentences]
        return picked if among is None else picked & among


def target_canvas(target_layout: Layout, sentences: Tensor | None = None) -> Canvas:
    """A place for every token of the target, END left out.

    Args:
        target_layout: where the targets stand.
        sentences: of a batch that is filled up, which sequences are sentences, (B,); the canvas is filled up as it is.
    """
    if isinstance(target_layout, Padded):
        return Canvas(Padded(target_layout.lengths - 1, max(0, target_layout.size - 1)))
    if sentences is not None:
        sizes = torch.where(sentences, target_layout.lengths - 1, target_layout.longest)
        offsets = torch.zeros_like(target_layout.offsets)
        offsets[1:] = sizes.cumsum(0).clamp(max=target_layout.size)
        return Canvas(Packed(offsets, target_layout.longest, target_layout.size))
    number = len(target_layout.offsets) - 1
    ends = torch.arange(number + 1, dtype=torch.int32, device=target_layout.offsets.device)
    return Canvas(Packed(target_layout.offsets - ends, target_layout.longest - 1, target_layout.size - number))


def source_canvas(source_layout: Layout, config: NATransformerConfig) -> Canvas:
    """As many places as follow from the source's length; what fills a batch up has a canvas like any sentence."""
    sizes = config.upsample_ratio * source_layout.lengths + config.upsample_extra
    longest = config.upsample_ratio * source_layout.longest + config.upsample_extra
    bounded = config.positions == "learned" and longest > config.max_length
    if bounded:
        sizes, longest = sizes.clamp(max=config.max_length), config.max_length
    if isinstance(source_layout, Padded):
        return Canvas(Padded(sizes, longest))
    if bounded:
        return Canvas(Packed.of(sizes))
    sentences = len(source_layout.offsets) - 1
    size = config.upsample_ratio * source_layout.size + config.upsample_extra * sentences  # without asking the device
    offsets = torch.zeros_like(source_layout.offsets)
    offsets[1:] = sizes.cumsum(0)
    return Canvas(Packed(offsets, longest, size))
