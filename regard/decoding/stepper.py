"""The Transformer as a step function for search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import Attention, Mask, Padded
from regard.models.transformer import DecoderState, Transformer


@dataclass
class TransformerState:
    """Keys and values of every layer; the source's are kept once for all hypotheses of a sentence."""

    decoder: DecoderState
    copies: int
    coverage: Tensor | None = None  # what each source token has received of attention, (rows, S)

    def uncovered(self) -> Tensor:
        layout = self.decoder.memory_mask.keys
        assert self.coverage is not None and isinstance(layout, Padded)
        real = layout.real().repeat_interleave(self.copies, 0)
        return self.coverage.clamp(min=1e-9, max=1).log().masked_fill(~real, 0).sum(-1)

    def select(self, rows: Tensor) -> TransformerState:
        decoder = DecoderState(self.decoder.memories, self.decoder.memory_mask)
        decoder.caches = [cache.select(rows) for cache in self.decoder.caches]
        sources = rows[:: self.copies] // self.copies
        layout = self.decoder.memory_mask.keys
        assert isinstance(layout, Padded)
        if len(sources) != len(layout.lengths) or self.copies == 1:
            decoder.memories = [memory.select(sources) for memory in decoder.memories]
            decoder.memory_mask = Mask(keys=layout.select(sources))
        coverage = None if self.coverage is None else self.coverage[rows]
        return TransformerState(decoder, self.copies, coverage)


class TransformerStepper:
    """Drives a `Transformer` one token at a time, with its cache.

    Args:
        model: what is driven.
        coverage: whether states add up the attention that the last layer gives to each source token.
    """

    def __init__(self, model: Transformer, coverage: bool = False) -> None:
        self.model, self.coverage = model, coverage
        self.bos, self.eos = model.config.bos, model.config.eos
        self.longest = model.config.max_length if model.config.positions == "learned" else None

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> TransformerState:
        """Encodes the sources, each given without END, which is added here."""
        rows, layout = pad_rows([[*source, self.eos] for source in sources], self.model.config.pad, self.device)
        memory = self.model.encode(rows, layout)
        coverage = memory.new_zeros(len(rows) * copies, layout.size) if self.coverage else None
        return TransformerState(self.model.start(memory, layout), copies, coverage)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        if state.coverage is None:
            x = self.model.step(tokens[:, None], state.decoder)[:, -1]
        else:
            x = self._step_and_cover(tokens, state, state.coverage)
        return self.model.logits(x).float().log_softmax(-1), state

    def _step_and_cover(self, tokens: Tensor, state: TransformerState, coverage: Tensor) -> Tensor:
        def add(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            # The hypotheses of a sentence are queries side by side, so rows come out in the order of the hypotheses.
            coverage.add_(attention.kind.weights(q, k, mask).mean(1).flatten(0, 1))

        cross = self.model.get_submodule(f"decoder.{len(self.model.decoder) - 1}.cross")
        assert isinstance(cross, Attention)
        cross.observer = add
        try:
            return self.model.step(tokens[:, None], state.decoder)[:, -1]
        finally:
            cross.observer = None


def pad_rows(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Padded]:
    """Token lists as one padded tensor with its layout."""
    layout = Padded.of([len(row) for row in rows], device=device)
    padded = [[*row, *[pad] * (layout.size - len(row))] for row in rows]
    return torch.tensor(padded, device=device), layout
