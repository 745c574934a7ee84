"""The last step of a model and its loss in one: logits, label-smoothed cross-entropy and gradient, some rows at a time.

For a vocabulary of tens of thousands the logits are the largest tensor of all. Here those of a chunk of rows are made
in the precision of the products, turned into their own gradient in place, multiplied back and forgotten; only what is
as large as the vectors or the weight remains. The gradients are ready when the loss is, and wait for it to be asked.

Shapes: N rows, W width, V vocabulary.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.dispatch import kernels_apply

IGNORE_INDEX = -100
"""The label of a row that no loss is asked of."""
CHUNK = 2**28
"""Logits at once, about: half a gigabyte in half precision, and rows enough for products at full speed."""
TILE, WARPS = 8192, 8
"""Words of a row that the kernel looks at together, and the threads that do, in groups of 32."""
HELD = 32_768
"""Rows of so many words at the most, in half precision, are held in registers and read once; 0: all are read twice."""
HELD_BY_WARP, HELD_WARPS = 2048, 16
"""Words of a row for each group of 32 threads, and how many of these there are on a multiprocessor."""
REGISTERS = 2**16
"""Of a multiprocessor."""
_NOTHING = {torch.bfloat16: 0xFF80FF80 - 2**32, torch.float16: 0xFC00FC00 - 2**32}
"""Two logits of -∞, as one number of int32."""
ADDS_PRECISELY = True
"""Whether the weight's gradient is added up in single precision by the product itself, where that can do it."""
PIECE = 4096
"""Numbers of a gradient that a program multiplies."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The summed cross-entropy of x · weightᵀ + bias against the labels, in single precision or better.

    Args:
        x: vectors, (N, W).
        weight: a row for every word, (V, W).
        bias: of the words, (V,).
        labels: the right word of each row, (N,); rows labelled IGNORE_INDEX count for nothing.
        smoothing: the share of the label that is spread evenly over all words.
    """
    half = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if half else x.dtype
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    loss: Tensor = _head(x, weight, bias, labels, smoothing, dtype, learns)[0]
    return loss


def reference_loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """What `linear_cross_entropy` means, with all logits at once."""
    logits = F.linear(x, weight, bias)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, labels, ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="sum")


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    dtype: torch.dtype,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and, where something learns, the gradients of x, weight and bias; of what does not, nothing."""
    precise = torch.promote_types(dtype, torch.float32)
    losses = [x.new_empty(0, dtype=precise)]
    dx, dw, db = _like_gradients(x, weight, bias, dtype, learns)
    if not len(x):
        dw.zero_()
        db.zero_()
    rows = chunk_rows(len(x), len(weight))
    with torch.autocast(x.device.type, enabled=False):
        words, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
        for begin in range(0, len(x), rows):
            part = slice(begin, begin + rows)
            vectors = x[part].to(dtype)
            logits = F.linear(vectors, words, offset)
            losses.append(turn_into_gradient(logits, labels[part], smoothing, learns))
            if learns:
                torch.mm(logits, words, out=dx[part])
                add_product(dw, logits.t(), vectors, first=begin == 0)
                if bias is not None:
                    _accumulate(db, logits.sum(0, dtype=precise), first=begin == 0)
    return torch.cat(losses).sum(), dx, dw, db


def chunk_rows(rows: int, words: int) -> int:
    """How many rows of logits are made at once: all chunks are about equal, and whole tiles of a product."""
    chunks = max(1, round(rows * words / CHUNK))
    return 128 * max(1, -(-rows // (128 * chunks)))


def add_product(total: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """Adds a · b to a total in single precision or better; what comes first is all of it."""
    if not (ADDS_PRECISELY and a.is_cuda and a.dtype != total.dtype and _can_add(a.dtype, a.device)):
        _accumulate(total, a @ b, first)
    elif first:
        torch.mm(a, b, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


@cache
def _can_add(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this PyTorch multiplies in half precision and adds to single: it is asked, since its versions differ."""
    a, total = torch.zeros(16, 16, dtype=dtype, device=device), torch.zeros(16, 16, device=device)
    try:
        torch.mm(a, a, out_dtype=total.dtype, out=total)
        torch.addmm(total, a, a, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return True


def _accumulate(total: Tensor, part: Tensor, first: bool) -> None:
    if first:
        total.copy_(part)
    else:
        total.add_(part)


def turn_into_gradient(logits: Tensor, labels: Tensor, smoothing: float, learns: bool = True) -> Tensor:
    """The loss of each row; where something learns, the logits become the gradient of the losses' sum, in place."""
    if kernels_apply(logits):
        return turn_with_kernel(logits, labels, smoothing, learns)
    precise = torch.promote_types(logits.dtype, torch.float32)
    odds = logits.to(precise).log_softmax(-1)
    counts = labels != IGNORE_INDEX
    right = labels.clamp(min=0)[:, None]
    said = odds.gather(1, right)[:, 0]
    losses = -(1 - smoothing) * said - (smoothing * odds.mean(-1) if smoothing else 0.0)
    if learns:
        gradient = odds.exp_()
        if smoothing:
            gradient -= smoothing / logits.shape[-1]
        gradient.scatter_add_(1, right, gradient.new_full((1, 1), smoothing - 1).expand_as(right))
        logits.copy_(gradient.mul_(counts[:, None]))
    return torch.where(counts, losses, 0.0)


def turn_with_kernel(logits: Tensor, labels: Tensor, smoothing: float, learns: bool = True) -> Tensor:
    """`turn_into_gradient` in one launch."""
    return (turn_held_rows if _holds(logits) else turn_rows)(logits, labels, smoothing, learns)


def _holds(logits: Tensor) -> bool:
    size, pairs = logits.shape[-1], logits.stride(0) % 2 == 0 and logits.data_ptr() % 4 == 0
    return logits.dtype in _NOTHING and pairs and size % 2 == 0 and size <= HELD


def turn_held_rows(logits: Tensor, labels: Tensor, smoothing: float, learns: bool = True) -> Tensor:
    """`turn_with_kernel` by programs that go from row to row and hold each in registers: it is read once."""
    from regard.ops.dispatch import multiprocessors, on_device
    from regard.ops.triton import cross_entropy as head_triton

    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    size = logits.shape[-1]
    block = max(16, 1 << (size - 1).bit_length())
    warps = max(1, block // HELD_BY_WARP)
    programs = min(len(logits), max(1, HELD_WARPS // warps) * multiprocessors(logits.device))
    with on_device(logits):
        head_triton.turn_held_rows[(programs,)](
            logits.view(torch.int32), logits, labels, losses, len(logits), logits.stride(0) // 2, size // 2, size,
            smoothing, LEARNS=learns, BLOCK=block, NOTHING=_NOTHING[logits.dtype],
            num_warps=warps, maxnreg=REGISTERS // (32 * HELD_WARPS),
        )  # fmt: skip
    return losses


def turn_rows(logits: Tensor, labels: Tensor, smoothing: float, learns: bool = True) -> Tensor:
    """`turn_with_kernel` by a program for each row, which reads it twice and writes it once."""
    from regard.ops.dispatch import on_device
    from regard.ops.triton import cross_entropy as head_triton

    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    size = logits.shape[-1]
    with on_device(logits):
        head_triton.turn_into_gradient[(len(logits),)](
            logits, labels, losses, logits.stride(0), size, smoothing,
            LEARNS=learns, BLOCK=min(TILE, max(16, 1 << (size - 1).bit_length())), num_warps=WARPS,
        )  # fmt: skip
    return losses


def _like_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    precise = torch.promote_types(dtype, torch.float32)
    if not learns:
        return x.new_empty(0, dtype=dtype), x.new_empty(0, dtype=precise), x.new_empty(0, dtype=precise)
    words = 0 if bias is None else len(bias)
    return (
        torch.empty_like(x, dtype=dtype),
        x.new_empty(weight.shape, dtype=precise),
        x.new_empty(words, dtype=precise),
    )


def _like_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    dtype: torch.dtype,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    precise = torch.promote_types(dtype, torch.float32)
    return x.new_empty((), dtype=precise), *_like_gradients(x, weight, bias, dtype, learns)


_head = torch.library.custom_op(
    "regard::linear_cross_entropy",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor labels, float smoothing, ScalarType dtype, bool learns) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
_head.register_fake(_like_forward)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    ctx.set_materialize_grads(False)  # as large as the gradients that wait are zeros for them, of which nobody asks
    ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grad: Tensor | None, *others: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    of_x, of_weight, of_bias = ctx.dtypes
    dx, dw, db = ctx.saved_tensors
    return (
        _times(dx, grad, of_x),
        _times(dw, grad, of_weight),
        None if of_bias is None else _times(db, grad, of_bias),
        *(None,) * 4,
    )


_head.register_autograd(_differentiate, setup_context=_remember)


def multiply(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """x times one number of the device, which is not rounded before, in this precision."""
    if kernels_apply(x) and dtype != torch.float64:
        return multiply_with_kernel(x, factor, dtype)
    return (x.to(torch.promote_types(x.dtype, factor.dtype)) * factor).to(dtype)


def multiply_with_kernel(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """`multiply` as fast as memory is, in which x lies without gaps."""
    from regard.ops.dispatch import on_device
    from regard.ops.triton import cross_entropy as head_triton

    y = torch.empty_like(x, dtype=dtype)
    if x.numel():
        with on_device(x):
            head_triton.multiply[(-(-x.numel() // PIECE),)](x, factor, y, x.numel(), SIZE=PIECE, num_warps=WARPS)
    return y


_times = torch.library.custom_op(
    "regard::multiply", multiply, mutates_args=(), schema="(Tensor x, Tensor factor, ScalarType dtype) -> Tensor"
)
_times.register_fake(lambda x, factor, dtype: torch.empty_like(x, dtype=dtype))
