"""Products that learn, on a GPU, in half precision: what is kept of them, and their way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.column_sum import pass_gelu, pass_relu, sum_columns
from regard.ops.dropout import drop
from regard.ops.feed_forward_backward import Activation, pass_product
from regard.ops.half_weights import round_weight


class Product(torch.autograd.Function):
    """x · weightᵀ + bias, as precise as x, or an activation of it; gradients are as precise as the weights.

    PyTorch's own would round every gradient of a weight to half precision first, and takes three times as long for
    those of biases. Beside it x is given again, for whoever reads it next.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        half, offset = round_weight(weight, x.dtype), None if bias is None else round_weight(bias, x.dtype)
        y, seen = activate(x, half, offset, activation)
        ctx.save_for_backward(x, half, seen)
        ctx.activation, ctx.dtypes = activation, (weight.dtype, None if bias is None else bias.dtype)
        return y, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, passed: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return passed, None, None, None
        (x, half, seen), (of_weight, of_bias) = ctx.saved_tensors, ctx.dtypes
        dx = dweight = dbias = None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.activation is not None:
                grad, dbias = _WAYS_BACK[ctx.activation](grad, seen)
            elif ctx.needs_input_grad[2]:
                dbias = sum_columns(grad)
            if ctx.needs_input_grad[0]:
                dx = add_product(passed, grad, half)
            if ctx.needs_input_grad[1]:
                dweight = multiply_precisely(grad.t(), x, of_weight)
        return dx, dweight, None if dbias is None or of_bias is None else dbias.to(of_bias), None


class FeedForward(torch.autograd.Function):
    """Two products with an activation between them, and x again, as of `Product`.

    Together they need not write the gradient of what lies between them before it has passed the activation.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        inner: Tensor,
        inner_bias: Tensor,
        outer: Tensor,
        outer_bias: Tensor | None,
        activation: Activation,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        first, second = (round_weight(weight, x.dtype) for weight in (inner, outer))
        hidden, seen = activate(x, first, round_weight(inner_bias, x.dtype), activation)
        if dropout:
            hidden = seen = drop(hidden, dropout)
        y = F.linear(hidden, second, None if outer_bias is None else round_weight(outer_bias, x.dtype))
        ctx.save_for_backward(x, first, second, hidden, seen)
        ctx.activation, ctx.growth = activation, 1 / (1 - dropout)
        ctx.dtypes = [None if part is None else part.dtype for part in (inner, inner_bias, outer, outer_bias)]
        return y, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, passed: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return passed, *(None,) * 6
        x, first, second, hidden, seen = ctx.saved_tensors
        of_x, of_inner, of_inner_bias, of_outer, of_outer_bias, *_ = ctx.needs_input_grad
        dx = dinner = dinner_bias = douter = douter_bias = None
        shared = passed is not None and passed.untyped_storage().data_ptr() == grad.untyped_storage().data_ptr()
        with torch.autocast(x.device.type, enabled=False):
            if of_outer_bias:
                douter_bias = sum_columns(grad).to(ctx.dtypes[3])
            if of_outer:
                douter = multiply_precisely(grad.t(), hidden, ctx.dtypes[2])
            if of_x or of_inner or of_inner_bias:
                grad, total = pass_product(grad, second, seen, ctx.activation, ctx.growth)
                dinner_bias = total.to(ctx.dtypes[1])
            if of_x:
                dx = add_product(passed, grad, first, holders=1 + shared)  # all is done that y's gradient was for
            if of_inner:
                dinner = multiply_precisely(grad.t(), x, ctx.dtypes[0])
        return dx, dinner, dinner_bias, douter, douter_bias, None, None


def activate(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
) -> tuple[Tensor, Tensor | None]:
    """An activation of x · weightᵀ + bias, and what its way back needs to see."""
    if activation == "relu":
        assert bias is not None, "one kernel takes all of it, or none"
        y = torch._addmm_activation(bias, x, weight.t())
        return y, y
    y = F.linear(x, weight, bias)
    return (y, None) if activation is None else (F.gelu(y), y)


_WAYS_BACK: dict[Activation, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "relu": pass_relu,
    "gelu": pass_gelu,
}


def multiply_precisely(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a · b, the sums not rounded before they are of this precision where the device can do that."""
    if a.is_cuda and dtype == torch.float32 and a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


class View(torch.autograd.Function):
    """x in another shape; on the way back its gradient becomes a tensor of its own, not a view that holds another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: torch.Size) -> Tensor:
        ctx.shape = x.shape
        return x.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.reshape(ctx.shape).detach(), None


def add_product(passed: Tensor | None, a: Tensor, b: Tensor, holders: int = 1) -> Tensor:
    """passed + a · b, in the memory of what was passed where nobody else holds that but so many who are done with it.

    Others may: the same gradient may wait for somebody who comes later, or be kept by a hook, or by whoever asked for
    it. But what comes through `View` is a tensor that nobody else has, so all others hold that memory by tensors of
    their own, and if there are none it is free. PyTorch counts likewise before it adds up gradients in place.
    """
    if passed is None:
        return a @ b
    if passed.is_contiguous() and count_holders(passed) == holders:
        return passed.addmm_(a, b)
    return passed + a @ b


def count_holders(x: Tensor) -> int:
    """How many tensors hold the memory of this one, itself among them."""
    memory = x.untyped_storage()
    return torch._C._storage_Use_Count(memory._cdata) - 1  # this function holds it, too
