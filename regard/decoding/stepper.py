"""Steppers: a Transformer, or an ensemble of Transformers, as step functions for search.

Rows are hypotheses: the K hypotheses of each sentence follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks import Mask, Padded
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.models.transformer import DecoderState, Transformer
from regard.ops.quantization import refresh_prepacked


@dataclass
class TransformerState:
    """The decoder state and, for the coverage penalty, the attention that each source token has received."""

    decoder: DecoderState
    attention: Tensor | None = None  # (rows, S)

    def select(self, rows: Tensor) -> TransformerState:
        attention = None if self.attention is None else self.attention[rows]
        return TransformerState(self.decoder.select(rows), attention)

    def coverage_penalties(self) -> Tensor:
        layout = self.decoder.source_mask.keys
        assert self.attention is not None and isinstance(layout, Padded)
        real = layout.real().repeat_interleave(self.decoder.beam_width, 0)
        return coverage_penalty(self.attention.masked_fill(~real, 1))


class TransformerStepper:
    """Decodes with a `Transformer`.

    Args:
        model: The model.
        coverage: Whether states accumulate the attention of the last layer to each source token.
    """

    def __init__(self, model: Transformer, coverage: bool = False) -> None:
        self.model, self.coverage = model, coverage
        self.bos, self.eos = model.config.bos, model.config.eos
        self.max_length = model.config.max_length if model.config.positions == "learned" else None

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> TransformerState:
        """Encode the sources, which are given without END. The model must not change until the search ends."""
        refresh_prepacked(self.model)
        tokens, layout = pad_batch([[*source, self.eos] for source in sources], self.model.config.pad, self.device)
        encoder_output = self.model.encode(tokens, layout)
        state = TransformerState(self.model.start(encoder_output, layout, beam_width))
        if self.coverage:
            state.decoder.blocks = list(self.model.decoder)  # fused blocks do not call hooks
            dtype = torch.promote_types(encoder_output.dtype, torch.float32)  # sums of small weights
            state.attention = encoder_output.new_zeros(len(tokens) * beam_width, layout.size, dtype=dtype)
        return state

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        with self._accumulate_attention(state):
            logits = self.model.step(tokens.view(-1, state.decoder.beam_width), state.decoder)
        return logits.flatten(0, 1).float().log_softmax(-1)

    @contextmanager
    def _accumulate_attention(self, state: TransformerState) -> Iterator[None]:
        """Add the cross-attention weights of the last layer, averaged over heads, to the state."""
        if state.attention is None:
            yield
            return
        received_BKS = state.attention.view(-1, state.decoder.beam_width, state.attention.shape[1])

        def add(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            received_BKS.add_(attention.kind.weights(q, k, mask).mean(1))

        cross = self.model.get_submodule(f"decoder.{len(self.model.decoder) - 1}.cross")
        assert isinstance(cross, Attention)
        with use_qkv_hook([cross], add):
            yield


@dataclass
class EnsembleState:
    """The states of all models."""

    members: list[TransformerState]

    def select(self, rows: Tensor) -> EnsembleState:
        return EnsembleState([member.select(rows) for member in self.members])

    def coverage_penalties(self) -> Tensor:
        return torch.stack([member.coverage_penalties() for member in self.members]).mean(0)


class EnsembleStepper:
    """Averages the probabilities of several models with the same vocabularies at every step."""

    def __init__(self, steppers: Sequence[TransformerStepper]) -> None:
        self.steppers = steppers
        self.bos, self.eos = steppers[0].bos, steppers[0].eos
        self.max_length = min((s.max_length for s in steppers if s.max_length is not None), default=None)

    @property
    def device(self) -> torch.device:
        return self.steppers[0].device

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> EnsembleState:
        return EnsembleState([stepper.start(sources, beam_width) for stepper in self.steppers])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        pairs = zip(self.steppers, state.members, strict=True)
        log_probs = torch.stack([stepper.step(tokens, member) for stepper, member in pairs])
        return log_probs.logsumexp(0) - math.log(len(self.steppers))


def coverage_penalty(attention: Tensor) -> Tensor:
    """Return Σ log min(a, 1) over the attention a received by source tokens, the last dimension (Wu et al. 2016)."""
    return attention.clamp(min=1e-9, max=1).log().sum(-1)


def pad_batch(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Padded]:
    """Return token lists as one padded tensor with its layout."""
    layout = Padded.of([len(row) for row in rows], device=device)
    padded = [[*row, *[pad] * (layout.size - len(row))] for row in rows]
    return torch.tensor(padded, device=device), layout
