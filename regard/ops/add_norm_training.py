"""Add & Norm in training: one kernel forward and one backward.

By themselves its parts move what flows from block to block a dozen times over; together it is read and written once,
but for the sum, which is kept for the way back, and which flows on where norms stand before sublayers. Of what is
dropped only the seed is kept. The bias of the product that made what is added can be left to it as well, and its
gradient comes with the others.

Shapes: N rows, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.column_sum import add_up
from regard.ops.dispatch import multiprocessors, on_device, tile_rows
from regard.ops.dropout import draw_seed, drop_threshold

WIDEST = 4096
"""A row is held in registers."""
TILE, WARPS = 1024, 2
"""Numbers that a program looks at together, at the least a row, and its threads, in groups of 32."""
PROGRAMS = 8
"""For each multiprocessor of the device: as many sums of the weight's gradient are made, then added up."""


def add_norm(
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dropout: float,
    added_bias: Tensor | None = None,
) -> Tensor:
    """LayerNorm(x + dropout(added + added_bias)), as precise as x; every call drops other numbers."""
    return sum_and_norm(x, added, weight, bias, eps, dropout, added_bias, x.dtype)[1]


def sum_and_norm(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dropout: float,
    added_bias: Tensor | None,
    dtype: torch.dtype,
    factors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x + dropout(added + added_bias), as precise as x, and its LayerNorm in another precision; or x itself and its.

    With factors, (B,), what is added to each of B equal shares of the rows is multiplied by one of them.
    """
    seed = draw_seed(x.device) if dropout else None
    W = x.shape[-1]
    rows = x.reshape(-1, W), None if added is None else added.reshape(-1, W)
    given = added_bias, weight, bias, seed, factors, eps, dropout, dtype
    total, y = _AddNorm.apply(*rows, *given)  # type: ignore[no-untyped-call]
    return total.view(x.shape), y.view(x.shape)


def kept(seed: Tensor, rows: int, width: int, dropout: float) -> Tensor:
    """What the kernels leave of (rows, width) numbers for this seed: the same arithmetic, for tests."""
    from regard.ops.dropout import kernel_drop_mask

    return ~kernel_drop_mask(seed, 1, rows, width, dropout)[0]


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        added_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        seed: Tensor | None,
        factors: Tensor | None,
        eps: float,
        dropout: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        from regard.ops.triton import add_norm as kernels

        ctx.set_materialize_grads(False)
        x, added = x.contiguous(), None if added is None else added.contiguous()
        N, W = x.shape
        y, total = torch.empty_like(x, dtype=dtype), x if added is None else torch.empty_like(x)
        statistics = x.new_empty(2, N, dtype=torch.float32)
        tile = _tile(W)
        with on_device(x):
            kernels.add_norm[(-(-N // tile["R"]),)](
                x, added, added_bias, weight, bias, seed, factors, y, total, statistics, N, _share(N, factors), eps,
                drop_threshold(dropout), 1 / (1 - dropout),
                ADDS=added is not None, BIASED=added_bias is not None, DROPS=dropout > 0, SCALES=factors is not None,
                **tile,
            )  # fmt: skip
        ctx.save_for_backward(total, statistics, weight, seed, factors)  # of the sum its mean and deviation, (2, N)
        ctx.dropout, ctx.of_added = dropout, None if added is None else added.dtype
        ctx.of_added_bias = None if added_bias is None else added_bias.dtype
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, passed: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        from regard.ops.triton import add_norm as kernels

        total, statistics, weight, seed, factors = ctx.saved_tensors
        dx, dadded = torch.empty_like(total), None
        if ctx.of_added is not None:
            dadded = torch.empty_like(total, dtype=ctx.of_added)
        grad = torch.zeros_like(total) if grad is None else grad.contiguous()
        passed = None if passed is None else passed.contiguous()
        N, W = total.shape
        tile = _tile(W)
        programs = max(1, min(-(-N // tile["R"]), PROGRAMS * multiprocessors(total.device)))
        sums = total.new_empty(programs, 2 if ctx.of_added_bias is None else 3, W, dtype=torch.float32)
        with on_device(total):
            kernels.add_norm_backward[(programs,)](
                grad, passed, total, statistics, weight, seed, factors, dx, dadded, sums, N, _share(N, factors),
                drop_threshold(ctx.dropout), 1 / (1 - ctx.dropout), PASSES=passed is not None, ADDS=dadded is not None,
                SUMS=sums.shape[1], DROPS=ctx.dropout > 0, SCALES=factors is not None, **tile,
            )  # fmt: skip
        dweight, dbias, *others = add_up(sums.flatten(1)).view(-1, W).unbind()
        of_bias = others[0].to(ctx.of_added_bias) if others else None
        return dx, dadded, of_bias, dweight.to(weight.dtype), dbias.to(weight.dtype), None, None, None, None, None


def _share(rows: int, factors: Tensor | None) -> int:
    return rows if factors is None else rows // len(factors)


def _tile(width: int) -> dict[str, int]:
    return tile_rows(width, TILE, WARPS)
