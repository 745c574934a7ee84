"""Attention in which every query sees a run of neighbouring keys: made for thousands of short sequences in one row.

Sequences of a packed row, causality aligned to the end of the keys, windows, clusters of tokens sorted by place: in all
of these the keys of a query stand side by side, between `lo` and `hi`. Two numbers per query are the whole mask. Tiles
are cut from the row, not from sequences, so that several short sequences share one; a tile reads only the keys between
the first that its queries see and the last. On the way back, programs of a packed row have whole sequences, so that
what belongs to these is read once for the gradients of queries, keys and values alike.

What must move at the least: forward reads q, k, v and writes the context, backward reads these and its gradient and
writes three more, 12 N H D numbers; for 32,768 tokens of 8 × 64 in bfloat16 that is 0.4 GB.

Shapes: B batch, H heads, T queries, S keys, D head width; R rows, 1 or B · H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.dropout import draw_seed, drop_threshold
from regard.ops.key_ranges import KeyRanges
from regard.ops.operator import Operator, dense_last, strides


class Order(NamedTuple):
    """Where the token of each place lies in memory, where that is not the place itself."""

    queries: Tensor  # (R, T), int32
    keys: Tensor  # (R, S), int32


class Tiles(NamedTuple):
    """How a kernel cuts its work."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # of a thread, at the most

    def halved(self) -> Tiles:
        return Tiles(self.queries // 2, self.keys // 2, self.warps, 1)


class Plan(NamedTuple):
    """The tiles of the kernels."""

    forward: Tiles
    backward_queries: Tiles
    backward_keys: Tiles
    whole_backward: Tiles | None  # None: it would take more registers than there are

    def halved(self) -> Plan:
        forward, of_queries, of_keys = (tiles.halved() for tiles in self[:3])
        whole = None if self.whole_backward is None else self.whole_backward.halved()
        return Plan(forward, of_queries, of_keys, whole)


_SQUARE = Tiles(64, 64, 4, 1)
_STAGED = Tiles(64, 64, 4, 2)
PLANS = {
    16: Plan(_STAGED, _STAGED, _STAGED, _SQUARE),
    32: Plan(_STAGED, _STAGED, _STAGED, _SQUARE),
    64: Plan(Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2), Tiles(64, 64, 4, 1, 168)),
    128: Plan(_STAGED, _SQUARE, _SQUARE, None),
}
"""By width of a head; those of 64 are the fastest that benchmarks/kernels.py found on an H200, but for that of whole
sequences, of which no other was tried.

In float32 tiles are half as long: they would not fit otherwise.
"""


def attend_key_ranges(
    q: Tensor, k: Tensor, v: Tensor, runs: KeyRanges, scale: float, dropout: float = 0.0, order: Order | None = None
) -> Tensor:
    """The context, (B, H, T, D), of queries that see runs of keys.

    Where there is an order, runs are of places in it, while q, k, v and the context lie as before.
    """
    seed = draw_seed(q.device) if dropout else None
    at = (None, None) if order is None else order
    return _attend(q, k, v, *runs, *at, seed, scale, dropout)


def attend_bundles(bundles: Sequence[Tensor], runs: KeyRanges, scale: float, dropout: float = 0.0) -> Tensor:
    """`attend_key_ranges` for queries, keys and values that lie together, so that their gradients do, too.

    Args:
        bundles: (B, T, 3, H, D), or queries (B, T, 1, H, D) beside keys and values (B, S, 2, H, D).
        runs: which keys each query sees.
        scale: factor on the scores.
        dropout: of weights.
    """
    seed = draw_seed(bundles[0].device) if dropout else None
    return _BUNDLED[len(bundles)](*bundles, *runs, None, None, seed, scale, dropout)


def unbundle(bundles: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Queries, keys and values, (B, H, T, D) each, in the memory of bundles of them."""
    return tuple(part.transpose(1, 2) for bundle in bundles for part in bundle.unbind(2))


# Launching


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    first: Tensor | None,
    last: Tensor | None,
    slots: Tensor | None,
    q_at: Tensor | None,
    k_at: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, ...]:
    from regard.ops.triton import varlen_attention as kernels

    q, k, v = dense_last(q), dense_last(k), dense_last(v)
    call = _Call.of(q, k, dropout, q_at is not None)
    context, lse = _like_forward(q)
    tiles = call.plan.forward
    kernels.forward[call.grid(call.T, tiles.queries)](
        q, k, v, context, lse, lo, hi, q_at, k_at, seed,
        *strides(q, k, v, context), _row_stride(lo), *call.numbers(scale), **call.options(tiles),
    )  # fmt: skip
    return context, lse


def _like_forward(q: Tensor, *others: object) -> tuple[Tensor, ...]:
    B, H, T, D = q.shape
    # Heads beside each other, as the projection behind will have them.
    return q.new_empty(B, T, H, D).transpose(1, 2), q.new_empty(B, H, T, dtype=torch.float32)


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
    return _differentiate(_like_backward(grad, q, k), grad, q, k, v, *others)


def _differentiate(
    grads: list[Tensor],
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Tensor,
    lse: Tensor,
    lo: Tensor,
    hi: Tensor,
    first: Tensor,
    last: Tensor,
    slots: Tensor | None,
    q_at: Tensor | None,
    k_at: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> list[Tensor]:
    """Fills the gradients of queries, keys and values, in bundles, and returns them."""
    from regard.ops.triton import varlen_attention_backward as kernels

    q, k, v, grad = dense_last(q), dense_last(k), dense_last(v), dense_last(grad)
    call = _Call.of(q, k, dropout, q_at is not None)
    dq, dk, dv = unbundle(grads)
    numbers = call.numbers(scale)
    whole = call.plan.whole_backward
    if whole is not None and slots is not None:
        kernels.whole_backward[call.B * call.H, len(slots)](
            q, k, v, context, grad, lse, dq, dk, dv, lo, hi, first, last, slots, seed,
            *strides(q, k, v, context, grad, dq, dk, dv), *numbers, **call.options(whole),
        )  # fmt: skip
        return grads
    delta = torch.empty_like(lse)
    tiles = call.plan.backward_queries
    kernels.backward_queries[call.grid(call.T, tiles.queries)](
        q, k, v, context, grad, lse, delta, dq, lo, hi, q_at, k_at, seed,
        *strides(q, k, v, context, grad, dq), _row_stride(lo), *numbers, **call.options(tiles),
    )  # fmt: skip
    tiles = call.plan.backward_keys
    kernels.backward_keys[call.grid(call.S, tiles.keys)](
        q, k, v, grad, lse, delta, dk, dv, first, last, q_at, k_at, seed,
        *strides(q, k, v, grad, dk, dv), _row_stride(first), *numbers, **call.options(tiles),
    )  # fmt: skip
    return grads


def _like_backward(grad: Tensor, q: Tensor, k: Tensor, *others: object) -> list[Tensor]:
    """One tensor where queries and keys are equally many, (B, T, 3, H, D), else one for either; as projections lie."""
    (B, H, T, D), S = q.shape, k.shape[-2]
    if T == S:
        return [q.new_empty(B, T, 3, H, D)]
    return [q.new_empty(B, T, 1, H, D), k.new_empty(B, S, 2, H, D)]


SCHEMA = (
    "Tensor lo, Tensor hi, Tensor? first, Tensor? last, Tensor? slots, Tensor? q_at, Tensor? k_at, Tensor? seed, "
    "float scale, float dropout"
)
_attend = Operator(
    "attend_key_ranges",
    SCHEMA,
    tensors=8,
    outputs=2,
    forward=_forward,
    backward=_backward,
    like_forward=_like_forward,
    like_backward=_like_backward,
    split=unbundle,
)


def _bundled(name: str, inputs: tuple[str, ...]) -> Operator:
    """The operator for so many bundles."""
    n = len(inputs)

    def forward(*given: Any) -> tuple[Tensor, ...]:
        q, k, v = unbundle(given[:n])
        return _forward(q, k, v, *given[n:])

    def backward(grad: Tensor, *given: Any) -> list[Tensor]:
        q, k, v = unbundle(given[:n])
        return _differentiate(like_backward(grad, *given), grad, q, k, v, *given[n:])

    def like_backward(grad: Tensor, *given: Any) -> list[Tensor]:
        return [bundle.new_empty(bundle.shape) for bundle in given[:n]]

    return Operator(
        name,
        SCHEMA,
        tensors=8,
        outputs=2,
        forward=forward,
        backward=backward,
        like_forward=lambda *given: _like_forward(unbundle(given[:1])[0]),
        like_backward=like_backward,
        split=lambda grads: grads,
        inputs=inputs,
    )


_BUNDLED = {1: _bundled("attend_one_bundle", ("qkv",)), 2: _bundled("attend_two_bundles", ("q", "kv"))}


class _Call(NamedTuple):
    """What the kernels of a call have in common."""

    B: int
    H: int
    T: int
    S: int
    D: int
    precise: bool
    moved: bool
    dropout: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor, dropout: float, moved: bool) -> _Call:
        B, H, T, D = q.shape
        return cls(B, H, T, k.shape[-2], D, q.dtype == torch.float32, moved, dropout)

    @property
    def plan(self) -> Plan:
        plan = PLANS[self.D]
        return plan.halved() if self.precise else plan

    def grid(self, tokens: int, tile: int) -> tuple[int, int]:
        """Heads first: those of a token lie beside each other in memory."""
        return self.B * self.H, max(1, -(-tokens // tile))

    def numbers(self, scale: float) -> tuple[int, int, int, float, int, float]:
        return self.T, self.S, self.H, scale, drop_threshold(self.dropout), 1 / (1 - self.dropout)

    def options(self, tiles: Tiles) -> dict[str, Any]:
        return {
            "D": self.D,
            "M": tiles.queries,
            "N": tiles.keys,
            "MOVED": self.moved,
            "DROPS": self.dropout > 0,
            "PRECISION": "ieee" if self.precise else "tf32",
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
            "maxnreg": tiles.registers,
        }


def _row_stride(x: Tensor) -> int:
    return 0 if x.shape[0] == 1 else x.stride(0)
