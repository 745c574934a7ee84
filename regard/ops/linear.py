"""Products of vectors with weights. Every model's go through `linear`, so that decoding may do them its own way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ops import dispatch
from regard.ops.dropout import drop
from regard.ops.feed_forward_backward import Activation
from regard.ops.half_weights import RoundedWeights
from regard.ops.linear_compiled import linear_relu_node
from regard.ops.linear_training import FeedForward, Product, View
from regard.ops.quantized_weights import PackedWeights, packed_in_use

__all__ = [
    "Linear",
    "PackedWeights",
    "RoundedWeights",
    "feed_forward",
    "linear",
    "linear_gelu",
    "linear_relu",
    "pass_on",
]

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
    """x · weightᵀ + bias, with packed weights where this thread has some in use."""
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    if dispatch.mixed_precision_training(x):
        return _learn(x, weight, bias)
    packed = packed_in_use()
    return F.linear(x, weight, bias) if packed is None else packed.linear(x, weight, bias)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x · weightᵀ + bias): on a GPU in half precision one kernel, in training as well."""
    if not dispatch.mixed_precision_training(x):
        return F.relu_(linear(x, weight, bias))
    if not torch.compiler.is_compiling():
        return _learn(x, weight, bias, "relu")
    dtype = torch.get_autocast_dtype(x.device.type)
    y: Tensor = linear_relu_node(x.to(dtype).flatten(0, -2), weight.to(dtype), bias.to(dtype))
    return y.view(*x.shape[:-1], len(weight))


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU of x · weightᵀ + bias; in training on a GPU in half precision the way back through both is as one."""
    if not dispatch.mixed_precision_training(x) or torch.compiler.is_compiling():
        return F.gelu(linear(x, weight, bias))
    return _learn(x, weight, bias, "gelu")


def feed_forward(x: Tensor, inner: Linear, outer: Linear, activation: Activation, dropout: float = 0.0) -> Tensor:
    """outer(dropout(activation(inner(x)))); in training on a GPU in half precision one way back through all of it.

    But not through GELU and dropout: of what is dropped after ReLU nothing need be kept, of that after GELU all.
    """
    if (
        dispatch.mixed_precision_training(x)
        and not torch.compiler.is_compiling()
        and (not dropout or activation == "relu")
    ):
        rows = _as_rows(x)
        bias = outer.bias if outer.biased else None
        parts = inner.weight, inner.bias, outer.weight, bias
        y, again = FeedForward.apply(rows, *parts, activation, dropout)  # type: ignore[no-untyped-call]
        _offer(x, again)
        shaped: Tensor = View.apply(y, torch.Size((*x.shape[:-1], len(outer.weight))))  # type: ignore[no-untyped-call]
        return shaped
    activated = (linear_relu if activation == "relu" else linear_gelu)(x, inner.weight, inner.bias)
    made: Tensor = outer(drop(activated, dropout) if dropout else activated)
    return made


def pass_on(x: Tensor, read: Callable[[Tensor], Made]) -> tuple[Made, Tensor]:
    """What a reader makes of x, and x for whoever reads it next.

    In training, on a GPU, where x is as precise as products, the reader's first product of x adds its gradient to that
    of whoever reads it next, so that there is no pass over both to add them up.
    """
    if not dispatch.mixed_precision_training(x) or torch.compiler.is_compiling():
        return read(x), x
    offered = _in_use.offered
    offered.append(x)
    try:
        made = read(x)
    finally:
        left = offered.pop()
    return made, left


# In training, on a GPU, in half precision


def _learn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    y: Tensor
    y, again = Product.apply(_as_rows(x), weight, bias, activation)  # type: ignore[no-untyped-call]
    _offer(x, again)
    return y.view(*x.shape[:-1], len(weight))


def _as_rows(x: Tensor) -> Tensor:
    return x.to(dispatch.matmul_dtype(x)).reshape(-1, x.shape[-1])


def _offer(x: Tensor, again: Tensor) -> None:
    """Has whoever reads x next read what a product gave again of it."""
    for place, offered in enumerate(_in_use.offered):
        if offered is x and x.requires_grad and x.dtype == again.dtype:
            _in_use.offered[place] = View.apply(again, x.shape)  # type: ignore[no-untyped-call]


class _InUse(threading.local):
    def __init__(self) -> None:
        self.offered: list[Tensor] = []  # what `pass_on` has others read; once a product has passed it on, that


_in_use = _InUse()
