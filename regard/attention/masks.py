"""Who may look at whom: one symbolic object for every attention path. True means "may attend", everywhere.

A batch of sequences lies in memory in one of two layouts. `Padded`: one sequence a row, real tokens first. `Packed`:
all tokens of the batch in a single row with offsets, no padding. A `Mask` joins the layout of the queries with the
layout of the keys and says what else is excluded; it becomes a tensor only when a path asks for one.

Shapes: B batch, H heads, T queries, S keys, N tokens of a packed row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Padded:
    """One sequence a row; the first `lengths[b]` of the `size` tokens in row b are real."""

    lengths: Tensor  # (B,)
    size: int

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, size: int | None = None, device: torch.device | None = None) -> Padded:
        """Builds the layout from plain lengths; the row is as long as the longest unless `size` says more."""
        lengths = torch.as_tensor(lengths, device=device)
        longest = int(lengths.max()) if lengths.numel() else 0
        if size is not None and size < longest:
            raise ValueError(f"a row of {size} tokens cannot hold a sequence of {longest}")
        return cls(lengths, longest if size is None else size)

    @property
    def longest(self) -> int:
        return self.size

    def positions(self) -> Tensor:
        """The place of every token in its own sequence, (1, size)."""
        return torch.arange(self.size, device=self.lengths.device)[None]

    def real(self) -> Tensor:
        """Which tokens are not padding, (B, size)."""
        return self.positions() < self.lengths[:, None]

    def select(self, rows: Tensor) -> Padded:
        return Padded(self.lengths[rows], self.size)

    def to(self, device: torch.device) -> Padded:
        return Padded(self.lengths.to(device, non_blocking=True), self.size)


@dataclass(frozen=True, eq=False)
class Packed:
    """Every sequence of the batch in one row: sequence i is tokens `offsets[i]` to `offsets[i + 1]`.

    The last offset is the length of the row: fused kernels leave what lies beyond it unwritten, so padding behind the
    last sentence, where a batch of fixed size has any, is a sequence of its own. Where the number of offsets is fixed
    too, sequences without tokens stand at the end; `longest` may then be a bound, the same for all batches.
    """

    offsets: Tensor  # (sequences + 1,), int32, starts with 0
    longest: int
    size: int

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, device: torch.device | None = None) -> Packed:
        lengths = torch.as_tensor(lengths, device=device)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(offsets, int(lengths.max()), int(lengths.sum()))

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def segments(self) -> Tensor:
        """The sequence that each token belongs to, (N,)."""
        tokens = torch.arange(self.size, dtype=self.offsets.dtype, device=self.offsets.device)
        return torch.searchsorted(self.offsets, tokens, right=True) - 1

    def positions(self) -> Tensor:
        """The place of every token in its own sequence, (1, N)."""
        starts = self.offsets[:-1][self.segments()]
        return (torch.arange(self.size, device=self.offsets.device) - starts)[None]

    def to(self, device: torch.device) -> Packed:
        return Packed(self.offsets.to(device, non_blocking=True), self.longest, self.size)


Layout = Padded | Packed
Built = TypeVar("Built")
Window = tuple[int | None, int | None]  # how many keys before and after; None: no bound on that side


@dataclass(frozen=True, eq=False)
class Mask:
    """Which query may attend to which key, symbolic until `dense()`.

    Args:
        queries: layout of the queries, needed only where the batch is packed, or where queries are not those that the
            keys are of: kinds that treat padding apart take as many queries as keys to lie as these do.
        keys: layout of the keys: padding is never attended to, other sequences of a packed row neither.
        causal: no query sees a later key. Aligned to the end of the keys, so that one query with a cache is right.
        window: how far before and after itself a query sees, aligned as `causal` is.
        allowed: whatever cannot be said symbolically, broadcastable to (B, H, T, S), True where attention is allowed.
        beam_width: how many tokens of a padded row stand side by side at each place, as the hypotheses of a beam do; at
            the first place there may be fewer.
    """

    queries: Layout | None = None
    keys: Layout | None = None
    causal: bool = False
    window: Window | None = None
    allowed: Tensor | None = None
    beam_width: int = 1
    _built: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queries, Packed) != isinstance(self.keys, Packed):
            raise ValueError("queries and keys must both be packed or both be padded")
        if self.packed and len(self.queries.offsets) != len(self.keys.offsets):  # type: ignore[union-attr]
            raise ValueError("packed queries and keys must hold the same number of sequences")
        if self.allowed is not None and self.allowed.dtype != torch.bool:
            raise TypeError(f"allowed must be boolean, True where attention is allowed, not {self.allowed.dtype}")

    @classmethod
    def between(cls, queries: Layout | None, keys: Layout | None, causal: bool = False) -> Mask:
        """The mask of a model: `queries` look at `keys`, both as they lie in memory."""
        if causal and queries is keys and not isinstance(keys, Packed):
            # Padding stands behind the real tokens, where causality hides it already.
            return cls(queries=queries, causal=True)
        return cls(queries=queries, keys=keys, causal=causal)

    @property
    def packed(self) -> bool:
        return isinstance(self.keys, Packed)

    @property
    def only_causal(self) -> bool:
        """Whether causality is all that it says; then a single query, at the end of the keys, sees them all."""
        return self.causal and self.keys is None and self.window is None and self.allowed is None

    @property
    def reach(self) -> Window:
        """How far before and after itself a query sees, causality included."""
        return _narrower(self.window, (None, 0)) if self.causal else self.window or (None, None)

    @property
    def allows_all(self) -> bool:
        """Whether every query may attend to every key, however many there are."""
        return self.keys is None and self.allowed is None and self.reach == (None, None)

    def __and__(self, other: Mask) -> Mask:
        """The mask that allows only what both allow."""
        for name in ("queries", "keys"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine is not theirs:
                raise ValueError(f"two masks with different layouts of {name} cannot be joined")
        allowed = other.allowed if self.allowed is None else self.allowed
        if self.allowed is not None and other.allowed is not None:
            allowed = self.allowed & other.allowed
        return Mask(
            queries=self.queries if self.queries is not None else other.queries,
            keys=self.keys if self.keys is not None else other.keys,
            causal=self.causal or other.causal,
            window=_narrower(self.window, other.window) if self.window or other.window else None,
            allowed=allowed,
            beam_width=max(self.beam_width, other.beam_width),
        )

    def last(self, S: int) -> Mask:
        """What it says of the last S keys alone, where these are the end of a cache."""
        if self.keys is not None:
            raise ValueError("keys with a layout of their own have no end in common")
        narrow = self.allowed is None or self.allowed.shape[-1] == 1
        allowed = self.allowed if narrow else self.allowed[..., -S:]  # type: ignore[index]
        return Mask(causal=self.causal, window=self.window, allowed=allowed, beam_width=self.beam_width)

    def dense(self, T: int, S: int, device: torch.device) -> Tensor | None:
        """Builds the boolean tensor, broadcastable to (B, H, T, S); None where everything is allowed."""
        if self.allows_all:
            return None
        return self.once(("dense", T, S, device), lambda: self._build_dense(T, S, device))

    def blind(self, T: int, S: int, device: torch.device) -> Tensor | None:
        """Marks the queries that may attend to nothing, broadcastable to (B, H, T, 1)."""

        def build() -> Tensor | None:
            may = self.dense(T, S, device)
            return None if may is None else ~may.any(-1, keepdim=True)

        if self.allows_all:
            return None
        return self.once(("blind", T, S, device), build)

    def once(self, name: tuple[object, ...], build: Callable[[], Built]) -> Built:
        """What follows from this mask, by name: every layer of a stack asks for the same, and it is built once."""
        if any(isinstance(part, torch.SymInt) for part in name):  # while a program is exported sizes are not known
            return build()
        if name not in self._built:
            self._built[name] = build()
        built: Built = self._built[name]
        return built

    def places(self, T: int, S: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each query, (T,), and each key, (S,), stands in its sequence; both sequences end at the same place."""
        if isinstance(self.queries, Packed) and isinstance(self.keys, Packed):
            shift = (self.keys.lengths - self.queries.lengths)[self.queries.segments()]
            return self.queries.positions()[0] + shift, self.keys.positions()[0]
        if self.beam_width == 1:
            places = torch.arange(S - max(T, S), S, device=device)
        else:
            back = torch.arange(max(T, S) - 1, -1, -1, device=device) // self.beam_width
            places = (S - 1) // self.beam_width - back
        return places[len(places) - T :], places[len(places) - S :]

    def _build_dense(self, T: int, S: int, device: torch.device) -> Tensor | None:
        parts: list[Tensor] = []
        if isinstance(self.queries, Packed) and isinstance(self.keys, Packed):
            parts.append(self.queries.segments()[:, None] == self.keys.segments()[None, :])
        elif isinstance(self.keys, Padded):
            parts.append(self.keys.real()[:, None, None, :])
        if self.reach != (None, None):
            query_place, key_place = self.places(T, S, device)
            near = within(self.reach, query_place[:, None], key_place[None, :])
            assert near is not None
            parts.append(near)
        if self.allowed is not None:
            parts.append(self.allowed)
        if not parts:
            return None
        may = parts[0]
        for part in parts[1:]:
            may = may & part
        return may.reshape((1,) * (4 - may.dim()) + tuple(may.shape))


def within(reach: Window, query_place: Tensor, key_place: Tensor) -> Tensor | None:
    """Which keys stand within reach of which queries, by their places; None where the reach has no bound."""
    before, after = reach
    distance = key_place - query_place
    if before is None:
        return None if after is None else distance <= after
    near = distance >= -before
    return near if after is None else near & (distance <= after)


def _narrower(one: Window | None, other: Window | None) -> Window:
    if one is None or other is None:
        return one or other or (None, None)
    return _smaller(one[0], other[0]), _smaller(one[1], other[1])


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
