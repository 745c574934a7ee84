"""Routing and linear attention, beside other ways to the same and beside peers."""

from collections.abc import Callable
from functools import partial

import torch
from attention import flash_linear_attention, routing_transformer
from torch import Tensor

from regard.attention.linear import Linear
from regard.attention.masks import Mask
from regard.evaluation.bench.attention import Heads, trained_routing
from regard.ops import dispatch
from regard.ops import linear_attention as linear_kernels

from .bench import HEADS, WIDTH, Bench, errors


def row_inputs(bench: Bench, length: int) -> list[Tensor]:
    shape = (1, HEADS, length, WIDTH)
    return [torch.randn(shape, device=bench.device, dtype=bench.dtype, requires_grad=True) for _ in range(3)]


def measure_routing(bench: Bench) -> None:
    """Sorted clusters against rows of clusters, both causal, √n clusters."""
    installed = dispatch.KERNELS_ENABLED
    for length in (64,) if bench.toy else (1024, 4096, 16384, 65536):
        heads = Heads(HEADS, WIDTH, causal=True, device=bench.device)
        kind = trained_routing(heads, length, 2 if bench.toy else 60)
        inputs = row_inputs(bench, length)
        for path in ("clusters", "sorted"):
            dispatch.KERNELS_ENABLED = installed and path == "sorted"
            kind.path = path  # type: ignore[assignment]
            call = partial(kind, mask=Mask(causal=True))
            bench.compare("routing", f"{length}, {path}", call, inputs, waits=path == "clusters")
        dispatch.KERNELS_ENABLED = installed
        bench.compare(
            "routing", f"{length}, routing-transformer", Peer(routing_transformer, length), inputs, waits=True
        )


def measure_linear(bench: Bench) -> None:
    """Stretches against chunks, in errors and in time."""
    usual = linear_kernels.MIN_PROGRAMS
    for length in (150,) if bench.toy else (1024, 16384, 65536):
        inputs = row_inputs(bench, length)
        for causal in (True, False):
            mask = Mask(causal=causal)
            title = f"{length}, {'causal' if causal else 'both ways'}"
            grad = torch.randn_like(inputs[0])
            exact = _linearly(inputs, grad, mask)
            for path in ("chunked", "kernel"):
                call = partial(Linear(WIDTH, path=path), mask=mask)  # type: ignore[arg-type]
                bench.attempt("linear", f"{title}, {path}", partial(errors, call, inputs, grad, exact))
                for enough in (256, 512, 1024) if path == "kernel" else (usual,):
                    linear_kernels.MIN_PROGRAMS = enough
                    name = f"{title}, {path}" + (f" {enough}" if path == "kernel" else "")
                    bench.compare("linear", name, call, inputs)
                linear_kernels.MIN_PROGRAMS = usual
            del exact
        tokens_first = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs]
        bench.compare(
            "linear", f"{length}, causal, flash-linear-attention", Peer(flash_linear_attention, length), tokens_first
        )


def _linearly(inputs: list[Tensor], grad: Tensor, mask: Mask) -> list[Tensor]:
    wide = [x.detach().double().requires_grad_() for x in inputs]
    context = Linear(WIDTH, path="chunked")(*wide, mask)
    return [context.detach(), *torch.autograd.grad(context, wide, grad.double())]


class Peer:
    """Imported when first called, so that a peer that is not there is a line of the table."""

    def __init__(self, make: Callable[[int], Callable[..., Tensor]], length: int) -> None:
        self.make, self.length = make, length
        self.made: Callable[..., Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.made = self.made or self.make(self.length)
        return self.made(*inputs)
