"""Timing of kernels, and the rows of the result."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from harness import synchronize
from torch import Tensor

HEADS, WIDTH = 8, 64
Run = Callable[[], object]
Row = dict[str, Any]


class Bench:
    """Times kernels on a device and collects rows.

    Args:
        device: The device; a CPU uses Triton's interpreter and small sizes, and times nothing.
        tokens: Number of tokens of a batch.
        compile_only: Whether to make every call only once, to fill Triton's cache.
    """

    def __init__(self, device: str, tokens: int, compile_only: bool) -> None:
        self.device, self.tokens, self.compile_only = torch.device(device), tokens, compile_only
        self.toy = self.device.type == "cpu"
        self.heads, self.dtype = (1, torch.float32) if self.toy else (HEADS, torch.bfloat16)
        self.rows: list[Row] = []

    def add(self, part: str, name: str, **values: object) -> None:
        """Add and print a row."""
        self.rows.append({"part": part, "name": name, **values})
        if not self.compile_only:
            formatted = "  ".join(f"{key} {_format(value)}" for key, value in values.items())
            print(f"{part:13} {name:42} {formatted}", flush=True)

    def measure(self, part: str, name: str, measure: Callable[[], Row]) -> None:
        """Add a row with the returned values, or with the error."""
        try:
            self.add(part, name, **measure())
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            self.add(part, name, error=f"{type(error).__name__}: {first_line}"[:160])

    def time_op(self, part: str, name: str, run: Run) -> None:
        """Add a row with the time of a call."""
        self.measure(part, name, lambda: self.times("op", run))

    def time_gradients(
        self, part: str, name: str, call: Callable[..., Tensor], inputs: Sequence[Tensor], capture: bool = True
    ) -> None:
        """Add a row with the times of the forward pass, and of the forward and backward pass."""

        def measure() -> Row:
            forward, both = forward_and_both(call, inputs)
            return self.times("forward", forward, capture) | self.times("both", both, capture)

        self.measure(part, name, measure)

    def times(self, name: str, run: Run, capture: bool = True) -> Row:
        """Return milliseconds of eager calls, and of a CUDA graph unless `capture` is False."""
        return {f"{name} eager": self._time_eager(run), f"{name} device": self._time_graph(run) if capture else None}

    def _time_eager(self, run: Run) -> float:
        run()
        synchronize(self.device)
        if self.compile_only or self.toy:
            return math.nan
        for _ in range(3):
            run()
        once = self._time_calls(run, 1)
        calls = max(1, min(10, round(3 / once)))
        return median(self._time_calls(run, calls) for _ in range(7))

    def _time_calls(self, run: Run, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        synchronize(self.device)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        synchronize(self.device)
        return start.elapsed_time(end) / calls

    def _time_graph(self, run: Run) -> float | None:
        """Return the time of a captured call; None if it cannot be captured."""
        if self.compile_only or self.toy:
            return None
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run()
                run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = run()
            graph.replay()
            milliseconds = median(self._time_calls(graph.replay, 5) for _ in range(7))
            del outputs, graph
            return milliseconds
        except Exception:
            synchronize(self.device)
            return None


def _format(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def forward_and_both(call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Run, Run]:
    """Return functions for the forward pass, and for the forward and backward pass."""
    inputs = list(inputs)
    with torch.no_grad():
        grad = torch.randn_like(call(*inputs))

    def forward() -> object:
        with torch.no_grad():
            return call(*inputs)

    return forward, lambda: torch.autograd.grad(call(*inputs), inputs, grad)


def relative_error(actual: Tensor, exact: Tensor) -> float:
    return ((actual.double() - exact.double()).norm() / exact.double().norm()).item()


def attention_errors(call: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor, exact: list[Tensor]) -> Row:
    """Return relative errors of the output and of the gradients of queries, keys and values."""
    context = call(*inputs)
    actual = [context, *torch.autograd.grad(context, inputs, grad)]
    return {
        name: relative_error(mine, theirs)
        for name, mine, theirs in zip(("out", "dq", "dk", "dv"), actual, exact, strict=True)
    }
