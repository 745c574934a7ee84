"""What a call of attention takes: time and peak memory, of every kind and of whoever else can be called like one.

Repetitions of all take turns, so that a busy machine slows all alike; medians count.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from regard.attention.core import Full
from regard.attention.kind import Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.masks import Mask
from regard.attention.routing import Routing

WINDOW = 128
"""Tokens that local attention sees on either side."""
LEARNED_ON = 8192
"""Tokens at the most from which routing learns its clusters."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class Heads:
    """Of one sequence: how many, how wide, whether each token sees only those before, and where they are computed."""

    number: int
    width: int
    causal: bool
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def draw(self, length: int) -> list[Tensor]:
        """Queries, keys and values at random."""
        size = (1, self.number, length, self.width)
        return [torch.randn(size, device=self.device, dtype=self.dtype, requires_grad=True) for _ in range(3)]

    def call(self, kind: Kind) -> Attend:
        return lambda q, k, v: kind(q, k, v, Mask(causal=self.causal))


def balanced_routing(heads: Heads, length: int, steps: int = 60) -> Routing:
    """√n clusters that have seen tokens like those that are measured, though not the same."""
    kind = Routing(heads.number, heads.width, round(math.sqrt(length)), decay=0.9).to(heads.device)
    for step in range(steps):
        q, k = torch.randn(2, 1, heads.number, min(length, LEARNED_ON), heads.width, device=heads.device)
        kind.balance = 0.05 * (1 - step / steps)
        kind.update_centroids(q, k, *kind.assign(q, k, Mask()))
    return kind.eval()


KINDS: dict[str, Callable[[Heads, int], Kind]] = {
    "full": lambda heads, length: Full(),
    "local": lambda heads, length: Local(WINDOW, WINDOW),
    "linear": lambda heads, length: Linear(heads.width).to(heads.device),
    "linear-random": lambda heads, length: Linear(heads.width, "random").to(heads.device),
    "routing": balanced_routing,
}


def forward(attend: Attend, inputs: list[Tensor]) -> None:
    """A call that nobody learns from."""
    with torch.no_grad():
        attend(*inputs)


def both(attend: Attend, inputs: list[Tensor]) -> None:
    """Forward and backward."""
    out = attend(*inputs)
    torch.autograd.grad(out, inputs, torch.ones_like(out))


def clock(run: Callable[[], None], device: torch.device) -> float:
    """Seconds of one call."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def find_peak(run: Callable[[], None], device: torch.device) -> int:
    """The most bytes that a call holds at any one time, beside what it is given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it says on standard error that it starts and stops
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure_length(
    people: dict[str, Attend],
    heads: Heads,
    length: int,
    repetitions: int,
    budget: float,
    tokens_first: Collection[str] = (),
) -> list[Row]:
    """All who take part at one length, in turns; whoever takes longer than half the budget is not asked again.

    Those named in `tokens_first` are given (1, T, H, D), the others (1, H, T, D).
    """
    drawn, device = heads.draw(length), heads.device
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in drawn] if tokens_first else drawn
    inputs = {name: turned if name in tokens_first else drawn for name in people}
    rows: dict[str, Row] = {}
    for name, attend in people.items():
        row: Row = {"name": name, "length": length}
        try:
            both(attend, inputs[name])
            row |= {"forward": [], "both": [clock(lambda n=name: both(people[n], inputs[n]), device)]}  # type: ignore[misc]
        except Exception as error:  # whatever a peer raises is its result
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        rows[name] = row
        if device.type == "cuda":
            torch.cuda.empty_cache()
    turns = [name for name, row in rows.items() if "error" not in row]
    for turn in range(repetitions):
        for name in turns:
            row = rows[name]
            if turn and 2 * row["both"][0] > budget:  # too slow to be repeated
                continue
            row["forward"].append(clock(lambda n=name: forward(people[n], inputs[n]), device))  # type: ignore[misc]
            row["both"].append(clock(lambda n=name: both(people[n], inputs[n]), device))  # type: ignore[misc]
    for name in turns:
        row = rows[name]
        row["forward"], row["both"] = median(row["forward"]), median(row["both"])
        gc.collect()
        row["forward_bytes"] = find_peak(lambda n=name: forward(people[n], inputs[n]), device)  # type: ignore[misc]
        row["both_bytes"] = find_peak(lambda n=name: both(people[n], inputs[n]), device)  # type: ignore[misc]
    return list(rows.values())


def too_slow(rows: list[Row], length: int, budget: float) -> set[str]:
    """Who would take longer than the budget at this length, judged by half of it."""
    return {row["name"] for row in rows if row["length"] == length // 2 and 4 * row.get("both", 0) > budget}
