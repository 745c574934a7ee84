"""The Transformer as a step function for search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.cache import KeyValues
from regard.attention.masks import Mask, Padded
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding.direct import DirectDecoder
from regard.models.transformer import DecoderState, Transformer
from regard.ops.linear import PackedWeights


@dataclass
class TransformerState:
    """Keys and values of every layer, one row a sentence: of its source, and of all that its hypotheses have said.

    Hypotheses change places at every step, their keys and values never do: each sentence has one pool of them, where
    each step adds `copies` tokens side by side, and `family` says which of the pool belong to whom. The first token is
    the same for all hypotheses of a sentence, and stands there once.
    """

    decoder: DecoderState
    copies: int
    family: Tensor  # which tokens of its sentence's pool each hypothesis consists of, (B, copies, pool)
    steps: int = 0
    coverage: Tensor | None = None  # what each source token has received of attention, (rows, S)
    direct: DirectDecoder | None = None  # the decoder, where its modules need not be gone through

    def uncovered(self) -> Tensor:
        layout = self.decoder.memory_mask.keys
        assert self.coverage is not None and isinstance(layout, Padded)
        real = layout.real().repeat_interleave(self.copies, 0)
        return coverage_penalty(self.coverage.masked_fill(~real, 1))

    def select(self, rows: Tensor) -> TransformerState:
        decoder = self.decoder
        memories, mask = decoder.memories, decoder.memory_mask
        sentences = rows[:: self.copies] // self.copies
        gone = len(sentences) != len(self.family) or self.copies == 1
        if gone:
            assert isinstance(mask.keys, Padded)
            memories, mask = [memory.select(sentences) for memory in memories], Mask(keys=mask.keys.select(sentences))
        caches = [cache.reorder(rows, sentences if gone else None) for cache in decoder.caches]
        decoder = DecoderState(memories, mask, caches)
        family = self.family.flatten(0, 1)[rows].view(len(sentences), self.copies, -1)
        coverage = None if self.coverage is None else self.coverage[rows]
        return TransformerState(decoder, self.copies, family, self.steps, coverage, self.direct)


class TransformerStepper:
    """Drives a `Transformer` one token at a time, with its cache.

    Args:
        model: what is driven.
        coverage: whether states add up the attention that the last layer gives to each source token.
        products: how vectors are multiplied with weights; in float32 unless given.
    """

    def __init__(self, model: Transformer, coverage: bool = False, products: PackedWeights | None = None) -> None:
        self.model, self.coverage = model, coverage
        self._packed = PackedWeights() if products is None else products
        self.bos, self.eos = model.config.bos, model.config.eos
        self.longest = model.config.max_length if model.config.positions == "learned" else None

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> TransformerState:
        """Encodes the sources, each given without END, which is added here; the model stays as it is until the end."""
        self._packed.refresh()
        rows, layout = pad_batch([[*source, self.eos] for source in sources], self.model.config.pad, self.device)
        with self._packed:
            memory = self.model.encode(rows, layout)
            decoder = self.model.start(memory, layout, copies)
        # Projected keys of one head lie pages apart; every step reads them, so they are brought together once.
        decoder.memories = [KeyValues(keys.contiguous(), values.contiguous()) for keys, values in decoder.memories]
        family = torch.ones(len(rows), copies, 0, dtype=torch.bool, device=self.device)
        precise = torch.promote_types(memory.dtype, torch.float32)  # in which a share is not lost for being small
        coverage = memory.new_zeros(len(rows) * copies, layout.size, dtype=precise) if self.coverage else None
        direct = None if self.coverage else DirectDecoder.of(self.model, self._packed)
        return TransformerState(decoder, copies, family, 0, coverage, direct)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        B, K = state.family.shape[:2]
        tokens = tokens.view(B, K)
        if not state.steps:  # all hypotheses of a sentence begin alike: one is read for all
            tokens, own = tokens[:, :1], torch.ones(K, 1, dtype=torch.bool, device=self.device)
        else:
            own = torch.eye(K, dtype=torch.bool, device=self.device)
        family = torch.cat((state.family, own.expand(B, -1, -1)), 2)
        mask = Mask(causal=True) if tokens.shape[1] == 1 else Mask(allowed=family[:, None], beam_width=K)
        with self._packed, self._covering(state):
            logits = self.model.logits(self._read(tokens, mask, state))
        logp = logits.float().log_softmax(-1).expand(-1, K, -1).reshape(B * K, -1)
        return logp, TransformerState(state.decoder, K, family, state.steps + 1, state.coverage, state.direct)

    def _read(self, tokens: Tensor, mask: Mask, state: TransformerState) -> Tensor:
        """Like the model's own `step`, for tokens that stand side by side instead of one behind the other."""
        model, decoder, place = self.model, state.decoder, state.steps
        positions = torch.full((1, tokens.shape[1]), place, device=self.device)
        x: Tensor = model.target_embedding(tokens, positions, place + 1)
        if state.direct is not None:
            return state.direct.read(x, mask, decoder)
        for block, memory, cache in zip(model.decoder, decoder.memories, decoder.caches, strict=True):
            x = block(x, memory, mask, decoder.memory_mask, positions, cache)
        y: Tensor = model.decoder_norm(x)
        return y

    @contextmanager
    def _covering(self, state: TransformerState) -> Iterator[None]:
        """Adds up what the last layer's hypotheses look at in the source while the block runs."""
        if state.coverage is None:
            yield
            return
        received = state.coverage.view(*state.family.shape[:2], -1)

        def add(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            # The hypotheses of a sentence are queries side by side, so rows come out in the order of the hypotheses.
            received.add_(attention.kind.weights(q, k, mask).mean(1))

        cross = self.model.get_submodule(f"decoder.{len(self.model.decoder) - 1}.cross")
        assert isinstance(cross, Attention)
        with use_qkv_hook([cross], add):
            yield


def coverage_penalty(received: Tensor) -> Tensor:
    """Σ log min(attention received, 1) over the source tokens in the last dimension: 0 when all were looked at."""
    return received.clamp(min=1e-9, max=1).log().sum(-1)


def pad_batch(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Padded]:
    """Token lists as one padded tensor with its layout."""
    layout = Padded.of([len(row) for row in rows], device=device)
    padded = [[*row, *[pad] * (layout.size - len(row))] for row in rows]
    return torch.tensor(padded, device=device), layout
