"""Attention in which every query attends to a contiguous range of keys, for many short sequences in one row.

Sequences of a packed row, causality aligned to the end of the keys, windows and sorted clusters all have this property,
so two numbers per query replace the mask. Tiles are cut from the row instead of from sequences, so that several short
sequences share a tile; a tile reads only the keys from the first to the last that its queries attend to. In the
backward pass of a packed row each program computes complete sequences, so that it reads them once for the gradients of
queries, keys and values.

Forward reads q, k, v and writes the context; backward reads these and its gradient and writes three more: at least
12 N H D numbers, 0.4 GB for 32,768 tokens of 8 × 64 in bfloat16.

Shapes: B batch, H heads, T queries, S keys, D head width, R rows: 1 or B · H.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.custom_op import AttentionOp, contiguous_token_major, token_major
from regard.ops.dropout import draw_seed, drop_threshold
from regard.ops.key_ranges import KeyRanges


class TokenOrder(NamedTuple):
    """The index of the token at each position, if tokens are not in the order of the key ranges."""

    queries: Tensor  # (R, T), int32
    keys: Tensor  # (R, S), int32


class Tiles(NamedTuple):
    """Tile sizes and launch options of a kernel."""

    queries: int
    keys: int
    warps: int
    stages: int
    max_registers: int | None = None  # per thread

    def halved(self) -> "Tiles":
        return Tiles(self.queries // 2, self.keys // 2, self.warps, 1)


class Plan(NamedTuple):
    """The tiles of all kernels."""

    forward: Tiles
    backward_queries: Tiles
    backward_keys: Tiles
    backward_sequences: Tiles | None  # None if there are not enough registers

    def halved(self) -> "Plan":
        return Plan(*(None if tiles is None else tiles.halved() for tiles in self))  # type: ignore[arg-type]


_SQUARE = Tiles(64, 64, 4, 1)
_STAGED = Tiles(64, 64, 4, 2)
PLANS = {
    16: Plan(_STAGED, _STAGED, _STAGED, _SQUARE),
    32: Plan(_STAGED, _STAGED, _STAGED, _SQUARE),
    64: Plan(Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2), Tiles(64, 64, 4, 1, 168)),
    128: Plan(_STAGED, _SQUARE, _SQUARE, None),
}
"""Plans by head width. That of 64 is the fastest of benchmarks/kernels.py on an H200. In float32, where these tiles do
not fit, they are half as long."""


def attend_key_ranges(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: KeyRanges,
    scale: float,
    dropout: float = 0.0,
    order: TokenOrder | None = None,
) -> Tensor:
    """Return the context, (B, H, T, D), of queries that attend to ranges of keys.

    Args:
        q: Queries, (B, H, T, D); keys and values (B, H, S, D).
        ranges: Key range of each query.
        scale: Factor on the scores.
        dropout: Dropout probability of the weights.
        order: The order of tokens that the ranges refer to, if it is not that of q, k and v.
    """
    seed = draw_seed(q.device) if dropout else None
    return _attend(q, k, v, *ranges, *(order or (None, None)), seed, scale, dropout)


def attend_projections(projections: Sequence[Tensor], ranges: KeyRanges, scale: float, dropout: float = 0.0) -> Tensor:
    """Compute `attend_key_ranges` for fused projections, with gradients in the same layout.

    They are q, k and v in one tensor, (B, T, 3, H, D); or q, (B, T, 1, H, D), and k and v, (B, S, 2, H, D).
    """
    seed = draw_seed(projections[0].device) if dropout else None
    return _ATTEND_PROJECTIONS[len(projections)](*projections, *ranges, None, None, seed, scale, dropout)


def split_projections(projections: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return q, k and v as views of their projections, (B, H, T, D) each."""
    return tuple(part.transpose(1, 2) for projection in projections for part in projection.unbind(2))


# Launching


class _Arguments(NamedTuple):
    """The arguments of the operators after q, k and v; see `SCHEMA`."""

    first_key: Tensor
    end_key: Tensor
    first_query: Tensor | None
    end_query: Tensor | None
    programs: Tensor | None
    query_order: Tensor | None
    key_order: Tensor | None
    seed: Tensor | None
    scale: float
    dropout: float


SCHEMA = (
    "Tensor first_key, Tensor end_key, Tensor? first_query, Tensor? end_query, Tensor? programs, "
    "Tensor? query_order, Tensor? key_order, Tensor? seed, float scale, float dropout"
)


def _plan(q: Tensor) -> Plan:
    plan = PLANS[q.shape[-1]]
    return plan.halved() if q.dtype == torch.float32 else plan


def _grid(x: Tensor, tile: int) -> tuple[int, int]:
    B, H, tokens, _ = x.shape
    return B * H, max(1, -(-tokens // tile))  # heads first, because those of a token are adjacent


def _numbers(q: Tensor, k: Tensor, a: _Arguments) -> tuple[int, int, int, float, int, float]:
    return q.shape[2], k.shape[2], q.shape[1], a.scale, drop_threshold(a.dropout), 1 / (1 - a.dropout)


def _options(q: Tensor, a: _Arguments, tiles: Tiles) -> dict[str, Any]:
    return {
        "D": q.shape[-1],
        "M": tiles.queries,
        "N": tiles.keys,
        "DROPOUT": a.dropout > 0,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "maxnreg": tiles.max_registers,
    }


def _forward(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    from regard.ops.triton import varlen_attention as kernels

    a = _Arguments(*arguments)
    (q, q_t), (k, k_t), (v, v_t) = token_major(q), token_major(k), token_major(v)
    context, lse = _allocate_outputs(q)
    tiles = _plan(q).forward
    kernels.varlen_forward[_grid(q, tiles.queries)](
        q, k, v, context, lse, a.first_key, a.end_key, a.query_order, a.key_order, a.seed,
        q_t, k_t, v_t, _row_stride(a.first_key), *_numbers(q, k, a),
        ORDERED=a.query_order is not None, **_options(q, a, tiles),
    )  # fmt: skip
    return context, lse


def _allocate_outputs(q: Tensor, *others: object) -> tuple[Tensor, ...]:
    B, H, T, D = q.shape
    return q.new_empty(B, T, H, D).transpose(1, 2), q.new_empty(B, H, T, dtype=torch.float32)


def _compute_gradients(
    grads: list[Tensor], grad: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Tensor, lse: Tensor, *arguments: Any
) -> list[Tensor]:
    """Fill `grads`, which have the layout of projections, with the gradients of q, k and v; return them."""
    from regard.ops.triton import varlen_attention as kernels

    a = _Arguments(*arguments)
    numbers, ordered = _numbers(q, k, a), a.query_order is not None
    (q, q_t), (k, k_t), (v, v_t) = token_major(q), token_major(k), token_major(v)
    context, grad = contiguous_token_major(context), contiguous_token_major(grad)
    dq, dk, _ = split_projections(grads)  # the gradient of the values follows that of the keys
    dq_t, dkv_t = dq.stride(2), dk.stride(2)
    plan = _plan(q)
    if plan.backward_sequences is not None and a.programs is not None:
        kernels.varlen_backward_sequences[q.shape[0] * q.shape[1], len(a.programs)](
            q, k, v, context, grad, lse, dq, dk, a.first_key, a.end_key, a.first_query, a.end_query, a.programs, a.seed,
            q_t, k_t, v_t, dq_t, dkv_t, *numbers, **_options(q, a, plan.backward_sequences),
        )  # fmt: skip
        return grads
    assert a.first_query is not None
    delta = torch.empty_like(lse)
    kernels.varlen_backward_queries[_grid(q, plan.backward_queries.queries)](
        q, k, v, context, grad, lse, delta, dq, a.first_key, a.end_key, a.query_order, a.key_order, a.seed,
        q_t, k_t, v_t, dq_t, _row_stride(a.first_key), *numbers,
        ORDERED=ordered, **_options(q, a, plan.backward_queries),
    )  # fmt: skip
    kernels.varlen_backward_keys[_grid(k, plan.backward_keys.keys)](
        q, k, v, grad, lse, delta, dk, a.first_query, a.end_query, a.query_order, a.key_order, a.seed,
        q_t, k_t, v_t, dkv_t, _row_stride(a.first_query), *numbers,
        ORDERED=ordered, **_options(q, a, plan.backward_keys),
    )  # fmt: skip
    return grads


def _row_stride(ranges: Tensor) -> int:
    return 0 if ranges.shape[0] == 1 else ranges.stride(0)


def _make_op(name: str, inputs: tuple[str, ...]) -> AttentionOp:
    """Build the operator for separate q, k and v, or for fused projections, [qkv] or [q, kv].

    The arguments of every function start with the inputs. Gradients are computed as fused projections, which `split`
    divides into those of q, k and v.
    """
    n = len(inputs)
    separate = n == 3

    def as_qkv(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors) if separate else split_projections(tensors)

    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return _forward(*as_qkv(arguments[:n]), *arguments[n:])

    def backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
        grads = allocate_gradients(grad, *arguments)  # allocated here, filled by the kernels
        return _compute_gradients(grads, grad, *as_qkv(arguments[:n]), *arguments[n:])

    def allocate_gradients(grad: Tensor, *arguments: Any) -> list[Tensor]:
        if not separate:
            return [projection.new_empty(projection.shape) for projection in arguments[:n]]
        (B, H, T, D), S = arguments[0].shape, arguments[1].shape[-2]
        # If T == S, a joint gradient of q, k and v, (B, T, 3, H, D); otherwise one of q, and one of k and v.
        shapes = [(B, T, 3, H, D)] if T == S else [(B, T, 1, H, D), (B, S, 2, H, D)]
        return [grad.new_empty(shape) for shape in shapes]

    return AttentionOp(
        name,
        SCHEMA,
        outputs=2,  # the context, and the log-sum-exp of the scores of each query
        forward=forward,
        backward=backward,
        allocate_outputs=lambda *arguments: _allocate_outputs(*as_qkv(arguments[:n])),
        allocate_gradients=allocate_gradients,
        split=split_projections if separate else list,
        inputs=inputs,
    )


_attend = _make_op("attend_key_ranges", ("q", "k", "v"))
_ATTEND_PROJECTIONS = {
    1: _make_op("attend_projection_qkv", ("qkv",)),
    2: _make_op("attend_projections_q_kv", ("q", "kv")),
}
