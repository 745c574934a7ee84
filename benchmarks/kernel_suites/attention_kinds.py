"""Routing and linear attention: implementations in regard, and other libraries."""

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from attention import flash_linear_attention, routing_transformer
from torch import Tensor

from regard.attention.linear import Linear
from regard.evaluation.benchmark.attention import Heads, trained_routing
from regard.masks import Mask
from regard.ops import dispatch
from regard.ops import linear_attention as linear_kernels

from .bench import HEADS, WIDTH, Bench, attention_errors


def make_inputs(bench: Bench, length: int) -> list[Tensor]:
    shape = (1, HEADS, length, WIDTH)
    return [torch.randn(shape, device=bench.device, dtype=bench.dtype, requires_grad=True) for _ in range(3)]


def measure_routing(bench: Bench) -> None:
    """Causal routing with √n clusters, by sorting tokens and by gathering clusters."""
    enabled = dispatch.KERNELS_ENABLED
    for length in (64,) if bench.toy else (1024, 4096, 16384, 65536):
        heads = Heads(HEADS, WIDTH, causal=True, device=bench.device)
        kind = trained_routing(heads, length, 2 if bench.toy else 60)
        inputs = make_inputs(bench, length)
        for implementation in ("clusters", "sorted"):
            kind.implementation = implementation  # type: ignore[assignment]
            call = partial(kind, mask=Mask(causal=True))
            with patch.object(dispatch, "KERNELS_ENABLED", enabled and implementation == "sorted"):
                capture = implementation == "sorted"
                bench.time_gradients("routing", f"{length}, {implementation}", call, inputs, capture=capture)
        library = LazyLibrary(routing_transformer, length)
        bench.time_gradients("routing", f"{length}, routing-transformer", library, inputs, capture=False)


def measure_linear(bench: Bench) -> None:
    """Errors and times of linear attention, chunked and with a kernel."""
    for length in (150,) if bench.toy else (1024, 16384, 65536):
        inputs = make_inputs(bench, length)
        for causal in (True, False):
            mask = Mask(causal=causal)
            title = f"{length}, {'causal' if causal else 'bidirectional'}"
            grad = torch.randn_like(inputs[0])
            exact = _compute_exact(inputs, grad, mask)
            for implementation in ("chunked", "kernel"):
                call = partial(Linear(WIDTH, implementation=implementation), mask=mask)  # type: ignore[arg-type]
                errors = partial(attention_errors, call, inputs, grad, exact)
                bench.measure("linear", f"{title}, {implementation}", errors)
                if implementation == "chunked":
                    bench.time_gradients("linear", f"{title}, {implementation}", call, inputs)
                    continue
                for programs in (256, 512, 1024):
                    with patch.object(linear_kernels, "MIN_PROGRAMS", programs):
                        bench.time_gradients("linear", f"{title}, {implementation} {programs}", call, inputs)
            del exact
        tokens_first = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs]
        library = LazyLibrary(flash_linear_attention, length)
        bench.time_gradients("linear", f"{length}, causal, flash-linear-attention", library, tokens_first)


def _compute_exact(inputs: list[Tensor], grad: Tensor, mask: Mask) -> list[Tensor]:
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    context = Linear(WIDTH, implementation="chunked")(*doubles, mask)
    return [context.detach(), *torch.autograd.grad(context, doubles, grad.double())]


class LazyLibrary:
    """Attention of another library, imported at the first call, so that a missing library becomes an error row."""

    def __init__(self, build: Callable[[int], Callable[..., Tensor]], length: int) -> None:
        self.build, self.length = build, length
        self.attend: Callable[..., Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.attend = self.attend or self.build(self.length)
        return self.attend(*inputs)
