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

CHUNK = 64
ENOUGH = 1024
"""Stretches of all rows together: what fills a large GPU."""
MOST = 128
"""Stretches of one row: more would take longer to add up than they save."""


def attend_linear(
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
    context: Tensor = _forward(q, k, v, lengths, causal, elu, scale)[0]
    return context


_SHARED = "Tensor? lengths, bool causal, bool elu, float scale"


@torch.library.custom_op(
    "regard::attend_linear",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_SHARED}) -> (Tensor, Tensor, Tensor)",
)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, causal: bool, elu: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from regard.attention.kernels import linear_triton as kernels

    q, k, v = (_dense_last(x) for x in (q, k, v))
    call = _Call.of(q, k, elu, scale)
    context, total, sums = _empty_forward(q, k)
    sums[:, 0].zero_()
    of_keys, of_queries = call.cut(call.S), call.cut(call.T)
    kernels.sum_keys[of_keys.n, call.rows](
        k, v, sums, lengths, *_strides(k, v), call.S, call.H, call.k_factor, *of_keys,
        PADDED=lengths is not None, **call.options,
    )  # fmt: skip
    torch.cumsum(sums, 1, out=sums)
    kernels.read[of_queries.n, call.rows](
        q, k, v, context, total, sums, lengths, *_strides(q, k, v, context),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_keys.n, of_queries.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    return context, total, sums


@_forward.register_fake
def _(q: Tensor, k: Tensor, *others: object) -> tuple[Tensor, ...]:
    return _empty_forward(q, k)


def _empty_forward(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    B, H, T, D = q.shape
    n = _Cut.of(B * H, k.shape[-2]).n
    context = q.new_empty(B, T, H, D).transpose(1, 2)  # heads beside each other, as the projection will have them
    total = q.new_empty(B, H, T, dtype=torch.float32)
    return context, total, q.new_empty(B * H, n + 1, D * D + D, dtype=torch.float32)


@torch.library.custom_op(
    "regard::attend_linear_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor context, Tensor total, Tensor sums, "
    f"{_SHARED}) -> (Tensor, Tensor, Tensor)",
)
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
) -> tuple[Tensor, Tensor, Tensor]:
    from regard.attention.kernels import linear_triton as kernels

    q, k, v, grad = (_dense_last(x) for x in (q, k, v, grad))
    call = _Call.of(q, k, elu, scale)
    dq, dk, dv = _empty_backward(q, k, v)
    of_keys, of_queries = call.cut(call.S), call.cut(call.T)
    kernels.backward_queries[of_queries.n, call.rows](
        q, k, v, context, grad, total, sums, lengths, dq, *_strides(q, k, v, context, grad, dq),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_keys.n, of_queries.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    back = sums.new_empty(sums.shape[0], of_queries.n + 1, sums.shape[2])
    back[:, 0].zero_()
    kernels.sum_queries[of_queries.n, call.rows](
        q, context, grad, total, back, *_strides(q, context, grad), call.T, call.H, call.q_factor, *of_queries,
        DIVIDES=elu, **call.options,
    )  # fmt: skip
    torch.cumsum(back, 1, out=back)
    kernels.backward_keys[of_keys.n, call.rows](
        q, k, v, context, grad, total, back, lengths, dk, dv, *_strides(q, k, v, context, grad, dk, dv),
        call.T, call.S, call.H, call.q_factor, call.k_factor, of_queries.n, of_keys.stretch,
        PADDED=lengths is not None, CAUSAL=causal, DIVIDES=elu, **call.options,
    )  # fmt: skip
    return dq, dk, dv


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, ...]:
    return _empty_backward(q, k, v)


def _empty_backward(*inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in inputs)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, lengths, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, lengths)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    dq, dk, dv = _backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)


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


def _dense_last(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(x.stride(i) for x in tensors for i in range(3))
