"""Rotary embeddings in training: one kernel splits a projection into q, k and v and rotates q and k.

The reference is `Rotary` and `Rotary2D`, which compute the angles in every layer and read q and k a dozen times. The
kernel reads each number once, and its backward pass writes the gradients of q, k and v into one tensor.

Shapes: B batch, T tokens, H heads, D head width, W = H · D.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device

PAIRS, WARPS = 512, 4
"""Pairs of features that a program rotates at once (at least those of a head), and its warps."""


def rotate_qkv(qkv: Tensor, positions: Tensor, frequency: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return rotated queries and keys, and values, (B, H, T, D) each.

    Args:
        qkv: Fused projection, (B, T, 3 · W).
        positions: (B, T) or (1, T); on a grid (B, T, 2) or (1, T, 2).
        frequency: Angle per position of each pair of features; on a grid, of each axis.
        heads: Number of heads, H.
    """
    q, k, v = _RotateQKV.apply(qkv, positions, frequency, heads)  # type: ignore[no-untyped-call]
    return q, k, v


class _RotateQKV(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, positions: Tensor, frequency: Tensor, heads: int) -> tuple[Tensor, ...]:
        q, k, v = _split(qkv.contiguous(), 3, heads)
        rotated = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3 * 2)
        positions, frequency = positions.contiguous(), frequency.contiguous()
        _launch((q, k, v), rotated, positions, frequency, 1.0, parts=2)
        ctx.save_for_backward(positions, frequency)
        ctx.shape = qkv.shape
        return *_split(rotated, 2, heads), v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dq, dk, dv = (grad if grad.stride(-1) == 1 else grad.contiguous() for grad in grads)
        dqkv = dq.new_empty(ctx.shape)
        positions, frequency = ctx.saved_tensors
        _launch((dq, dk, dv), dqkv, positions, frequency, -1.0, parts=3)
        return dqkv, None, None, None


def _split(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts · W) to `parts` views (B, H, T, D)."""
    B, T, _ = x.shape
    return x.view(B, T, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind()


def _launch(
    inputs: tuple[Tensor, Tensor, Tensor], output: Tensor, positions: Tensor, frequency: Tensor, sign: float, parts: int
) -> None:
    """Rotate the first two inputs into the output, (B, T, parts · W), and copy the third if there are three parts."""
    from regard.ops.triton import rotary as kernels

    B, H, T, D = inputs[0].shape
    padded_pairs = 1 << (D // 2 - 1).bit_length()
    rows = max(1, PAIRS // padded_pairs)
    strides = [stride for x in inputs for stride in x.stride()[:3]]
    axes = positions.shape[2] if positions.dim() == 3 else 1
    positions_b = positions[0].numel() if len(positions) > 1 else 0
    with on_device(output):
        kernels.rotate[(-(-B * T // rows), parts)](
            *inputs, output, positions, frequency, *strides, B * T, T, positions_b, sign,
            H=H, D=D, AXES=axes, PARTS=parts, R=rows, P=padded_pairs, num_warps=WARPS,
        )  # fmt: skip
