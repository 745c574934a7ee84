"""The model's part of a step: all hypotheses read their last token, and what they read stays where it is for ever.

Shapes: B sentences, K hypotheses a sentence, S source tokens, T steps, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.cache import KeyValues, KVCache
from regard.attention.masks import Mask, Padded
from regard.layers import DecoderBlock
from regard.models.transformer import Transformer
from regard.ops import dispatch


class Shape(NamedTuple):
    """The sizes that everything of a search has from its first step to its last."""

    sentences: int
    beam: int
    source: int
    target: int


class FixedCache(KVCache):
    """Room for the keys and values of all steps; those of a step's hypotheses stand side by side.

    Args:
        kind: Function that attends to the stored keys.
        room: keys and values, (2, B, H, T · K, D).
        step: the step that is under way, (1,), a number on the device.
        beam_width: how many tokens a step adds to a sentence, K.
    """

    def __init__(self, kind: Callable[..., Tensor], room: Tensor, step: Tensor, beam_width: int) -> None:
        super().__init__(kind)
        self.room, self.step = room, step
        self._by_step = room.view(*room.shape[:3], -1, beam_width, room.shape[4])

    def append(self, k: Tensor, v: Tensor) -> KeyValues:
        """Puts the new ones to their place and returns the whole room, what is not yet filled included."""
        if dispatch.kernels_apply(k) and k.shape[-1] in dispatch.HEAD_WIDTHS:
            self.append_by_kernel(k, v)
        else:
            for place, new in zip(self._by_step, (k, v), strict=True):
                place.index_copy_(2, self.step, new[:, :, None])
        return KeyValues(self.room[0], self.room[1])

    def append_by_kernel(self, k: Tensor, v: Tensor) -> None:
        """Both at once."""
        from regard.ops.triton import kv_cache as cache_triton

        (B, H, K, D), room = k.shape, self.room
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
        strides = [stride for x in (k, v, room) for stride in x.stride()[:-1]]
        cache_triton.append[(B * H,)](
            k, v, room, self.step, *strides, K, H, D=D, KP=1 << (K - 1).bit_length(), num_warps=1
        )


class Reader:
    """A model with room for the keys and values of a search of one shape."""

    def __init__(self, model: Transformer, shape: Shape) -> None:
        self.model, self.shape = model, shape
        B, K, S, T = shape
        config, weight = model.config, model.target_embedding.weight
        H, D = config.heads, config.width // config.heads
        # Zeros: what is masked has weight 0, and 0 times anything that is no number would be none either.
        self._rooms = weight.new_zeros(len(model.decoder), 2, B, H, T * K, D)
        self._sources = weight.new_zeros(len(model.decoder), 2, B, H, S, D)
        self._source_tokens = torch.full((B, S), config.eos, device=weight.device)
        self._source_lengths = torch.ones(B, dtype=torch.long, device=weight.device)
        self._filled = torch.zeros(B, dtype=torch.long, device=weight.device)
        self._own = torch.arange(K, device=weight.device)
        self._step = torch.zeros(1, dtype=torch.long, device=weight.device)
        self._caches = [
            FixedCache(cast(DecoderBlock, block).attention.kind, room, self._step, K)
            for block, room in zip(model.decoder, self._rooms, strict=True)
        ]

    def load(self, rows: Tensor, layout: Padded) -> None:
        """Lays out sources to be encoded; where they are fewer than there is room for, the other rows read anything."""
        n = len(rows)
        self._source_tokens[:n, : layout.size] = rows
        self._source_lengths[:n] = layout.lengths
        self._source_lengths[n:] = 1
        self._step.zero_()
        self._filled.fill_(self.shape.beam)

    def encode_room(self) -> None:
        """Encodes all that was laid out, empty room too: always the same work, so that it can be recorded."""
        self.encode(self._source_tokens, Padded(self._source_lengths, self.shape.source))

    def encode(self, rows: Tensor, layout: Padded) -> None:
        """Encodes the sources, for all steps to look at."""
        memory = self.model.encode(rows, layout)
        for block, room in zip(self.model.decoder, self._sources, strict=True):
            for part, projected in zip(room, cast(DecoderBlock, block).cross.project(memory), strict=True):
                part[: len(rows), :, : layout.size] = projected

    def read(self, tokens: Tensor, lines: Tensor) -> Tensor:
        """The logits of the tokens that follow, (B, K, V).

        Args:
            tokens: the last one of every hypothesis, (B, K).
            lines: at which of the K places of every step each hypothesis's tokens stand, (B, K, T).
        """
        _, K, S, T = self.shape
        model = self.model
        positions = self._step.expand(1, K)
        family = (lines[..., None] == self._own).flatten(2)  # which of all tokens of its sentence are its own
        mask = Mask(keys=Padded(self._filled, T * K), allowed=family[:, None])
        source_mask = Mask(keys=Padded(self._source_lengths, S))
        x: Tensor = model.target_embedding(tokens, positions, T)
        for block, source, cache in zip(model.decoder, self._sources, self._caches, strict=True):
            x = block(x, KeyValues(source[0], source[1]), mask, source_mask, positions, cache)
        self._step += 1
        self._filled += K
        return model.logits(model.decoder_norm(x))

    def take_over(self, other: Reader, rows: Tensor, steps: int) -> None:
        """Goes on with these rows of another, which has read so many steps; further rows read anything."""
        n, filled = len(rows), steps * self.shape.beam
        for mine, theirs in zip(self._rooms, other._rooms, strict=True):
            mine[:, :n, :, :filled] = theirs[:, rows, :, :filled]
        for mine, theirs in zip(self._sources, other._sources, strict=True):
            mine[:, :n] = theirs[:, rows]
        self._source_lengths[:n] = other._source_lengths[rows]
        self._source_lengths[n:] = 1
        self._step.copy_(other._step)
        self._filled.fill_(filled + self.shape.beam)
