"""Linear attention in a few launches: sums over stretches of the row, then each stretch from the sum before it.

A row is cut into so many stretches that they fill the GPU. What one stretch adds to the sum is found for all at once,
added up along the row, and then every stretch is walked by chunks with the running sum in registers: the sums of single
chunks, D times as large as what they are made of, never reach the memory. Backward is the same from the other end.

Shapes: B batch, H heads, T queries, S keys, D head width; n stretches of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.operator import Operator, dense_last, strides

CHUNK = 64
ENOUGH = 1024
"""Stretches of all rows together: what fills a large GPU."""
MOST = 127
"""Stretches of one row, one less than are added up in one tile."""


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, *, causal: bool, elu: bool, scale: float
) -> Tensor:
    """The context, (B, H, T, D), for the features elu(x) + 1, or for q·k itself, which is not divided by its sum.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, H, S, D); equally many where causal.
        v: values, (B, H, S, D).
        lengths: how many keys of each row of the batch are real, (B,); all unless given.
        causal: whether no query sees a later key.
        elu: whether features are elu(x) + 1.
        scale: factor on q·k.
    """
    dense = None if lengths is None else lengths.contiguous()  # it may be a column of a table
    return _attend(q, k, v, dense, causal, elu, scale)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, causal: bool, elu: bool, scale: float
) -> tuple[Tensor, ...]:
    from regard.ops.triton import linear_attention as kernels

    q, k, v = (dense_last(x) for x in (q, k, v))
    call = _Call.of(q, k, elu, scale)
    context, total, sums = _like_forward(q, k)
    of_keys, of_queries = call.cut(call.S), call.cut(call.T)
    kernels.sum_keys[call.rows, of_keys.n](
        k, v, sums, lengths, *strides(k, v), call.S, call.H, call.k_factor, *of_keys,
        PADDED=lengths is not None, **call.options,
    )  # fmt: skip
    call.add_up(sums)
    kernels.read[call.rows, of_queries.n](
        q, k, v, context, total, sums, lengths, *strides(q, k, v, context),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_keys.n, of_queries.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    return context, total, sums


def _like_forward(q: Tensor, k: Tensor, *others: object) -> tuple[Tensor, ...]:
    B, H, T, D = q.shape
    n = _Cut.of(B * H, k.shape[-2]).n
    context = q.new_empty(B, T, H, D).transpose(1, 2)  # heads beside each other, as the projection will have them
    total = q.new_empty(B, H, T, dtype=torch.float32)
    return context, total, q.new_empty(B * H, n + 1, D * D + D, dtype=torch.float32)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Tensor,
    total: Tensor,
    sums: Tensor,
    lengths: Tensor | None,
    causal: bool,
    elu: bool,
    scale: float,
) -> list[Tensor]:
    from regard.ops.triton import linear_attention as kernels

    q, k, v, grad = (dense_last(x) for x in (q, k, v, grad))
    call = _Call.of(q, k, elu, scale)
    dq, dk, dv = _like_backward(grad, q, k, v)
    of_keys, of_queries = call.cut(call.S), call.cut(call.T)
    kernels.backward_queries[call.rows, of_queries.n](
        q, k, v, context, grad, total, sums, lengths, dq, *strides(q, k, v, context, grad, dq),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_keys.n, of_queries.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    back = sums.new_empty(sums.shape[0], of_queries.n + 1, sums.shape[2])
    kernels.sum_queries[call.rows, of_queries.n](
        q, context, grad, total, back, *strides(q, context, grad), call.T, call.H, call.q_factor, *of_queries,
        DIVIDES=elu, **call.options,
    )  # fmt: skip
    call.add_up(back)
    kernels.backward_keys[call.rows, of_keys.n](
        q, k, v, context, grad, total, back, lengths, dk, dv, *strides(q, k, v, context, grad, dk, dv),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_queries.n, of_keys.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    return [dq, dk, dv]


def _like_backward(grad: Tensor, *inputs: Any) -> list[Tensor]:
    return [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in inputs[:3]]


_attend = Operator(
    "linear_attention",
    "Tensor? lengths, bool causal, bool elu, float scale",
    tensors=1,
    outputs=3,
    forward=_forward,
    backward=_backward,
    like_forward=_like_forward,
    like_backward=_like_backward,
    split=lambda grads: grads,
)


class _Cut(NamedTuple):
    """A row in n stretches of so many tokens."""

    n: int
    stretch: int

    @classmethod
    def of(cls, rows: int, tokens: int) -> _Cut:
        chunks = max(1, -(-tokens // CHUNK))
        n = min(chunks, MOST, max(1, ENOUGH // rows))
        stretch = -(-chunks // n) * CHUNK
        return cls(max(1, -(-tokens // stretch)), stretch)


class _Call(NamedTuple):
    """What the kernels of a call have in common."""

    rows: int
    H: int
    T: int
    S: int
    q_factor: float
    k_factor: float
    options: dict[str, Any]

    @classmethod
    def of(cls, q: Tensor, k: Tensor, elu: bool, scale: float) -> _Call:
        (B, H, T, D), S = q.shape, k.shape[-2]
        options = {
            "D": D,
            "C": CHUNK,
            "ELU": elu,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
            "num_warps": 8 if D > 64 else 4,
            "num_stages": 1,
        }
        q_factor, k_factor = (scale**0.5, scale**0.5) if elu else (scale, 1.0)
        return cls(B * H, H, T, S, q_factor, k_factor, options)

    def cut(self, tokens: int) -> _Cut:
        return _Cut.of(self.rows, tokens)

    def add_up(self, sums: Tensor) -> None:
        """Turns what each stretch adds into what stands before it."""
        from regard.ops.triton import linear_attention as kernels

        slots, size = sums.shape[1:]
        padded = 1 << (slots - 1).bit_length()
        width = 4096 // padded
        kernels.add_up[self.rows, -(-size // width)](sums, slots - 1, D=self.options["D"], P=padded, W=width)
