"""Linear attention in few kernels: states of splits of the row, their prefix sums, then the context of each split.

A row is divided into enough splits to fill the GPU. The state that each split adds is computed in parallel, and summed
along the row. Then every split is processed in chunks with the running state in registers, so that the states of single
chunks, D times as large as their tokens, are never written to memory. Backward does the same from the other end.

Shapes: B batch, H heads, T queries, S keys, D head width, n splits of a row.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.custom_op import AttentionOp, contiguous_token_major, token_major

CHUNK = 64
MIN_PROGRAMS = 1024
"""Number of splits of all rows together that fill a large GPU."""
MAX_SPLITS = 127
"""Maximum number of splits of a row: one less than `cumulate_states` sums in one tile."""


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, *, causal: bool, elu: bool, scale: float
) -> Tensor:
    """Return the context, (B, H, T, D), for the features elu(x) + 1, or for plain q·k without division.

    Args:
        q: Queries, (B, H, T, D).
        k: Keys, (B, H, S, D); T = S if causal.
        v: Values, (B, H, S, D).
        lengths: Number of keys of each row that are not padding, (B,); all by default.
        causal: Whether queries attend to no later keys.
        elu: Whether the features are elu(x) + 1.
        scale: Factor on q·k.
    """
    lengths = None if lengths is None else lengths.contiguous()
    return _attend(q, k, v, lengths, causal, elu, scale)


class _Splits(NamedTuple):
    """n splits of a row, of `size` tokens each."""

    n: int
    size: int

    @classmethod
    def of(cls, rows: int, tokens: int) -> "_Splits":
        chunks = max(1, -(-tokens // CHUNK))
        n = min(chunks, MAX_SPLITS, max(1, MIN_PROGRAMS // rows))
        size = -(-chunks // n) * CHUNK
        return cls(max(1, -(-tokens // size)), size)


class _Launch(NamedTuple):
    """Sizes, factors and compile-time options of the kernels of one call."""

    rows: int
    H: int
    T: int
    S: int
    q_factor: float
    k_factor: float
    queries: _Splits
    keys: _Splits
    options: dict[str, Any]
    mask_options: dict[str, bool]

    @classmethod
    def of(cls, q: Tensor, k: Tensor, lengths: Tensor | None, causal: bool, elu: bool, scale: float) -> "_Launch":
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
        queries, keys = _Splits.of(B * H, T), _Splits.of(B * H, S)
        mask_options = {"PADDED": lengths is not None, "CAUSAL": causal, "DIVIDED": elu}
        return cls(B * H, H, T, S, q_factor, k_factor, queries, keys, options, mask_options)

    @property
    def numbers(self) -> tuple[int, int, int, float, float]:
        return self.T, self.S, self.H, self.q_factor, self.k_factor

    def cumulate(self, states: Tensor) -> None:
        """Replace the state of each split by the sum over all splits up to it."""
        from regard.ops.triton import linear_attention as kernels

        entries, size = states.shape[1:]
        padded = 1 << (entries - 1).bit_length()
        width = 4096 // padded
        grid = self.rows, -(-size // width)
        kernels.cumulate_states[grid](states, entries - 1, D=self.options["D"], P=padded, W=width)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, causal: bool, elu: bool, scale: float
) -> tuple[Tensor, ...]:
    from regard.ops.triton import linear_attention as kernels

    launch = _Launch.of(q, k, lengths, causal, elu, scale)
    (q, q_t), (k, k_t), (v, v_t) = token_major(q), token_major(k), token_major(v)
    context, total, states = _allocate_outputs(q, k)
    kernels.sum_keys[launch.rows, launch.keys.n](
        k, v, states, lengths, k_t, v_t, launch.S, launch.H, launch.k_factor, *launch.keys,
        PADDED=lengths is not None, **launch.options,
    )  # fmt: skip
    launch.cumulate(states)
    kernels.linear_forward[launch.rows, launch.queries.n](
        q, k, v, context, total, states, lengths, q_t, k_t, v_t, *launch.numbers, launch.keys.n, launch.queries.size,
        **launch.mask_options, **launch.options,
    )  # fmt: skip
    return context, total, states


def _allocate_outputs(q: Tensor, k: Tensor, *others: object) -> tuple[Tensor, ...]:
    B, H, T, D = q.shape
    n = _Splits.of(B * H, k.shape[-2]).n
    context = q.new_empty(B, T, H, D).transpose(1, 2)
    total = q.new_empty(B, H, T, dtype=torch.float32)
    return context, total, q.new_empty(B * H, n + 1, D * D + D, dtype=torch.float32)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Tensor,
    total: Tensor,
    states: Tensor,
    lengths: Tensor | None,
    causal: bool,
    elu: bool,
    scale: float,
) -> list[Tensor]:
    from regard.ops.triton import linear_attention as kernels

    launch = _Launch.of(q, k, lengths, causal, elu, scale)
    (q, q_t), (k, k_t), (v, v_t) = token_major(q), token_major(k), token_major(v)
    context, grad = contiguous_token_major(context), contiguous_token_major(grad)
    dq, dk, dv = _allocate_gradients(grad, q, k, v)
    kernels.linear_backward_queries[launch.rows, launch.queries.n](
        q, k, v, context, grad, total, states, lengths, dq, q_t, k_t, v_t,
        *launch.numbers, launch.keys.n, launch.queries.size, **launch.mask_options, **launch.options,
    )  # fmt: skip
    dstates = states.new_empty(states.shape[0], launch.queries.n + 1, states.shape[2])
    kernels.sum_queries[launch.rows, launch.queries.n](
        q, context, grad, total, dstates, q_t, launch.T, launch.H, launch.q_factor, *launch.queries,
        DIVIDED=elu, **launch.options,
    )  # fmt: skip
    launch.cumulate(dstates)
    kernels.linear_backward_keys[launch.rows, launch.keys.n](
        q, k, v, context, grad, total, dstates, lengths, dk, dv, q_t, k_t, v_t,
        *launch.numbers, launch.queries.n, launch.keys.size, **launch.mask_options, **launch.options,
    )  # fmt: skip
    return [dq, dk, dv]


def _allocate_gradients(grad: Tensor, *inputs: Any) -> list[Tensor]:
    return [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in inputs[:3]]


_attend = AttentionOp(
    "linear_attention",
    "Tensor? lengths, bool causal, bool elu, float scale",
    outputs=3,
    forward=_forward,
    backward=_backward,
    allocate_outputs=_allocate_outputs,
    allocate_gradients=_allocate_gradients,
    split=lambda grads: grads,
)
