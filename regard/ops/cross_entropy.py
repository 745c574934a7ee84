"""Output layer and label-smoothed cross-entropy in one op, which computes a chunk of logits at a time.

With a vocabulary of tens of thousands, the logits are the largest tensor of a model. The op computes the logits of some
rows, converts them to their gradient in place, multiplies that back, and discards it. The gradients are ready together
with the loss; the backward pass only multiplies them by the gradient of the loss.

Shapes: N rows, W width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.dispatch import kernels_apply, matmul_dtype, multiprocessors, on_device

IGNORE_INDEX = -100
"""Label of rows that do not contribute to the loss."""
CHUNK = 2**28
"""Approximate number of logits per chunk: half a gigabyte in half precision, and rows enough for fast matmuls."""
TILE, WARPS = 8192, 8
"""Logits that a program of the two-read kernel processes at once, and its warps."""
MAX_ONE_READ = 32_768
"""Longest row of the one-read kernel, which holds rows of half precision in registers."""
LOGITS_PER_WARP, WARPS_PER_MULTIPROCESSOR = 2048, 16
"""Work division of the one-read kernel."""
REGISTERS = 2**16
"""Registers of a multiprocessor."""
MULTIPLY_SIZE = 4096
"""Elements that a program of the multiply kernel processes."""
_MINUS_INFINITY = {torch.bfloat16: 0xFF80FF80 - 2**32, torch.float16: 0xFC00FC00 - 2**32}
"""Two logits of -∞ as an int32."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the sum of the cross-entropies of x @ weightᵀ + bias, (N, V), in float32 or better.

    Rows with the label IGNORE_INDEX are ignored.
    """
    backward = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    loss: Tensor = _linear_cross_entropy(x, weight, bias, labels, smoothing, matmul_dtype(x), backward)[0]
    return loss


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, dtype: torch.dtype, backward: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss and the gradients of x, weight and bias; empty tensors without `backward`."""
    sum_dtype = torch.promote_types(dtype, torch.float32)
    losses = [x.new_empty(0, dtype=sum_dtype)]
    dx, dweight, dbias = empty_gradients(x, weight, bias, dtype, backward)
    if not len(x):
        dweight.zero_()
        dbias.zero_()
    rows = chunk_rows(len(x), len(weight))
    with torch.autocast(x.device.type, enabled=False):
        weight, rounded_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        for first in range(0, len(x), rows):
            chunk = slice(first, first + rows)
            x_chunk = x[chunk].to(dtype)
            logits = F.linear(x_chunk, weight, rounded_bias)
            losses.append(cross_entropy_(logits, labels[chunk], smoothing, backward))
            if backward:
                torch.mm(logits, weight, out=dx[chunk])
                accumulate_matmul_(dweight, logits.t(), x_chunk, first=first == 0)
                if bias is not None:
                    accumulate_(dbias, logits.sum(0, dtype=sum_dtype), first=first == 0)
    return torch.cat(losses).sum(), dx, dweight, dbias


def chunk_rows(rows: int, vocabulary: int) -> int:
    """Return the rows per chunk: chunks are about equal, and multiples of a matmul's tile."""
    chunks = max(1, round(rows * vocabulary / CHUNK))
    return 128 * max(1, -(-rows // (128 * chunks)))


def accumulate_matmul_(total: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """Add a @ b to a total in float32 or better; the first product overwrites it."""
    if not a.is_cuda or a.dtype == total.dtype:
        accumulate_(total, a @ b, first)
    elif first:
        torch.mm(a, b, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


def accumulate_(total: Tensor, x: Tensor, first: bool) -> None:
    """Add x to a total; the first addend overwrites it."""
    if first:
        total.copy_(x)
    else:
        total.add_(x)


def empty_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return uninitialised gradients of x, weight and bias; empty tensors without `backward`."""
    sum_dtype = torch.promote_types(dtype, torch.float32)
    if not backward:
        return x.new_empty(0, dtype=dtype), x.new_empty(0, dtype=sum_dtype), x.new_empty(0, dtype=sum_dtype)
    dbias = x.new_empty(0 if bias is None else len(bias), dtype=sum_dtype)
    return torch.empty_like(x, dtype=dtype), x.new_empty(weight.shape, dtype=sum_dtype), dbias


# Losses of logits


def cross_entropy_(logits: Tensor, labels: Tensor, smoothing: float, backward: bool = True) -> Tensor:
    """Return the loss of each row, (N,). With `backward`, replace the logits, (N, V), by the gradient of the sum."""
    if kernels_apply(logits):
        return cross_entropy_kernel_(logits, labels, smoothing, backward)
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    counted = labels != IGNORE_INDEX
    label = labels.clamp(min=0)[:, None]
    losses = -(1 - smoothing) * log_probs.gather(1, label)[:, 0]
    if smoothing:
        losses = losses - smoothing * log_probs.mean(-1)
    if backward:
        gradient = log_probs.exp_()
        if smoothing:
            gradient -= smoothing / logits.shape[-1]
        gradient.scatter_add_(1, label, gradient.new_full((1, 1), smoothing - 1).expand_as(label))
        logits.copy_(gradient.mul_(counted[:, None]))
    return torch.where(counted, losses, 0.0)


def cross_entropy_kernel_(logits: Tensor, labels: Tensor, smoothing: float, backward: bool = True) -> Tensor:
    """`cross_entropy_` of contiguous logits by one kernel."""
    assert logits.is_contiguous()
    return (_one_read if _fits_registers(logits) else _two_reads)(logits, labels.contiguous(), smoothing, backward)


def _fits_registers(logits: Tensor) -> bool:
    """Return whether the one-read kernel applies, which reads two logits in half precision as one int32."""
    V = logits.shape[-1]
    return logits.dtype in _MINUS_INFINITY and V % 2 == 0 and V <= MAX_ONE_READ and logits.data_ptr() % 4 == 0


def _one_read(logits: Tensor, labels: Tensor, smoothing: float, backward: bool) -> Tensor:
    """`cross_entropy_kernel_` for rows that fit into registers; only as many programs start as run at once."""
    from regard.ops.triton import cross_entropy as kernels

    N, V = logits.shape
    losses = torch.empty(N, dtype=torch.float32, device=logits.device)
    block = max(16, 1 << (V - 1).bit_length())
    warps = max(1, block // LOGITS_PER_WARP)
    programs = min(N, max(1, WARPS_PER_MULTIPROCESSOR // warps) * multiprocessors(logits.device))
    with on_device(logits):
        kernels.cross_entropy_one_read[(programs,)](
            logits.view(torch.int32), logits, labels, losses, N, V // 2, V, smoothing,
            BACKWARD=backward, BLOCK=block, MINUS_INFINITY=_MINUS_INFINITY[logits.dtype],
            num_warps=warps, maxnreg=REGISTERS // (32 * WARPS_PER_MULTIPROCESSOR),
        )  # fmt: skip
    return losses


def _two_reads(logits: Tensor, labels: Tensor, smoothing: float, backward: bool) -> Tensor:
    """`cross_entropy_kernel_` for rows of any length, read once for the loss and once for the gradient."""
    from regard.ops.triton import cross_entropy as kernels

    N, V = logits.shape
    losses = torch.empty(N, dtype=torch.float32, device=logits.device)
    with on_device(logits):
        kernels.cross_entropy_two_reads[(N,)](
            logits, labels, losses, V, smoothing,
            BACKWARD=backward, BLOCK=min(TILE, max(16, 1 << (V - 1).bit_length())), num_warps=WARPS,
        )  # fmt: skip
    return losses


# Backward pass


def multiply(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x times a scalar tensor in a dtype. Unlike `torch.mul`, do not round the scalar to the dtype of x."""
    if not kernels_apply(x) or dtype == torch.float64:
        return (x.to(torch.promote_types(x.dtype, factor.dtype)) * factor).to(dtype)
    from regard.ops.triton import cross_entropy as kernels

    y, N = torch.empty_like(x, dtype=dtype), x.numel()
    with on_device(x):
        kernels.multiply[(-(-N // MULTIPLY_SIZE),)](x, factor, y, N, SIZE=MULTIPLY_SIZE, num_warps=WARPS)
    return y


_multiply = torch.library.custom_op(
    "regard::multiply", multiply, mutates_args=(), schema="(Tensor x, Tensor factor, ScalarType dtype) -> Tensor"
)
_multiply.register_fake(lambda x, factor, dtype: torch.empty_like(x, dtype=dtype))


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the last three outputs of an op for `multiply_gradients`: gradients of x, weight and bias."""
    x, weight, bias, *_ = inputs
    ctx.set_materialize_grads(False)  # otherwise the gradients of the gradients would be large tensors of zeros
    ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(*output[-3:])


def multiply_gradients(ctx: Any, grad: Tensor | None, *others: None) -> tuple[Tensor | None, ...]:
    """Return the saved gradients times that of the loss, the first output; the inputs after the bias have none."""
    inputs = len(ctx.needs_input_grad)
    if grad is None:
        return (None,) * inputs
    gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
    products = [None if dtype is None else _multiply(gradient, grad, dtype) for gradient, dtype in gradients]
    return *products, *(None,) * (inputs - len(products))


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, dtype: torch.dtype, backward: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = x.new_empty((), dtype=torch.promote_types(dtype, torch.float32))
    return loss, *empty_gradients(x, weight, bias, dtype, backward)


_linear_cross_entropy = torch.library.custom_op(
    "regard::linear_cross_entropy",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor labels, float smoothing, ScalarType dtype, bool backward) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
_linear_cross_entropy.register_fake(_fake)
_linear_cross_entropy.register_autograd(multiply_gradients, setup_context=keep_gradients)
