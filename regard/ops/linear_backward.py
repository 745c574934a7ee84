"""Linear layers in mixed-precision training, with a backward pass of their own.

The gradients of biases are column sums, fused with the backward pass of activations. Several programs sum the rows of a
column, then one program sums their results: always the same rows in the same order, so that sums are bit-identical
every time.

Shapes: M rows, K output features, N input features (the activated ones), P programs.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.dispatch import multiprocessors, on_device

Activation = Literal["relu", "gelu"]
ROWS, COLUMNS, WARPS = 32, 128, 4
"""Tile and warps of a program of the column-sum kernel."""
PROGRAMS = 8
"""Programs of the column-sum kernel per multiprocessor."""


class MatmulTile(NamedTuple):
    """Tile of the matmul with fused ReLU backward."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    programs: int  # per multiprocessor


MATMUL_TILE = MatmulTile(rows=128, columns=128, depth=64, stages=3, warps=4, programs=2)
"""The fastest on an H200 according to benchmarks/kernels.py: one program stores while another multiplies."""

WeightAndBias = tuple[Tensor, Tensor | None]


# Linear layers


def mixed_precision_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    half_copy: WeightAndBias | None,
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor]:
    """Return activation(x @ weightᵀ + bias), and x as rows, (M, N), passed on by `MixedPrecisionLinear`."""
    rows = x.to(dispatch.matmul_dtype(x)).reshape(-1, x.shape[-1])
    arguments = rows, weight, bias, *(half_copy or (None, None)), activation
    y, passed_on = MixedPrecisionLinear.apply(*arguments)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], len(weight)), passed_on


class MixedPrecisionLinear(torch.autograd.Function):
    """Linear layer and activation in half precision, whose parameters and their gradients stay in float32.

    Autocast would round the gradients of weights to half precision, and takes three times as long for those of biases.

    The second output is x itself. If another op reads this output in place of x, its gradient is passed to the backward
    pass here, which adds the gradient of the layer in the same matmul. This overwrites the gradient that is passed in,
    so only an op whose backward pass returns a newly allocated gradient may read the second output.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        half_weight: Tensor | None,
        half_bias: Tensor | None,
        activation: Activation | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rounded = round_to(weight, x.dtype, half_weight)
        y, saved = linear_and_saved(x, rounded, round_to(bias, x.dtype, half_bias), activation)
        ctx.save_for_backward(x, rounded, saved)
        ctx.activation, ctx.weight_dtype = activation, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, passed_on: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return passed_on, *(None,) * 5
        x, weight, saved = ctx.saved_tensors
        dx = dweight = dbias = None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.activation is not None:
                grad, dbias = activation_backward(grad, saved, ctx.activation)
            elif ctx.needs_input_grad[2]:
                dbias = sum_columns(grad)
            if ctx.needs_input_grad[0]:
                dx = add_matmul_(passed_on, grad, weight)
            if ctx.needs_input_grad[1]:
                dweight = matmul(grad.t(), x, ctx.weight_dtype)
        return dx, dweight, None if dbias is None or ctx.bias_dtype is None else dbias.to(ctx.bias_dtype), *(None,) * 3


def round_to(parameter: Tensor | None, dtype: torch.dtype, copy: Tensor | None) -> Any:
    """Return the copy of a parameter if it has the dtype, else the rounded parameter; None without a parameter."""
    if parameter is None:  # a layer can be applied without its bias although there is a copy of it
        return None
    return copy if copy is not None and copy.dtype == dtype else parameter.to(dtype)


def linear_and_saved(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
) -> tuple[Tensor, Tensor | None]:
    """Return activation(x @ weightᵀ + bias), and the tensor that the backward pass of the activation needs."""
    if activation == "relu" and bias is not None:
        y = torch._addmm_activation(bias, x, weight.t())
        return y, y
    y = F.linear(x, weight, bias)
    if activation == "relu":
        y = F.relu_(y)
        return y, y
    return (y, None) if activation is None else (F.gelu(y), y)


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b in a dtype; on a GPU, sums of half-precision products are not rounded before that."""
    if a.is_cuda and dtype == torch.float32 and a.dtype in dispatch.HALF_DTYPES:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def add_matmul_(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Add a @ b to a tensor in place; without a tensor, return a @ b."""
    return a @ b if total is None else total.addmm_(a, b)


# torch.compile would split `_addmm_activation` into its parts, so they are hidden in a custom op.


def compiled_linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x @ weightᵀ + bias), (..., K), inside torch.compile."""
    dtype = dispatch.matmul_dtype(x)
    y: Tensor = _linear_relu(x.to(dtype).flatten(0, -2), weight.to(dtype), bias.to(dtype))
    return y.view(*x.shape[:-1], len(weight))


def _linear_relu_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


def _linear_relu_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)


def _linear_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, y = ctx.saved_tensors
    with torch.autocast(x.device.type, enabled=False):
        grad = torch.where(y > 0, grad, 0)
        return grad @ weight, grad.t() @ x, grad.sum(0)


_linear_relu = torch.library.custom_op(
    "regard::linear_relu",
    _linear_relu_forward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor",
)
_linear_relu.register_fake(lambda x, weight, bias: x.new_empty(len(x), len(weight)))
_linear_relu.register_autograd(_linear_relu_backward, setup_context=_linear_relu_setup)


# Column sums and activations


def sum_columns(x: Tensor) -> Tensor:
    """Return the sum over all rows, (M, N) to (N,), in float32 or better."""
    return _sum_by_kernel(x.contiguous()) if dispatch.kernels_apply(x) else x.sum(0, dtype=_sum_dtype(x))


def activation_backward(grad: Tensor, saved: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Return the gradient of an activation's input, (M, N), and its column sums, (N,).

    `grad` is the gradient of the output, and `saved` the output of ReLU, or the input of GELU.
    """
    if dispatch.kernels_apply(grad, saved):
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        return out, _sum_by_kernel(grad, saved.contiguous(), out, activation)
    out = torch.where(saved > 0, grad, 0) if activation == "relu" else torch.ops.aten.gelu_backward(grad, saved)
    return out, out.sum(0, dtype=_sum_dtype(out))


def matmul_activation_backward(
    grad: Tensor, weight: Tensor, saved: Tensor, activation: Activation, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Differentiate y = (scale · activation(x)) @ weightᵀ with respect to x.

    For ReLU one kernel multiplies, applies the activation's derivative and sums the columns. For GELU, whose derivative
    takes more arithmetic, two kernels are faster.

    Args:
        grad: Gradient of y, (M, K).
        weight: Weight, (K, N).
        saved: Output of ReLU, or input of GELU, (M, N).
        activation: Name of the activation.
        scale: Factor on the activation. After ReLU, this includes dropout: dropped elements are zero in `saved`.

    Returns:
        The gradient of x, (M, N), and its column sums, (N,), in float32 or better.
    """
    columns = MATMUL_TILE.columns
    if activation == "relu" and dispatch.feed_forward_backward_kernel_applies(grad, weight, saved, columns):
        return matmul_relu_backward_kernel(grad, weight, saved, scale)
    product = grad @ weight if scale == 1 else torch.addmm(grad.new_zeros(1), grad, weight, beta=0, alpha=scale)
    return activation_backward(product, saved, activation)


def matmul_relu_backward_kernel(
    grad: Tensor, weight: Tensor, activated: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`matmul_activation_backward` for ReLU by one kernel, and another that sums the partial column sums."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

    from regard.ops.triton import linear_backward as kernels

    grad, weight, activated = grad.contiguous(), weight.contiguous(), activated.contiguous()
    (M, K), N, tile = grad.shape, weight.shape[1], MATMUL_TILE
    row_tiles = -(-M // tile.rows)
    out, partials = torch.empty_like(activated), grad.new_empty(row_tiles, N, dtype=torch.float32)
    programs = min(row_tiles * (N // tile.columns), tile.programs * multiprocessors(grad.device))
    with on_device(grad):
        kernels.matmul_relu_backward[(programs,)](
            TensorDescriptor.from_tensor(grad, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(weight, [tile.depth, tile.columns]),
            activated.view(torch.int32), out, partials, M,
            N=N, K=K, SCALE=scale, R=tile.rows, C=tile.columns, D=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, sum_partials(partials)


def sum_partials(partials: Tensor) -> Tensor:
    """Sum the rows of a small float32 tensor, (P, N) to (N,), by one kernel."""
    from regard.ops.triton import linear_backward as kernels

    P, N = partials.shape
    total = partials.new_empty(N)
    with on_device(partials):
        kernels.sum_partials[(-(-N // 16),)](partials, total, P, N, R=512, C=16, num_warps=8)
    return total


def _sum_by_kernel(
    grad: Tensor, saved: Tensor | None = None, out: Tensor | None = None, activation: Activation | None = None
) -> Tensor:
    from regard.ops.triton import linear_backward as kernels

    M, N = grad.shape
    rows = ROWS if saved is None else ROWS // 2  # with an activation a program holds two tensors in its registers
    column_tiles = -(-N // COLUMNS)
    programs = max(1, min(-(-M // rows), PROGRAMS * multiprocessors(grad.device) // column_tiles))
    partials = grad.new_empty(programs, N, dtype=torch.float32)
    with on_device(grad):
        kernels.sum_columns[(column_tiles, programs)](
            grad, saved, out, partials, M, N, ACTIVATION=activation or "", R=rows, C=COLUMNS, num_warps=WARPS
        )
    return sum_partials(partials)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
