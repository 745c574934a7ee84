"""`Kind`: the interface of the kinds of attention, their caches and their settings; and full attention, `Full`.

A kind consists of a function of q, k and v with its cache for decoding, and of settings, which recipes write as
`attention: {kind: local, window: 128}`. The other kinds are in files of their own.

Shapes: B batch, H heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor

from regard.attention.core import (
    IMPLEMENTATION_NAMES,
    apply_weights,
    attend,
    attention_scores,
    check_choice,
    check_inputs,
    key_ranges,
    softmax_of_scores,
)
from regard.config import Settings
from regard.errors import UserError
from regard.masks import Mask
from regard.ops.dispatch import AttentionImplementation, select_attention
from regard.ops.varlen_attention import attend_projections, split_projections
from regard.registry import Registry, name_of_settings, register

CAPACITY = 32
"""Initial size of a cache, in tokens per hypothesis."""
Hook = Callable[[Tensor, Tensor, Tensor, Mask], None] | None
"""Called with q, k, v and the mask before attention is computed."""


class Kind(ABC):
    """How queries, keys and values become a context. `Attention` adds projections, heads and rotary embeddings.

    A subclass defines `scores`; the other methods follow from it and are overridden where something else is faster.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        """Return the context, (B, H, T, D), of q, (B, H, T, D), and of k and v, (B, H, S, D)."""
        check_inputs(q, k, v, mask)
        return apply_weights(self.weights(q, k, mask), v, dropout)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Return the attention weights, (B, H, T, S): the softmax of the scores, and zeros in fully masked rows."""
        return softmax_of_scores(self.scores(q, k, mask))

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Return the scaled scores, (B, H, T, S). Masked scores are -inf before a softmax and 0 otherwise."""

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> Cache:
        """Return an empty cache for decoding.

        Args:
            beam_width: Number of hypotheses per sentence.
            keep_all: Whether to keep keys that are no longer needed, because a hook reads them.
        """
        return KVCache(self, CAPACITY * beam_width)

    def try_attend_projected(
        self, projections: Sequence[Tensor], heads: int, mask: Mask, dropout: float = 0.0
    ) -> Tensor | None:
        """Return the context computed from joint projections, or None if separate q, k and v are needed.

        The projections are [qkv], (B, T, 3 · H · D), for self-attention and [q, kv] for cross-attention.
        """
        return None


@dataclass(frozen=True)
class Full(Kind):
    """Full attention: every query attends to every key that the mask allows.

    Args:
        scale: Factor on the scores; 1/√D by default.
        implementation: Implementation to use; "auto" selects the fastest.
    """

    scale: float | None = None
    implementation: AttentionImplementation = "auto"

    def __post_init__(self) -> None:
        check_choice("full attention", "implementation", self.implementation, IMPLEMENTATION_NAMES)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        return attend(q, k, v, mask, scale=self.scale, dropout=dropout, implementation=self.implementation)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask, scale=self.scale)

    def try_attend_projected(
        self, projections: Sequence[Tensor], heads: int, mask: Mask, dropout: float = 0.0
    ) -> Tensor | None:
        if self.implementation != "auto" or not mask.packed:
            return None
        parts = (3,) if len(projections) == 1 else (1, 2)
        D = projections[-1].shape[-1] // (heads * parts[-1])
        projections = [x.view(*x.shape[:2], n, heads, D) for x, n in zip(projections, parts, strict=True)]
        q, k, v = split_projections(projections)
        if select_attention(q, k, v, mask, dropout, None) != "triton_varlen":
            return None
        scale = 1 / math.sqrt(D) if self.scale is None else self.scale
        return attend_projections(projections, key_ranges(mask), scale, dropout)


# Caches for decoding
#
# `Attention` passes the queries, keys and values of new tokens to `Cache.attend`, which stores them and returns the
# context. In beam search, a row of the batch is a sentence, and each step adds one token per hypothesis.


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


# Settings


KINDS: Registry[type[KindSettings]] = Registry("attention kind", name_of_settings)


class KindSettings(Settings):
    """Base class of the settings of an attention kind; a subclass declares its name and keys.

    Its name is a field such as `kind: Literal["local"] = "local"`. Decorate the subclass with `regard.register`.
    """

    registry: ClassVar[Registry[type[KindSettings]]] = KINDS

    kind: str

    @abstractmethod
    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """Build the kind for one attention module.

        Args:
            heads: Number of heads.
            width: Head width.
            scale: Factor on the scores, `qk_scale` of the model; 1/√width by default.
        """

    def check(self, qk_scale: float | None, attention_dropout: float) -> None:
        """Raise ValueError for settings of a model that this kind does not support."""


@register
class FullSettings(KindSettings):
    """Every token attends to every other token."""

    kind: Literal["full"] = "full"

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Full(scale)


def _parse(value: Any) -> Any:
    """Parse the settings of the named kind; `attention: linear` is short for `attention: {kind: linear}`."""
    if isinstance(value, KindSettings):
        return value
    values = {"kind": value} if isinstance(value, str) else value
    kind: Any = values.get("kind") if isinstance(values, Mapping) else None
    try:
        settings = KINDS[kind]
    except (KeyError, TypeError):  # unknown, or not a string
        raise ValueError(f"kind must be {KINDS.explain(kind, sorted(KINDS))}, found {value!r}") from None
    _check_owner(kind, values)
    try:
        return settings.parse(values, kind)
    except UserError as error:
        raise ValueError(str(error)) from None


def _check_owner(kind: str, values: Mapping[str, Any]) -> None:
    """Reject a key of another kind with a clearer message than that for an unknown key."""
    for key in values:
        owners = [other for other, settings in KINDS.items() if key in settings.model_fields]
        if owners and kind not in owners:
            raise ValueError(f"{kind}: {key} is a key of kind {owners[0]}, not of {kind}")


AttentionSettings = Annotated[SerializeAsAny[KindSettings], BeforeValidator(_parse)]
