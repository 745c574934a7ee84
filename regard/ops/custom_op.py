"""`AttentionOp`: kernels of attention as a differentiable operation, in eager mode and under torch.compile."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import on_device

Result = TypeVar("Result")


class AttentionOp:
    """An attention whose forward and backward passes are launched by two functions.

    torch.compile sees a custom operator of PyTorch. In eager mode an autograd function is used instead, because the
    overhead of a custom operator on the host exceeds the time of the kernels.

    Args:
        name: Name of the operator in torch.ops.regard.
        schema: Schema of the arguments after the inputs: tensors or None first, then numbers.
        outputs: Number of tensors that the forward pass returns: the context, and what the backward pass needs.
        forward: Computes the outputs from the inputs and the other arguments.
        backward: Computes gradients from that of the context, the inputs, the outputs and the other arguments.
        allocate_outputs: Allocates the outputs for the same arguments; torch.compile calls it alone, for their shapes.
        allocate_gradients: Allocates the gradients for the same arguments, likewise.
        split: Returns the gradients of the inputs as views of what `backward` returns.
        inputs: Names of the differentiable inputs.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        outputs: int,
        forward: Callable[..., tuple[Tensor, ...]],
        backward: Callable[..., list[Tensor]],
        allocate_outputs: Callable[..., tuple[Tensor, ...]],
        allocate_gradients: Callable[..., list[Tensor]],
        split: Callable[[list[Tensor]], Sequence[Tensor]],
        inputs: Sequence[str] = ("q", "k", "v"),
    ) -> None:
        self.inputs, self.tensors, self.split = len(inputs), schema.count("Tensor"), split
        self.forward, self.backward = _on_device_of_first(forward), _on_device_of_first(backward)
        input_schema = ", ".join(f"Tensor {name}" for name in inputs)
        output_schema = ", ".join(f"Tensor output{i}" for i in range(outputs))
        returned = ", ".join(["Tensor"] * outputs)
        self._op = torch.library.custom_op(
            f"regard::{name}", self.forward, mutates_args=(), schema=f"({input_schema}, {schema}) -> ({returned})"
        )
        self._backward_op = torch.library.custom_op(
            f"regard::{name}_backward",
            self.backward,
            mutates_args=(),
            schema=f"(Tensor grad, {input_schema}, {output_schema}, {schema}) -> Tensor[]",
        )
        self._op.register_fake(allocate_outputs)
        self._backward_op.register_fake(allocate_gradients)
        self._op.register_autograd(self._compiled_backward, setup_context=self._save)

    def __call__(self, *arguments: Any) -> Tensor:
        if torch.compiler.is_compiling():
            compiled: Tensor = self._op(*arguments)[0]
            return compiled
        context: Tensor = _Eager.apply(self, *arguments)  # type: ignore[no-untyped-call]
        return context

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        first, last = self.inputs, self.inputs + self.tensors
        ctx.save_for_backward(*inputs[:first], *output, *inputs[first:last])
        ctx.numbers = inputs[last:]

    def _compiled_backward(self, ctx: Any, grad: Tensor, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        return self._input_gradients(ctx, self._backward_op(grad, *ctx.saved_tensors, *ctx.numbers))

    def _input_gradients(self, ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
        return (*self.split(grads), *(None,) * (self.tensors + len(ctx.numbers)))


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: AttentionOp, *arguments: Any) -> Tensor:
        outputs = op.forward(*arguments)
        op._save(ctx, arguments, outputs)
        ctx.op = op
        return outputs[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.op._input_gradients(ctx, ctx.op.backward(grad, *ctx.saved_tensors, *ctx.numbers))


def _on_device_of_first(launch: Callable[..., Result]) -> Callable[..., Result]:
    def run(first: Tensor, *others: Any) -> Result:
        with on_device(first):
            return launch(first, *others)

    return run


def token_major(x: Tensor) -> tuple[Tensor, int]:
    """Return x, (B, H, T, D), as kernels read it, and the distance between its tokens in memory.

    Kernels read (B, T, H, D) with a constant distance between tokens, which holds for the parts q, k and v of a
    projection (B, T, 3, H, D). Other tensors are copied.
    """
    B, H, T, D = x.shape
    stride = x.stride(0) if T == 1 else x.stride(2)
    if x.stride(3) == 1 and (H == 1 or x.stride(1) == D) and (B == 1 or x.stride(0) == T * stride):
        return x, stride
    return x.transpose(1, 2).contiguous().transpose(1, 2), H * D


def contiguous_token_major(x: Tensor) -> Tensor:
    """Return x, (B, H, T, D), in the memory layout (B, T, H, D) without gaps."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
