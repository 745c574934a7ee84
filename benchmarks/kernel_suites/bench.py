"""How kernels are timed, and what is kept of it."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

HEADS, WIDTH = 8, 64
Run = Callable[[], object]
Row = dict[str, Any]


class Bench:
    """Where, how large and how often; keeps what was found."""

    def __init__(self, device: str, tokens: int, warm: bool) -> None:
        self.device, self.tokens, self.warm = torch.device(device), tokens, warm
        self.toy = self.device.type == "cpu"
        self.heads, self.dtype = (1, torch.float32) if self.toy else (HEADS, torch.bfloat16)
        self.rows: list[Row] = []

    def note(self, part: str, name: str, **found: object) -> None:
        self.rows.append({"part": part, "name": name, **found})
        if not self.warm:
            shown = "  ".join(f"{key} {_shown(value)}" for key, value in found.items())
            print(f"{part:10} {name:42} {shown}", flush=True)

    def attempt(self, part: str, name: str, measure: Callable[[], Row]) -> None:
        """One line of the table, or why there is none."""
        try:
            self.note(part, name, **measure())
        except Exception as error:  # whatever fails, the rest is worth having
            first = (str(error).splitlines() or [""])[0]
            self.note(part, name, error=f"{type(error).__name__}: {first}"[:160])

    def compare(
        self, part: str, name: str, call: Callable[..., Tensor], inputs: Sequence[Tensor], waits: bool = False
    ) -> None:
        """One line with the times of forward alone and of forward and backward."""

        def measure() -> Row:
            forward, both = gradients(call, inputs)
            return self.times("forward", forward, waits) | self.times("both", both, waits)

        self.attempt(part, name, measure)

    def times(self, what: str, run: Run, waits: bool = False) -> Row:
        """What waits for the device cannot be captured, and has no time of its own there."""
        return {f"{what} eager": self._eager(run), f"{what} device": None if waits else self._device(run)}

    def _eager(self, run: Run) -> float:
        run()
        self._wait()
        if self.warm or self.toy:
            return math.nan
        for _ in range(3):
            run()
        once = self._clock(run, 1)
        calls = max(1, min(10, round(3 / once)))
        return median(self._clock(run, calls) for _ in range(7))

    def _clock(self, run: Run, calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._wait()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        self._wait()
        return begin.elapsed_time(end) / calls

    def _device(self, run: Run) -> float | None:
        if self.warm or self.toy:
            return None
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()
                run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = run()
            graph.replay()
            found = median(self._clock(graph.replay, 5) for _ in range(7))
            del kept, graph
            return found
        except Exception:  # what waits for the device cannot be captured
            self._wait()
            return None

    def _wait(self) -> None:
        if not self.toy:
            torch.cuda.synchronize()


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def gradients(call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Run, Run]:
    """Forward alone, and forward and backward."""
    inputs = list(inputs)
    with torch.no_grad():
        grad = torch.randn_like(call(*inputs))

    def forward() -> object:
        with torch.no_grad():
            return call(*inputs)

    return forward, lambda: torch.autograd.grad(call(*inputs), inputs, grad)


def errors(call: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor, exact: list[Tensor]) -> Row:
    context = call(*inputs)
    got = [context, *torch.autograd.grad(context, inputs, grad)]
    return {
        name: ((mine.double() - theirs).norm() / theirs.norm()).item()
        for name, mine, theirs in zip(("out", "dq", "dk", "dv"), got, exact, strict=True)
    }
