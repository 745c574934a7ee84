"""Caches for incremental decoding: what each kind of attention keeps of the tokens decoded so far.

`Attention` hands the queries, keys and values of the new tokens to `Cache.attend`, which stores them and returns the
context. In beam search a row of the batch is a sentence, and each step adds one token per hypothesis.

Shapes: B rows, H heads, T new tokens, S stored tokens, D head width, F features of linear attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from regard.attention.masks import Mask

Hook = Callable[[Tensor, Tensor, Tensor, Mask], None] | None
"""Called with q, k, v and the mask before attention is computed."""


class Cache(Protocol):
    """What `Attention` and beam search need of a cache.

    Attributes:
        length: Number of tokens appended to each row.
    """

    length: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0, hook: Hook = None) -> Tensor:
        """Store the keys and values of new tokens, (B, H, T, D), and return the context of their queries.

        The mask refers to all stored keys, and the hook receives all of them.
        """

    def reorder(self, rows: Tensor, sentences: Tensor | None) -> Cache:
        """Return the cache after beam search has reordered the hypotheses.

        Args:
            rows: Previous index of every hypothesis.
            sentences: Previous index of every remaining sentence; None if all remain.
        """


class KeyValues(NamedTuple):
    """Projected keys and values, (B, H, S, D) each."""

    keys: Tensor
    values: Tensor

    def select(self, rows: Tensor) -> KeyValues:
        return KeyValues(self.keys[rows], self.values[rows])


class KVCache:
    """Keys and values of all tokens, or of the tokens within a window, in a buffer that grows by doubling.

    All hypotheses of a sentence share its row: the mask selects the keys that belong to each of them, so beam search
    never moves a key.

    Args:
        kind: Function that attends to the stored keys, (q, k, v, mask, dropout) -> context.
        capacity: Number of tokens in the initial buffer.
        window: Number of tokens before the new ones that may still be attended to. Earlier tokens are evicted when the
            buffer is full, so that its size stays bounded. None keeps all tokens.
    """

    def __init__(self, kind: Callable[..., Tensor], capacity: int = 32, window: int | None = None) -> None:
        self.kind, self.capacity, self.window = kind, capacity, window
        self.length = 0
        self.stored = 0  # the last of the `length` tokens, which are still in the buffer
        self._buffers: list[Tensor] = []  # keys and values, (B, H, capacity, D) each; empty before the first token

    @property
    def evicted(self) -> bool:
        """Whether tokens outside the window have been removed."""
        return self.stored < self.length

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0, hook: Hook = None) -> Tensor:
        k, v = self.append(k, v)
        if hook is not None:
            if self.evicted:
                raise ValueError("keys outside the window were evicted before the hook was set; set it before decoding")
            hook(q, k, v, mask)
        return self.kind(q, k, v, mask.last_keys(k.shape[-2]) if self.evicted else mask, dropout)

    def append(self, k: Tensor, v: Tensor) -> KeyValues:
        """Store the keys and values of new tokens, and return views of all stored ones."""
        new = k.shape[-2]
        if not self._buffers or self.stored + new > self._buffers[0].shape[-2]:
            self._grow(k, v)
        start, self.stored, self.length = self.stored, self.stored + new, self.length + new
        for buffer, x in zip(self._buffers, (k, v), strict=True):
            buffer.narrow(-2, start, new).copy_(x)
        keys, values = (buffer.narrow(-2, 0, self.stored) for buffer in self._buffers)
        return KeyValues(keys, values)

    def _grow(self, *new: Tensor) -> None:
        """Allocate buffers with room for new keys and values, and copy the tokens that are still needed."""
        kept = self.stored if self.window is None else min(self.stored, self.window)
        needed = kept + new[0].shape[-2]
        if self._buffers and needed > self.capacity // 2:  # they would soon be full again
            self.capacity *= 2
        self.capacity = max(self.capacity, needed)
        grown = [x.new_empty(*x.shape[:2], self.capacity, x.shape[-1]) for x in new]
        for buffer, old in zip(grown, self._buffers, strict=False):
            buffer[..., :kept, :] = old[..., self.stored - kept : self.stored, :]
        self._buffers, self.stored = grown, kept

    def reorder(self, rows: Tensor, sentences: Tensor | None) -> KVCache:
        return self if sentences is None else self.select(sentences)

    def select(self, rows: Tensor) -> KVCache:
        """Return a copy with the given rows, which may repeat."""
        selected = KVCache(self.kind, self.capacity, self.window)
        selected.length, selected.stored = self.length, self.stored
        for buffer in self._buffers:
            copy = buffer.new_empty(len(rows), *buffer.shape[1:])
            copy[..., : self.stored, :] = buffer[..., : self.stored, :].index_select(0, rows)
            selected._buffers.append(copy)
        return selected


class LinearState(NamedTuple):
    """Running sums over the keys of linear attention, in float32 or better."""

    key_values: Tensor  # Σ φ(k) vᵀ, (B, H, F, D)
    keys: Tensor  # Σ φ(k), (B, H, F)

    def select(self, rows: Tensor) -> LinearState:
        return LinearState(self.key_values[rows], self.keys[rows])


Advance = Callable[[Tensor, Tensor, Tensor, LinearState | None], tuple[Tensor, LinearState]]


class LinearCache:
    """The running sums of linear attention: constant size for any number of tokens.

    Every hypothesis has sums of its own, so each step takes one token per hypothesis.

    Args:
        advance: Function that attends causally from new tokens, (q, k, v, state) -> (context, new state).
        beam_width: Number of hypotheses per sentence.
    """

    def __init__(self, advance: Advance, beam_width: int = 1) -> None:
        self.advance, self.beam_width = advance, beam_width
        self.length = 0
        self.state: LinearState | None = None  # one row per hypothesis

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0, hook: Hook = None) -> Tensor:
        if hook is not None:
            raise ValueError("linear attention stores no keys while decoding, so its weights cannot be observed")
        B, H, T, _ = q.shape
        self.length += T
        if self.beam_width == 1:
            context, self.state = self.advance(q, k, v, self.state)
            return context
        if self.state is None and T == 1:  # the first token is the same for all hypotheses of a sentence
            context, state = self.advance(q, k, v, None)
            self.state = LinearState(*(part.repeat_interleave(self.beam_width, 0) for part in state))
            return context
        q, k, v = (x.transpose(1, 2).reshape(B * T, H, 1, x.shape[-1]) for x in (q, k, v))
        context, self.state = self.advance(q, k, v, self.state)
        return context.view(B, T, H, -1).transpose(1, 2)

    def reorder(self, rows: Tensor, sentences: Tensor | None) -> LinearCache:
        reordered = LinearCache(self.advance, self.beam_width)
        reordered.length = self.length
        reordered.state = None if self.state is None else self.state.select(rows)
        return reordered
