"""Layouts of batches, and `Mask`: which query may attend to which key. True means "may attend" everywhere.

A batch of sequences has one of two layouts. `Padded`: one sequence per row, followed by padding. `Packed`: all
sequences one after the other in a single row, with offsets and without padding. A `Mask` combines the layouts of the
queries and the keys with causality, a window and an optional boolean tensor. It stays symbolic until an implementation
of attention needs a tensor.

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
    """One sequence per row; the first `lengths[b]` of the `size` tokens of row b are real.

    Attributes:
        lengths: Length of each sequence, (B,).
        size: Number of tokens per row.
    """

    lengths: Tensor
    size: int

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, size: int | None = None, device: torch.device | None = None) -> Padded:
        """Build the layout from sequence lengths, (B,); rows are as long as the longest sequence by default."""
        lengths = torch.as_tensor(lengths, device=device)
        longest = int(lengths.max()) if lengths.numel() else 0
        if size is not None and size < longest:
            raise ValueError(f"a row of {size} tokens cannot hold a sequence of {longest} tokens")
        return cls(lengths, longest if size is None else size)

    @property
    def longest(self) -> int:
        return self.size

    def positions(self) -> Tensor:
        """Return the position of every token in its sequence, (1, size)."""
        return torch.arange(self.size, device=self.lengths.device)[None]

    def real(self) -> Tensor:
        """Return which tokens are not padding, (B, size)."""
        return self.positions() < self.lengths[:, None]

    def select(self, rows: Tensor) -> Padded:
        """Return the layout of some rows, given by their indices, (rows,)."""
        return Padded(self.lengths[rows], self.size)

    def followed_by(self, other: Padded) -> Padded:
        """Return the layout of these rows and those of another layout of the same size."""
        return Padded(torch.cat((self.lengths, other.lengths)), self.size)

    def to(self, device: torch.device) -> Padded:
        return Padded(self.lengths.to(device, non_blocking=True), self.size)

    def __repr__(self) -> str:
        return f"Padded(lengths={_first_values(self.lengths)}, size={self.size})"


def pad_batch(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Padded]:
    """Return token lists as one padded tensor with its layout."""
    layout = Padded.of([len(row) for row in rows], device=device)
    padded = [[*row, *[pad] * (layout.size - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long, device=device), layout


@dataclass(frozen=True, eq=False)
class Packed:
    """All sequences of a batch in one row: sequence i consists of tokens `offsets[i]` to `offsets[i + 1]`.

    The last offset is the length of the row. Fused kernels leave tokens beyond it unwritten, so padding at the end of a
    row of fixed size is a sequence of its own. If the number of offsets is fixed too, empty sequences follow at the
    end, and `longest` may be an upper bound that is the same for all batches.

    Attributes:
        offsets: Start of each sequence and end of the last one, (sequences + 1,), int32; begins with 0.
        longest: Length of the longest sequence, or an upper bound.
        size: Number of tokens in the row, N.
    """

    offsets: Tensor
    longest: int
    size: int

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, device: torch.device | None = None) -> Packed:
        """Build the layout from sequence lengths, (sequences,)."""
        lengths = torch.as_tensor(lengths, device=device).to(torch.int32)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(offsets, int(lengths.max()) if len(lengths) else 0, int(lengths.sum()))

    @property
    def lengths(self) -> Tensor:
        """Length of each sequence, (sequences,)."""
        return self.offsets.diff()

    def segments(self) -> Tensor:
        """Return the index of the sequence that each token belongs to, (N,)."""
        tokens = torch.arange(self.size, dtype=self.offsets.dtype, device=self.offsets.device)
        return torch.searchsorted(self.offsets, tokens, right=True) - 1

    def positions(self) -> Tensor:
        """Return the position of every token in its sequence, (1, N)."""
        starts = self.offsets[:-1][self.segments()]
        return (torch.arange(self.size, device=self.offsets.device) - starts)[None]

    def followed_by(self, other: Packed) -> Packed:
        """Return the layout of these sequences and those of another layout in one row."""
        offsets = torch.cat((self.offsets, other.offsets[1:] + self.size))
        return Packed(offsets, max(self.longest, other.longest), self.size + other.size)

    def to(self, device: torch.device) -> Packed:
        return Packed(self.offsets.to(device, non_blocking=True), self.longest, self.size)

    def __repr__(self) -> str:
        return f"Packed(lengths={_first_values(self.lengths)}, longest={self.longest}, size={self.size})"


def _first_values(values: Tensor, count: int = 8) -> str:
    """Return the first values of a vector, or its shape if its values are not available."""
    if values.is_meta or type(values) is not Tensor:
        return str(tuple(values.shape))
    more = ", …" if len(values) > count else ""
    return f"[{', '.join(str(value) for value in values[:count].tolist())}{more}]"


Layout = Padded | Packed
Built = TypeVar("Built")
Window = tuple[int | None, int | None]
"""Number of keys before and after the position of the query; None for no limit on that side."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Which query may attend to which key.

    Args:
        queries: Layout of the queries. Needed for packed batches, and for kinds that treat padding queries specially if
            the queries are not the tokens that the keys belong to.
        keys: Layout of the keys. Excludes padding, and the other sequences of a packed row.
        causal: Exclude keys after the position of the query. Queries are aligned to the end of the keys, so that one
            query with a cache of keys attends to all of them.
        window: Exclude keys outside this window around the position of the query, aligned as `causal` is.
        allowed: Boolean tensor broadcastable to (B, H, T, S), True where attention is allowed.
        beam_width: Number of tokens that share each position of a padded row, as the hypotheses of a beam do. The first
            position may have fewer.
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
        """Build the mask of a model in which tokens with layout `queries` attend to tokens with layout `keys`."""
        if causal and queries is keys and not isinstance(keys, Packed):
            return cls(queries=queries, causal=True)  # padding follows the real tokens, so causality excludes it
        return cls(queries=queries, keys=keys, causal=causal)

    def __repr__(self) -> str:
        stated = {
            "queries": self.queries,
            "keys": self.keys,
            "causal": self.causal or None,
            "window": self.window,
            "allowed": None if self.allowed is None else tuple(self.allowed.shape),
            "beam_width": None if self.beam_width == 1 else self.beam_width,
        }
        return f"Mask({', '.join(f'{name}={value}' for name, value in stated.items() if value is not None)})"

    def check(self, B: int, H: int, T: int, S: int) -> None:
        """Raise ValueError unless the mask fits T queries and S keys."""
        if self.allowed is not None:
            check_broadcastable("the dense part of the mask", self.allowed, (B, H, T, S))
        found, required = None, None
        if isinstance(self.queries, Packed) and isinstance(self.keys, Packed):
            found, required = (1, self.queries.size, self.keys.size), (B, T, S)
        elif isinstance(self.keys, Padded):
            found, required = (len(self.keys.lengths), T, self.keys.size), (B, T, S)
        if found != required:
            raise ValueError(f"the mask is for (batch, queries, keys) = {found}, but q and k have {required}")

    @property
    def packed(self) -> bool:
        return isinstance(self.keys, Packed)

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only restriction."""
        return self.causal and self.keys is None and self.window is None and self.allowed is None

    @property
    def reach(self) -> Window:
        """The window with causality included."""
        return _intersect(self.window, (None, 0)) if self.causal else self.window or (None, None)

    @property
    def allows_all(self) -> bool:
        """Whether every query may attend to every key."""
        return self.keys is None and self.allowed is None and self.reach == (None, None)

    def __and__(self, other: Mask) -> Mask:
        """Return the mask that allows what both masks allow."""
        # By identity: masks of a batch share its layouts, and comparing tensors would synchronise with the device.
        for name in ("queries", "keys"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine is not theirs:
                raise ValueError(f"masks with different layouts of {name} cannot be combined")
        allowed = other.allowed if self.allowed is None else self.allowed
        if self.allowed is not None and other.allowed is not None:
            allowed = self.allowed & other.allowed
        return Mask(
            queries=self.queries if self.queries is not None else other.queries,
            keys=self.keys if self.keys is not None else other.keys,
            causal=self.causal or other.causal,
            window=_intersect(self.window, other.window) if self.window or other.window else None,
            allowed=allowed,
            beam_width=max(self.beam_width, other.beam_width),  # that of the mask in which it is not the default, 1
        )

    def last_keys(self, S: int) -> Mask:
        """Return the mask for the last S keys, after the others were evicted from a cache."""
        if self.keys is not None:
            raise ValueError("keys with a layout have no common end, so the last keys cannot be selected")
        allowed = self.allowed
        if allowed is not None and allowed.shape[-1] > 1:
            allowed = allowed[..., -S:]
        return Mask(causal=self.causal, window=self.window, allowed=allowed, beam_width=self.beam_width)

    def dense(self, T: int, S: int, device: torch.device) -> Tensor | None:
        """Return the mask as a boolean tensor broadcastable to (B, H, T, S), or None if it allows everything."""
        if self.allows_all:
            return None
        return self.cached(("dense", T, S, device), lambda: self._build_dense(T, S, device))

    def fully_masked(self, T: int, S: int, device: torch.device) -> Tensor | None:
        """Return which queries may attend to no key, broadcastable to (B, H, T, 1); None if the mask allows all."""
        allowed = self.dense(T, S, device)
        if allowed is None:
            return None
        return self.cached(("fully masked", T, S, device), lambda: ~allowed.any(-1, keepdim=True))

    def cached(self, key: tuple[object, ...], build: Callable[[], Built]) -> Built:
        """Return build(), computed once per key: all layers of a model share the mask and what is derived from it."""
        if any(isinstance(part, torch.SymInt) for part in key):  # sizes are symbolic while a model is exported
            return build()
        if key not in self._built:
            self._built[key] = build()
        built: Built = self._built[key]
        return built

    def positions(self, T: int, S: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the positions of the queries, (T,), and keys, (S,), in their sequences, aligned at the last token."""
        if isinstance(self.queries, Packed) and isinstance(self.keys, Packed):
            shift = (self.keys.lengths - self.queries.lengths)[self.queries.segments()]
            return self.queries.positions()[0] + shift, self.keys.positions()[0]
        if self.beam_width == 1:
            positions = torch.arange(S - max(T, S), S, device=device)
        else:
            steps_back = torch.arange(max(T, S) - 1, -1, -1, device=device) // self.beam_width
            positions = (S - 1) // self.beam_width - steps_back
        return positions[len(positions) - T :], positions[len(positions) - S :]

    def _build_dense(self, T: int, S: int, device: torch.device) -> Tensor | None:
        """Return the conjunction of all conditions, broadcastable to (B, H, T, S); None if there are none."""
        parts: list[Tensor] = []
        if isinstance(self.queries, Packed) and isinstance(self.keys, Packed):
            parts.append(self.queries.segments()[:, None] == self.keys.segments()[None, :])
        elif isinstance(self.keys, Padded):
            parts.append(self.keys.real()[:, None, None, :])
        if self.reach != (None, None):
            query_positions, key_positions = self.positions(T, S, device)
            in_reach = in_window(self.reach, query_positions[:, None], key_positions[None, :])
            assert in_reach is not None
            parts.append(in_reach)
        if self.allowed is not None:
            parts.append(self.allowed)
        if not parts:
            return None
        allowed = parts[0]
        for part in parts[1:]:
            allowed = allowed & part
        return allowed.reshape((1,) * (4 - allowed.dim()) + tuple(allowed.shape))


def in_window(window: Window, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
    """Return which keys are in the windows of which queries (broadcast), or None if the window has no limits."""
    before, after = window
    distance = key_positions - query_positions
    if before is None:
        return None if after is None else distance <= after
    inside = distance >= -before
    return inside if after is None else inside & (distance <= after)


def check_broadcastable(name: str, x: Tensor, scores: tuple[int, int, int, int]) -> None:
    """Raise ValueError unless x can be broadcast to the scores, (B, H, T, S)."""
    sizes = zip(reversed(x.shape), reversed(scores), strict=False)
    if x.dim() > 4 or not all(mine in (1, size) for mine, size in sizes):
        raise ValueError(
            f"{name} must be broadcastable to (batch, heads, queries, keys) = {tuple(scores)}, found {tuple(x.shape)}"
        )


def _intersect(one: Window | None, other: Window | None) -> Window:
    (before, after), (other_before, other_after) = one or (None, None), other or (None, None)
    return _minimum(before, other_before), _minimum(after, other_after)


def _minimum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
