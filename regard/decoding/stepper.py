"""The Transformer as a step function for search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import Mask, Padded
from regard.models.transformer import DecoderState, Transformer


@dataclass
class TransformerState:
    """Keys and values of every layer; the source's are kept once for all hypotheses of a sentence."""

    decoder: DecoderState
    copies: int

    def select(self, rows: Tensor) -> TransformerState:
        decoder = DecoderState(self.decoder.memories, self.decoder.memory_mask)
        decoder.caches = [cache.select(rows) for cache in self.decoder.caches]
        sources = rows[:: self.copies] // self.copies
        layout = self.decoder.memory_mask.keys
        assert isinstance(layout, Padded)
        if len(sources) != len(layout.lengths) or self.copies == 1:
            decoder.memories = [memory.select(sources) for memory in decoder.memories]
            decoder.memory_mask = Mask(keys=layout.select(sources))
        return TransformerState(decoder, self.copies)


class TransformerStepper:
    """Drives a `Transformer` one token at a time, with its cache."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.bos, self.eos = model.config.bos, model.config.eos

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> TransformerState:
        """Encodes the sources, each given without END, which is added here."""
        rows, layout = pad_rows([[*source, self.eos] for source in sources], self.model.config.pad, self.device)
        memory = self.model.encode(rows, layout)
        return TransformerState(self.model.start(memory, layout), copies)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        x = self.model.step(tokens[:, None], state.decoder)[:, -1]
        return self.model.logits(x).float().log_softmax(-1), state


def pad_rows(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Padded]:
    """Token lists as one padded tensor with its layout."""
    layout = Padded.of([len(row) for row in rows], device=device)
    padded = [[*row, *[pad] * (layout.size - len(row))] for row in rows]
    return torch.tensor(padded, device=device), layout
