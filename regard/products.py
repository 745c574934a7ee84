"""Products of vectors with weights. Every model's go through `linear`, so that decoding may do them its own way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.packing import Precision, Product, pack, supports
from regard.rows import multiply, usable
from regard.sums import pass_gelu, pass_relu, sum_columns
from regard.sums.through import Activation, pass_product

Made = TypeVar("Made")


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`."""

    biased = True

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias if self.biased else None)

    @contextmanager
    def without_bias(self) -> Iterator[None]:
        """While the block runs whoever asked for this adds the bias."""
        self.biased = False
        try:
            yield
        finally:
            self.biased = True


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, another way where this thread has one in use."""
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    if _learns(x):
        return _learn(x, weight, bias)
    way = _in_use.way
    return F.linear(x, weight, bias) if way is None else way.linear(x, weight, bias)


def precision_of(x: Tensor) -> torch.dtype:
    """That of products of x with weights."""
    device = x.device.type
    rounds = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if rounds else x.dtype


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x · weightᵀ + bias): on a GPU in half precision one kernel, in training as well."""
    compiling = torch.compiler.is_compiling()
    if not _learns(x):
        way = None if compiling else _in_use.way
        return F.relu_(linear(x, weight, bias)) if way is None else way.linear_relu(x, weight, bias)
    if not compiling:
        return _learn(x, weight, bias, "relu")
    # A compiler takes product and activation apart wherever it sees what is done, so it is given an operator.
    dtype = torch.get_autocast_dtype(x.device.type)
    y: Tensor = _node(x.to(dtype).flatten(0, -2), weight.to(dtype), bias.to(dtype))
    return y.view(*x.shape[:-1], len(weight))


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU of x · weightᵀ + bias; in training on a GPU in half precision the way back through both is as one."""
    if not _learns(x) or torch.compiler.is_compiling():
        return F.gelu(linear(x, weight, bias))
    return _learn(x, weight, bias, "gelu")


def feed_forward(x: Tensor, inner: Linear, outer: Linear, activation: Activation, dropout: float = 0.0) -> Tensor:
    """outer(dropout(activation(inner(x)))); in training on a GPU in half precision one way back through all of it.

    But not through GELU and dropout: of what is dropped after ReLU nothing need be kept, of that after GELU all.
    """
    if _learns(x) and not torch.compiler.is_compiling() and (not dropout or activation == "relu"):
        rows = _as_rows(x)
        bias = outer.bias if outer.biased else None
        parts = inner.weight, inner.bias, outer.weight, bias
        y, again = _FeedForward.apply(rows, *parts, activation, dropout)  # type: ignore[no-untyped-call]
        _offer(x, again)
        shaped: Tensor = _View.apply(y, torch.Size((*x.shape[:-1], len(outer.weight))))  # type: ignore[no-untyped-call]
        return shaped
    activated = (linear_relu if activation == "relu" else linear_gelu)(x, inner.weight, inner.bias)
    made: Tensor = outer(F.dropout(activated, dropout) if dropout else activated)
    return made


def pass_on(x: Tensor, read: Callable[[Tensor], Made]) -> tuple[Made, Tensor]:
    """What a reader makes of x, and x for whoever reads it next.

    In training, on a GPU, where x is as precise as products, the reader's first product of x adds its gradient to that
    of whoever reads it next, so that there is no pass over both to add them up.
    """
    if not _learns(x) or torch.compiler.is_compiling():
        return read(x), x
    offered = _in_use.offered
    offered.append(x)
    try:
        made = read(x)
    finally:
        left = offered.pop()
    return made, left


# In training, on a GPU, in half precision


def _learns(x: Tensor) -> bool:
    half = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    return x.is_cuda and half and torch.is_grad_enabled()


def _learn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    y: Tensor
    y, again = _Product.apply(_as_rows(x), weight, bias, activation)  # type: ignore[no-untyped-call]
    _offer(x, again)
    return y.view(*x.shape[:-1], len(weight))


def _as_rows(x: Tensor) -> Tensor:
    return x.to(torch.get_autocast_dtype(x.device.type)).reshape(-1, x.shape[-1])


def _offer(x: Tensor, again: Tensor) -> None:
    """Has whoever reads x next read what a product gave again of it."""
    for place, offered in enumerate(_in_use.offered):
        if offered is x and x.requires_grad and x.dtype == again.dtype:
            _in_use.offered[place] = _View.apply(again, x.shape)  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """x · weightᵀ + bias, as precise as x, or an activation of it; gradients are as precise as the weights.

    PyTorch's own would round every gradient of a weight to half precision first, and takes three times as long for
    those of biases. Beside it x is given again, for whoever reads it next.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        half, offset = _round(weight, x.dtype), None if bias is None else _round(bias, x.dtype)
        y, seen = _activate(x, half, offset, activation)
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
                dx = _add_product(passed, grad, half)
            if ctx.needs_input_grad[1]:
                dweight = _multiply(grad.t(), x, of_weight)
        return dx, dweight, None if dbias is None or of_bias is None else dbias.to(of_bias), None


class _FeedForward(torch.autograd.Function):
    """Two products with an activation between them, and x again, as of `_Product`.

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
        first, second = (_round(weight, x.dtype) for weight in (inner, outer))
        hidden, seen = _activate(x, first, _round(inner_bias, x.dtype), activation)
        if dropout:
            hidden = seen = F.dropout(hidden, dropout)
        y = F.linear(hidden, second, None if outer_bias is None else _round(outer_bias, x.dtype))
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
                douter = _multiply(grad.t(), hidden, ctx.dtypes[2])
            if of_x or of_inner or of_inner_bias:
                grad, total = pass_product(grad, second, seen, ctx.activation, ctx.growth)
                dinner_bias = total.to(ctx.dtypes[1])
            if of_x:
                dx = _add_product(passed, grad, first, holders=1 + shared)  # all is done that y's gradient was for
            if of_inner:
                dinner = _multiply(grad.t(), x, ctx.dtypes[0])
        return dx, dinner, dinner_bias, douter, douter_bias, None, None


def _activate(
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


def _round(weight: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = _in_use.rounded
    return weight.to(dtype) if rounded is None else rounded.find(weight, dtype)


class RoundedWeights:
    """While entered, products of this model that learn find their weights in half precision, all rounded at once.

    Hundreds of small weights, each rounded where it is needed, take longer to launch than to round.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._places: dict[int, Tensor] = {}

    def __enter__(self) -> None:
        if not self._weights:
            self._set_up()
        if self._weights:
            torch._foreach_copy_(self._copies, self._weights)
        _in_use.rounded = self

    def _set_up(self) -> None:
        modules = [module for module in self._model.modules() if isinstance(module, Linear)]
        self._weights = [part.detach() for module in modules for part in module.parameters()]
        self._copies = [
            torch.empty_like(part, dtype=torch.get_autocast_dtype(part.device.type)) for part in self._weights
        ]
        self._places = {part.data_ptr(): copy for part, copy in zip(self._weights, self._copies, strict=True)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_use.rounded = None

    def find(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A weight, or a part of one, in half precision; one that is not of this model is rounded now."""
        whole = weight if weight._base is None else weight._base
        copy = self._places.get(whole.data_ptr())
        if copy is None or copy.dtype != dtype or copy.shape != whole.shape:
            return weight.to(dtype)
        return copy.as_strided(weight.shape, weight.stride(), weight.storage_offset() - whole.storage_offset())


def _multiply(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a · b, the sums not rounded before they are of this precision where the device can do that."""
    if a.is_cuda and dtype == torch.float32 and a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


class _View(torch.autograd.Function):
    """x in another shape; on the way back its gradient becomes a tensor of its own, not a view that holds another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: torch.Size) -> Tensor:
        ctx.shape = x.shape
        return x.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.reshape(ctx.shape).detach(), None


def _add_product(passed: Tensor | None, a: Tensor, b: Tensor, holders: int = 1) -> Tensor:
    """passed + a · b, in the memory of what was passed where nobody else holds that but so many who are done with it.

    Others may: the same gradient may wait for somebody who comes later, or be kept by a hook, or by whoever asked for
    it. But what comes through `_View` is a tensor that nobody else has, so all others hold that memory by tensors of
    their own, and if there are none it is free. PyTorch counts likewise before it adds up gradients in place.
    """
    if passed is None:
        return a @ b
    if passed.is_contiguous() and _count_holders(passed) == holders:
        return passed.addmm_(a, b)
    return passed + a @ b


def _count_holders(x: Tensor) -> int:
    """How many tensors hold the memory of this one, itself among them."""
    memory = x.untyped_storage()
    return torch._C._storage_Use_Count(memory._cdata) - 1  # this function holds it, too


# For a compiler


def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, y = ctx.saved_tensors
    with torch.autocast(x.device.type, enabled=False):
        grad = torch.where(y > 0, grad, 0)
        return grad @ weight, grad.t() @ x, grad.sum(0)


_node = torch.library.custom_op(
    "regard::linear_relu", _forward, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
_node.register_fake(lambda x, weight, bias: x.new_empty(len(x), len(weight)))
_node.register_autograd(_differentiate, setup_context=_remember)


class Way:
    """While entered, products that learn nothing are made this way in this thread."""

    def __init__(self) -> None:
        self._outer: list[Way | None] = []

    def __enter__(self) -> None:
        self._outer.append(_in_use.way)
        _in_use.way = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_use.way = self._outer.pop()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x · weightᵀ + bias."""
        return F.linear(x, weight, bias)

    def linear_relu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """max(0, x · weightᵀ + bias)."""
        return F.relu_(self.linear(x, weight, bias))


class FewRows(Way):
    """Products of a few rows are one kernel each: for recordings on a GPU, in which launching it costs nothing."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return multiply(x, weight, bias) if usable(x, weight, bias) else super().linear(x, weight, bias)

    def linear_relu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if usable(x, weight, bias):
            return multiply(x, weight, bias, relu=True)
        return super().linear_relu(x, weight, bias)


class PackedWeights(Way):
    """While entered, products of float32 vectors with weights on a CPU use a copy of the weight made for that.

    Otherwise the weight is brought into the processor's favourite order in every product, which for the few rows of a
    decoding step costs more than the product itself: with one packed copy steps are up to twice as fast, and with one
    in smaller numbers faster still.
    """

    def __init__(self, precision: Precision = "float32") -> None:
        super().__init__()
        self.precision, self._available = precision, supports(precision)
        # By address and shape: the weight, a sample of its numbers when it was packed, and the product with its copy.
        # Holding the weight keeps its address from being given to another.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, Tensor, Product]] = {}

    def refresh(self) -> None:
        """Forgets the copies of weights that have changed since.

        A weight's version would say so more cheaply, but fused optimisers and `.data` do not raise it.
        """
        self._copies = {
            place: (weight, sample, product)
            for place, (weight, sample, product) in self._copies.items()
            if torch.equal(_sample(weight), sample)
        }

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, from the packed copy where one can be had."""
        if not self._fits(x, weight):
            return F.linear(x, weight, bias)
        place = (weight.data_ptr(), weight.shape)
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = (weight, _sample(weight).clone(), pack(weight, self.precision))
        y = copy[2](x.reshape(-1, x.shape[-1]), bias)
        return y.view(*x.shape[:-1], weight.shape[0])

    def _fits(self, x: Tensor, weight: Tensor) -> bool:
        plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
        return self._available and plain and not weight.is_inference() and not torch.is_grad_enabled()


class _InUse(threading.local):
    way: Way | None = None
    rounded: RoundedWeights | None = None

    def __init__(self) -> None:
        self.offered: list[Tensor] = []  # what `pass_on` has others read; once a product has passed it on, that


_in_use = _InUse()


def _sample(weight: Tensor) -> Tensor:
    """A few hundred numbers from all over the weight; an optimiser's step changes nearly every one."""
    return weight.detach().flatten()[:: max(1, weight.numel() // 512)]
