"""How kernels meet autograd: a plain function where calls are made one by one, a single node where one compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device


class Operator:
    """An attention whose kernels have no gradient of their own, with the kernels that compute it.

    torch.compile sees an operator of PyTorch; without it, that would cost the host more than the kernels themselves.

    Args:
        name: under torch.ops.regard.
        schema: of what comes after q, k and v: tensors or None first, then numbers.
        inputs: what there is in place of q, k and v, if they lie together in memory.
        tensors: how many of these are tensors.
        outputs: how many tensors the forward pass makes: the context, and what backward needs beside it.
        forward: launches the kernels for q, k, v and the rest.
        backward: launches them for the context's gradient, q, k, v, the outputs and the rest.
        like_forward: empty outputs for the same arguments.
        like_backward: empty gradients for the same arguments.
        split: the gradients of q, k and v, or of what there is in their place, among what backward makes.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        tensors: int,
        outputs: int,
        forward: Callable[..., tuple[Tensor, ...]],
        backward: Callable[..., list[Tensor]],
        like_forward: Callable[..., tuple[Tensor, ...]],
        like_backward: Callable[..., list[Tensor]],
        split: Callable[[list[Tensor]], Sequence[Tensor]],
        inputs: Sequence[str] = ("q", "k", "v"),
    ) -> None:
        self.inputs, self.tensors, self.split = len(inputs), tensors, split
        self.forward, self.backward = forward, backward = _where_tensors_are(forward), _where_tensors_are(backward)
        given = ", ".join(f"Tensor {name}" for name in inputs)
        made = ", ".join(f"Tensor made{i}" for i in range(outputs))
        returned = ", ".join(["Tensor"] * outputs)
        declare = torch.library.custom_op
        self._node = declare(f"regard::{name}", forward, mutates_args=(), schema=f"({given}, {schema}) -> ({returned})")
        self._node_back = declare(
            f"regard::{name}_backward",
            backward,
            mutates_args=(),
            schema=f"(Tensor grad, {given}, {made}, {schema}) -> Tensor[]",
        )
        self._node.register_fake(like_forward)
        self._node_back.register_fake(like_backward)
        self._node.register_autograd(self._differentiate_node, setup_context=self._remember)

    def __call__(self, *inputs: Any) -> Tensor:
        if torch.compiler.is_compiling():
            compiled: Tensor = self._node(*inputs)[0]
            return compiled
        context: Tensor = _Eager.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return context

    def _remember(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        first, last = self.inputs, self.inputs + self.tensors
        ctx.save_for_backward(*inputs[:first], *output, *inputs[first:last])
        ctx.numbers = inputs[last:]

    def _differentiate_node(self, ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        return self._pad(ctx, self._node_back(grad, *ctx.saved_tensors, *ctx.numbers))

    def _differentiate(self, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return self._pad(ctx, self.backward(grad, *ctx.saved_tensors, *ctx.numbers))

    def _pad(self, ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
        """The gradients of all arguments; those beside q, k and v have none."""
        return (*self.split(grads), *(None,) * (self.tensors + len(ctx.numbers)))


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Tensor:
        outputs = operator.forward(*inputs)
        operator._remember(ctx, inputs, outputs)
        ctx.operator = operator
        return outputs[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.operator._differentiate(ctx, grad)


Made = TypeVar("Made")


def _where_tensors_are(launch: Callable[..., Made]) -> Callable[..., Made]:
    def run(first: Tensor, *others: Any) -> Made:
        with on_device(first):
            return launch(first, *others)

    return run


def dense_last(x: Tensor) -> Tensor:
    """The tensor, its last dimension without gaps."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Those of all dimensions but the last, which has none."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])
