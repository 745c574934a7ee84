"""Add & Norm in training: one kernel forward and one backward.

By themselves its parts move what flows from block to block a dozen times over; together it is read and written once,
but for the sum, which is kept for the way back. Of what is dropped only the seed is kept.

Shapes: N rows, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.kernels.operators import on_device
from regard.attention.kernels.short import chance_of

WIDEST = 4096
"""A row is held in registers."""
TILE, WARPS = 2048, 4
"""Numbers that a program looks at together, at the least a row, and its threads, in groups of 32."""
PROGRAMS = 4
"""For each multiprocessor of the device: as many sums of the weight's gradient are made, then added up."""


def add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: float) -> Tensor:
    """LayerNorm(x + dropout(added)), as precise as x; every call drops other numbers."""
    seed = torch.randint(2**31 - 1, (1,), device=x.device) if dropout else None
    rows = x.reshape(-1, x.shape[-1]), added.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling():  # which wants an operator; without it, that would cost the host more
        y: Tensor = _node(*rows, weight, bias, seed, eps, dropout)[0]
    else:
        y = _Eager.apply(*rows, weight, bias, seed, eps, dropout)  # type: ignore[no-untyped-call]
    return y.view(x.shape)


def kept(seed: Tensor, rows: int, width: int, dropout: float) -> Tensor:
    """What the kernels leave of (rows, width) numbers for this seed: the same arithmetic, for tests."""
    from regard.attention.kernels.short import dropped

    return ~dropped(seed, 1, rows, width, dropout)[0]


def _forward(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, eps: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the sum, and its mean and deviation, (2, N)."""
    from regard.norms import learning_triton as kernels

    x, added = x.contiguous(), added.contiguous()
    y, total, statistics = _like_forward(x)
    N = len(x)
    tile = _tile(x.shape[1])
    with on_device(x):
        kernels.add_norm[(-(-N // tile["R"]),)](
            x, added, weight, bias, seed, y, total, statistics, N, eps, chance_of(dropout), 1 / (1 - dropout),
            DROPS=dropout > 0, **tile,
        )  # fmt: skip
    return y, total, statistics


def _like_forward(x: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(2, len(x), dtype=torch.float32)


def _backward(
    grad: Tensor, total: Tensor, statistics: Tensor, weight: Tensor, seed: Tensor | None, dropout: float, half: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of what is added, and of weight and bias together, (2, W)."""
    from regard.norms import learning_triton as kernels

    grad = grad.contiguous()
    dx, dadded, _ = _like_backward(grad, total, statistics, weight, seed, dropout, half)
    N, W = total.shape
    tile = _tile(W)
    programs = max(1, min(-(-N // tile["R"]), PROGRAMS * _multiprocessors(total.device)))
    sums = total.new_empty(programs, 2, W, dtype=torch.float32)
    with on_device(total):
        kernels.add_norm_backward[(programs,)](
            grad, total, statistics, weight, seed, dx, dadded, sums, N, chance_of(dropout), 1 / (1 - dropout),
            DROPS=dropout > 0, **tile,
        )  # fmt: skip
    return dx, dadded, sums.sum(0)


def _like_backward(
    grad: Tensor, total: Tensor, statistics: Tensor, weight: Tensor, seed: Tensor | None, dropout: float, half: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.bfloat16 if half else total.dtype
    return torch.empty_like(total), torch.empty_like(total, dtype=dtype), total.new_empty(2, total.shape[1]).float()


def _tile(width: int) -> dict[str, int]:
    padded = max(16, 1 << (width - 1).bit_length())
    return {"W": width, "R": max(1, TILE // padded), "P": padded, "num_warps": WARPS if padded <= TILE else 2 * WARPS}


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# For autograd


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, added, weight, _, seed, _, dropout = inputs
    ctx.save_for_backward(*output[1:], weight, seed)
    ctx.dropout, ctx.dtype = dropout, added.dtype


def _gradients(ctx: Any, found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor | None, ...]:
    dx, dadded, together = found
    weight = ctx.saved_tensors[2]
    return dx, dadded.to(ctx.dtype), *together.to(weight.dtype).unbind(), None, None, None


def _arguments(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return grad, *ctx.saved_tensors, ctx.dropout, ctx.dtype == torch.bfloat16


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        outputs = _forward(*inputs)
        _remember(ctx, inputs, outputs)
        return outputs[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward(*_arguments(ctx, grad)))


_node = torch.library.custom_op(
    "regard::add_norm",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor added, Tensor weight, Tensor bias, Tensor? seed, float eps, float dropout) "
    "-> (Tensor, Tensor, Tensor)",
)
_node_back = torch.library.custom_op(
    "regard::add_norm_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor grad, Tensor total, Tensor statistics, Tensor weight, Tensor? seed, float dropout, bool half) "
    "-> (Tensor, Tensor, Tensor)",
)
_node.register_fake(_like_forward)
_node_back.register_fake(_like_backward)
_node.register_autograd(
    lambda ctx, grad, *others: _gradients(ctx, _node_back(*_arguments(ctx, grad))), setup_context=_remember
)
