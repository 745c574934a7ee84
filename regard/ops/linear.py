"""Linear layers, alone and with an activation.

Two implementations replace `F.linear` where they apply: `MixedPrecisionLinear` for training on a GPU under autocast,
which does not round the gradients of weights to half precision; and weights prepacked by `regard.ops.quantization` for
inference on a CPU.

Shapes: N rows, I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.linear_backward import Activation, activation_backward, sum_columns
from regard.ops.quantization import PrepackedWeights

WeightAndBias = tuple[Tensor, Tensor | None]


class Linear(nn.Linear):
    """`nn.Linear` with optional copies of its parameters that speed up training or inference.

    Attributes:
        half_copy: Weight and bias in half precision. `HalfWeights` sets it during a training step.
        prepacked: Weights prepacked for inference on a CPU. `prepack` sets it.
    """

    half_copy: WeightAndBias | None = None
    prepacked: PrepackedWeights | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.half_copy, self.prepacked)

    def split(self, sizes: Sequence[int]) -> list[LinearSlice]:
        """Return layers for consecutive groups of output features. All share the parameters of this layer."""
        groups = zip(_split((self.weight, self.bias), sizes), _split(self.half_copy, sizes), strict=True)
        return [LinearSlice(weight, bias, half, self.prepacked) for (weight, bias), half in groups]  # type: ignore[misc]

    def extra_repr(self) -> str:
        prepacked = "" if self.prepacked is None else f", prepacked={self.prepacked.precision}"
        return super().extra_repr() + prepacked


class LinearSlice(NamedTuple):
    """Some output features of a `Linear`, which it is called like."""

    weight: Tensor
    bias: Tensor | None
    half_copy: WeightAndBias | None
    prepacked: PrepackedWeights | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, *self)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    half_copy: WeightAndBias | None = None,
    prepacked: PrepackedWeights | None = None,
) -> Tensor:
    """Return x @ weightᵀ + bias.

    Args:
        x: Input, (..., I).
        weight: Weight, (O, I).
        bias: Bias, (O,).
        half_copy: Weight and bias in half precision; by default, they are rounded when needed.
        prepacked: Prepacked weights, used in inference.
    """
    if prepacked is not None and prepacked.applies(x, weight):
        return prepacked.linear(x, weight, bias)
    if dispatch.mixed_precision_training(x) and not torch.compiler.is_compiling():
        return mixed_precision_linear(x, weight, bias, half_copy)[0]
    return F.linear(x, weight, bias)


def linear_activation(x: Tensor, layer: Linear, activation: Literal["relu", "gelu", "silu"]) -> Tensor:
    """Return activation(layer(x)), (..., O)."""
    parameters = layer.weight, layer.bias, layer.half_copy
    if activation != "silu" and dispatch.mixed_precision_training(x):
        if not torch.compiler.is_compiling():
            return mixed_precision_linear(x, *parameters, activation)[0]
        if activation == "relu":
            return _compiled_linear_relu(x, layer.weight, layer.bias)
    y = linear(x, *parameters, layer.prepacked)
    if activation == "relu":
        return F.relu_(y)
    return F.gelu(y) if activation == "gelu" else F.silu(y)


class HalfWeights:
    """Half-precision copies of the parameters of all linear layers of a model, for training on a GPU under autocast.

    As a context manager, it rounds all parameters by one operation and sets `Linear.half_copy` for a forward pass.
    Rounding each weight where it is used would launch hundreds of small kernels.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: list[tuple[Linear, WeightAndBias]] = []
        self._parameters: list[Tensor] = []
        self._copies: list[Tensor] = []

    def __enter__(self) -> None:
        if not self._layers:
            self._allocate()
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._parameters)
        for layer, half in self._layers:
            layer.half_copy = half

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for layer, _ in self._layers:
            layer.half_copy = None

    def _allocate(self) -> None:
        for layer in self._model.modules():
            if isinstance(layer, Linear):
                parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
                dtype = torch.get_autocast_dtype(layer.weight.device.type)
                copies = [torch.empty_like(parameter, dtype=dtype).detach() for parameter in parameters]
                self._layers.append((layer, (copies[0], None if layer.bias is None else copies[1])))
                self._parameters += parameters
                self._copies += copies


# Training in mixed precision


def mixed_precision_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    half_copy: WeightAndBias | None,
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor]:
    """Return activation(x @ weightᵀ + bias), and x as rows, (N, I), passed on by `MixedPrecisionLinear`."""
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
    """Return the copy of a parameter if it has the dtype, else the rounded parameter."""
    if copy is not None and copy.dtype == dtype:
        return copy
    return None if parameter is None else parameter.to(dtype)


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


def _compiled_linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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


def _split(parameters: WeightAndBias | None, sizes: Sequence[int]) -> list[WeightAndBias] | list[None]:
    """Split weight and bias by output features; autograd joins the gradients of a split by one operation."""
    if parameters is None:
        return [None] * len(sizes)
    weight, bias = parameters
    biases = [None] * len(sizes) if bias is None else bias.split_with_sizes(list(sizes))
    return list(zip(weight.split_with_sizes(list(sizes)), biases, strict=True))
