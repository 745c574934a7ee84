"""Output layer, cross-entropies of two forward passes and the divergence of their predictions in one op.

As in `regard.ops.cross_entropy`, the logits of some rows are computed, converted to their gradient in place, multiplied
back and discarded. The loss of a row with the predictions p of the first pass and q of the second is

    (1 - s) · CE(p) + s · CE(q) + w · ((1 - s) · KL(p ‖ q) + s · KL(q ‖ p))

with the share s of the second pass. R-Drop has s = 1/2, SimCut s = 0. Gradients flow through both passes.

Shapes: N rows of each pass, W width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.cross_entropy import (
    IGNORE_INDEX,
    WARPS,
    accumulate_,
    accumulate_matmul_,
    chunk_rows,
    empty_gradients,
    keep_gradients,
    multiply_gradients,
)
from regard.ops.dispatch import kernels_apply, matmul_dtype, on_device

TILE = 4096
"""Logits of each pass that a program of the kernel processes at once."""


def linear_consistency_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    divergence_weight: Tensor | float,
    share: float,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of the logits x @ weightᵀ + bias, and both of its terms without gradient, in float32 or better.

    All three are sums over the labels; those of IGNORE_INDEX are ignored.

    Args:
        x: Inputs of the output layer, those of the second pass after those of the first, (2N, W).
        weight: Weight of the output layer, (V, W).
        bias: Bias of the output layer, (V,).
        labels: Labels of either pass, (N,).
        divergence_weight: Weight of the divergence, w; a captured CUDA graph reads the current value of a tensor ().
        share: Share of the second pass, s.
        smoothing: Label smoothing.

    Returns:
        The loss, the cross-entropy and the divergence.
    """
    backward = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    dtype = matmul_dtype(x)
    options: dict[str, Any] = {"dtype": torch.promote_types(dtype, torch.float32), "device": x.device}
    if isinstance(divergence_weight, Tensor):
        divergence_weight = divergence_weight.to(**options)
    else:  # filled on the device, as a CUDA graph cannot capture a copy from the host
        divergence_weight = torch.full((), divergence_weight, **options)
    loss, terms, *_ = _linear_consistency_loss(
        x.contiguous(), weight, bias, labels, divergence_weight, share, smoothing, dtype, backward
    )
    cross_entropy, divergence = terms.detach()
    return loss, cross_entropy, divergence


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    divergence_weight: Tensor,
    share: float,
    smoothing: float,
    dtype: torch.dtype,
    backward: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, its two terms, and the gradients of x, weight and bias; empty tensors without `backward`."""
    dx, dweight, dbias = empty_gradients(x, weight, bias, dtype, backward)
    sum_dtype = dweight.dtype
    if not len(x):
        dweight.zero_()
        dbias.zero_()
    terms = [x.new_empty(2, 0, dtype=sum_dtype)]
    pairs, rows = x.view(2, len(labels), x.shape[1]), chunk_rows(len(labels), 2 * len(weight))
    with torch.autocast(x.device.type, enabled=False):
        weight, rounded_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        for first in range(0, len(labels), rows):
            chunk = slice(first, first + rows)
            x_chunk = pairs[:, chunk].to(dtype).flatten(0, 1)
            logits = F.linear(x_chunk, weight, rounded_bias)
            passes = logits.view(2, -1, len(weight))
            terms.append(consistency_(passes, labels[chunk], divergence_weight, share, smoothing, backward))
            if backward:
                dx.view_as(pairs)[:, chunk] = (logits @ weight).view(2, -1, x.shape[1])
                accumulate_matmul_(dweight, logits.t(), x_chunk, first=first == 0)
                if bias is not None:
                    accumulate_(dbias, logits.sum(0, dtype=sum_dtype), first=first == 0)
    sums = torch.cat(terms, 1).sum(1)
    return sums[0] + divergence_weight * sums[1], sums, dx, dweight, dbias


# Losses of logits


def consistency_(
    logits: Tensor, labels: Tensor, divergence_weight: Tensor, share: float, smoothing: float, backward: bool = True
) -> Tensor:
    """Return cross-entropy and divergence of each row, (2, N), given the logits of both passes, (2, N, V).

    With `backward`, replace the logits by the gradient of the sum of the losses.
    """
    if kernels_apply(logits):
        return consistency_kernel_(logits, labels, divergence_weight, share, smoothing, backward)
    counted, label = labels != IGNORE_INDEX, labels.clamp(min=0)[:, None]
    log_p, log_q = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    target = torch.full_like(log_p, smoothing / logits.shape[-1])
    target.scatter_add_(1, label, target.new_full((1, 1), 1 - smoothing).expand_as(label))
    cross_entropy = -(target * ((1 - share) * log_p + share * log_q)).sum(-1)
    p, q, ratio = log_p.exp(), log_q.exp(), log_p - log_q
    p_from_q, q_from_p = (p * ratio).sum(-1, keepdim=True), (q * -ratio).sum(-1, keepdim=True)
    divergence = ((1 - share) * p_from_q + share * q_from_p)[:, 0]
    if backward:
        dp = (1 - share) * p * (ratio - p_from_q) + share * (p - q)
        dq = share * q * (-ratio - q_from_p) + (1 - share) * (q - p)
        gradients = (
            (1 - share) * (p - target) + divergence_weight * dp,
            share * (q - target) + divergence_weight * dq,
        )
        logits.copy_(torch.where(counted[:, None], torch.stack(gradients), 0.0))
    return torch.where(counted, torch.stack((cross_entropy, divergence)), 0.0)


def consistency_kernel_(
    logits: Tensor, labels: Tensor, divergence_weight: Tensor, share: float, smoothing: float, backward: bool = True
) -> Tensor:
    """Compute `consistency_` of contiguous logits, (2, N, V), with one Triton kernel; return its losses, (2, N)."""
    from regard.ops.triton import consistency_loss as kernels

    assert logits.is_contiguous()
    _, N, V = logits.shape
    terms = torch.empty(2, N, dtype=torch.float32, device=logits.device)
    power_of_2 = 1 << (V - 1).bit_length()  # the smallest one that is not below V
    with on_device(logits):
        kernels.consistency[(N,)](
            logits, labels, divergence_weight, terms, N, V, share, smoothing,
            BACKWARD=backward, BLOCK=min(TILE, max(16, power_of_2)), num_warps=WARPS,
        )  # fmt: skip
    return terms


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    divergence_weight: Tensor,
    share: float,
    smoothing: float,
    dtype: torch.dtype,
    backward: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return empty tensors with the shapes and dtypes of the results of `_forward`, for torch.compile."""
    terms = x.new_empty(2, dtype=torch.promote_types(dtype, torch.float32))
    return terms.new_empty(()), terms, *empty_gradients(x, weight, bias, dtype, backward)


_linear_consistency_loss = torch.library.custom_op(
    "regard::linear_consistency_loss",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor labels, Tensor divergence_weight, float share, "
    "float smoothing, ScalarType dtype, bool backward) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_linear_consistency_loss.register_fake(_fake)
_linear_consistency_loss.register_autograd(multiply_gradients, setup_context=keep_gradients)
