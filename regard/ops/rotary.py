"""Rotary positions in training: queries and keys are cut out and turned in one pass, and so are their gradients.

The formula, `Rotary` and `Rotary2D`, makes the angles anew in every layer and passes over halves of q and k a dozen
times; on the way back the gradients of q, k and v are joined in two more. Here a kernel reads each number once.

Shapes: B batch, T tokens, H heads, D head width; W = H · D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device

PAIRS, WARPS = 512, 4
"""Pairs of features that a program turns at once, at the least those of a head, and its threads, in groups of 32."""


def rotate_qkv(together: Tensor, positions: Tensor, frequency: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Queries and keys, turned, and values, (B, H, T, D) each.

    Args:
        together: the projections of all three, (B, T, 3W).
        positions: (B, T), or (B, T, 2) for a grid; B may be 1 there.
        frequency: by which the angle of each pair of features grows with the position; for a grid in either direction.
        heads: how many share the width W.
    """
    q, k, v = _Turn.apply(together, positions, frequency, heads)  # type: ignore[no-untyped-call]
    return q, k, v


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, together: Tensor, positions: Tensor, frequency: Tensor, heads: int) -> tuple[Tensor, ...]:
        q, k, v = _parts(together.contiguous(), 3, heads)
        turned = together.new_empty(*together.shape[:2], together.shape[2] // 3 * 2)
        positions, frequency = positions.contiguous(), frequency.contiguous()
        _launch((q, k, v), turned, positions, frequency, 1.0, parts=2)
        ctx.save_for_backward(positions, frequency)
        ctx.shape = together.shape
        return *_parts(turned, 2, heads), v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = (grad if grad.stride(-1) == 1 else grad.contiguous() for grad in grads)
        dtogether = q.new_empty(ctx.shape)
        positions, frequency = ctx.saved_tensors
        _launch((q, k, v), dtogether, positions, frequency, -1.0, parts=3)
        return dtogether, None, None, None


def _parts(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts · W) as so many views (B, H, T, D)."""
    B, T, _ = x.shape
    return x.view(B, T, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind()


def _launch(
    given: tuple[Tensor, Tensor, Tensor],
    made: Tensor,
    positions: Tensor,
    frequency: Tensor,
    sign: float,
    parts: int,
) -> None:
    """Turns the first two of what is given into what is made, (B, T, parts · W), and copies the third there."""
    from regard.ops.triton import rotary as kernels

    B, H, T, D = given[0].shape
    across = 1 << (D // 2 - 1).bit_length()
    rows = max(1, PAIRS // across)
    strides = [stride for x in given for stride in x.stride()[:3]]
    with on_device(made):
        kernels.turn[(-(-B * T // rows), parts)](
            *given, made, positions, frequency, *strides, B * T, T, positions[0].numel() if len(positions) > 1 else 0,
            sign, H=H, D=D, AXES=positions.shape[2] if positions.dim() == 3 else 1, PARTS=parts, R=rows, P=across,
            num_warps=WARPS,
        )  # fmt: skip
