"""Time and peak memory of every kind of attention over sequence length.

Repetitions of all kinds take turns, so that other load on the machine affects all of them; medians are reported.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from regard.attention.kinds import Full, Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.multi_head import Attention
from regard.attention.routing import Routing
from regard.evaluation.benchmark.harness import format_table
from regard.masks import Mask
from regard.models.folder import CONFIG, build_on_meta, find_model_folder, read_config
from regard.models.transformer import Transformer

COMPARED = ("full", "local", "linear", "routing")
LENGTHS = tuple(2**power for power in range(8, 15))
REPETITIONS = 5
WINDOW = 128
"""Tokens on either side that local attention attends to."""
ROUTING_TRAINING_TOKENS = 8192
"""Maximum number of tokens on which routing learns its clusters."""
AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class Heads:
    """Shape, mask and device of the attention that is timed, for one sequence."""

    number: int
    width: int
    causal: bool
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def random_inputs(self, length: int) -> list[Tensor]:
        """Return random queries, keys and values, (1, H, T, D) each."""
        size = (1, self.number, length, self.width)
        return [torch.randn(size, device=self.device, dtype=self.dtype, requires_grad=True) for _ in range(3)]

    def bind(self, kind: Kind) -> AttentionFunction:
        """Return `kind` as a function of queries, keys and values, with the mask of these heads."""
        return lambda q, k, v: kind(q, k, v, Mask(causal=self.causal))


@dataclass(frozen=True)
class AttentionReport:
    """Time and memory of the kinds of attention."""

    heads: Heads
    rows: list[Row]

    def lines(self) -> list[str]:
        """Return a table and its caption."""
        caption = (
            f"ms and MiB of the forward and backward pass of one sequence; {self._description}; local attends to "
            f"{WINDOW} tokens on either side, routing has √n clusters"
        )
        return [self.tabulate(), "", caption]

    def tabulate(self) -> str:
        """Return a Markdown table with a row for each length and a column for each kind."""
        measured = {(row["length"], row["name"]): row for row in self.rows if "both" in row}
        rows = [["tokens", *COMPARED]]
        for length in sorted({length for length, _ in measured}):
            rows.append([f"{length:,}", *(_format(measured.get((length, name))) for name in COMPARED)])
        return format_table(rows)

    def as_dict(self) -> dict[str, Any]:
        return {"timed": f"one sequence, {self._description}; seconds and bytes", "attention": self.rows}

    @property
    def _description(self) -> str:
        causal = "causal, " if self.heads.causal else ""
        dtype = str(self.heads.dtype).removeprefix("torch.")
        return f"{causal}{self.heads.number} heads of width {self.heads.width}, {dtype}"


def benchmark_attention(
    run: str,
    device: torch.device,
    budget: float,
    lengths: Sequence[int] = LENGTHS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> AttentionReport:
    """Time every kind of attention with the heads of a model, over sequence length.

    Args:
        budget: Seconds per call; slower kinds are skipped at this length and above.
        on_progress: Called with a description before each length.
    """
    heads, rows = read_heads(Path(run), device), list[Row]()
    torch.manual_seed(0)
    skipped: set[str] = set()
    for length in lengths:
        skipped |= too_slow(rows, length, budget)
        on_progress(f"{length:,} tokens")
        functions = {name: heads.bind(KINDS[name](heads, length)) for name in COMPARED if name not in skipped}
        rows += measure_length(functions, heads, length, REPETITIONS, budget)
    return AttentionReport(heads, rows)


def read_heads(path: Path, device: torch.device) -> Heads:
    """Return the heads of a model's first attention; causal if the model is autoregressive."""
    folder = find_model_folder(path)
    model = build_on_meta(read_config(folder), folder / CONFIG)
    first = next(module for module in model.modules() if isinstance(module, Attention))
    return Heads(first.heads, first.width // first.heads, isinstance(model, Transformer), device)


def trained_routing(heads: Heads, length: int, steps: int = 60) -> Routing:
    """Return routing attention with √n balanced clusters, learned on random tokens."""
    kind = Routing(heads.number, heads.width, round(math.sqrt(length)), decay=0.9).to(heads.device)
    for step in range(steps):
        size = (2, 1, heads.number, min(length, ROUTING_TRAINING_TOKENS), heads.width)
        q, k = torch.randn(size, device=heads.device)
        kind.balance = 0.05 * (1 - step / steps)
        kind.update_centroids(q, k, *kind.assign(q, k, Mask()))
    return kind.eval()


KINDS: dict[str, Callable[[Heads, int], Kind]] = {
    "full": lambda heads, length: Full(),
    "local": lambda heads, length: Local(WINDOW, WINDOW),
    "linear": lambda heads, length: Linear(heads.width).to(heads.device),
    "linear-random": lambda heads, length: Linear(heads.width, "random").to(heads.device),
    "routing": trained_routing,
}


def measure_length(
    functions: dict[str, AttentionFunction],
    heads: Heads,
    length: int,
    repetitions: int,
    budget: float,
    tokens_first: Collection[str] = (),
) -> list[Row]:
    """Measure all functions at one length, in turns; a call longer than half the budget is not repeated.

    Functions named in `tokens_first` take inputs of shape (1, T, H, D), the others (1, H, T, D).
    """
    inputs, device = heads.random_inputs(length), heads.device
    transposed = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs] if tokens_first else inputs

    def call(name: str, measure: Callable[..., Any], backward: bool) -> Any:
        own_inputs = transposed if name in tokens_first else inputs
        run = _forward_and_backward if backward else _forward
        return measure(lambda: run(functions[name], own_inputs), device)

    rows: dict[str, Row] = {}
    for name in functions:
        row: Row = {"name": name, "length": length}
        try:
            call(name, time_call, backward=True)
            row |= {"forward": [], "both": [call(name, time_call, backward=True)]}
        except Exception as error:  # another library may raise anything
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        rows[name] = row
        if device.type == "cuda":
            torch.cuda.empty_cache()
    working = [name for name, row in rows.items() if "error" not in row]
    for repetition in range(repetitions):
        for name in working:
            if repetition and 2 * rows[name]["both"][0] > budget:
                continue
            rows[name]["forward"].append(call(name, time_call, backward=False))
            rows[name]["both"].append(call(name, time_call, backward=True))
    for name in working:
        row = rows[name]
        row["forward"], row["both"] = median(row["forward"]), median(row["both"])
        gc.collect()
        row["forward_bytes"] = call(name, measure_peak, backward=False)
        row["both_bytes"] = call(name, measure_peak, backward=True)
    return list(rows.values())


def too_slow(rows: list[Row], length: int, budget: float) -> set[str]:
    """Return the names that would exceed the budget at this length, extrapolated from half the length."""
    return {row["name"] for row in rows if row["length"] == length // 2 and 4 * row.get("both", 0) > budget}


def time_call(run: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of one call."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure_peak(run: Callable[[], None], device: torch.device) -> int:
    """Return the maximum number of bytes that a call allocates at one time."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would log its start and stop on standard error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    allocated = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def _forward(attend: AttentionFunction, inputs: list[Tensor]) -> None:
    with torch.no_grad():
        attend(*inputs)


def _forward_and_backward(attend: AttentionFunction, inputs: list[Tensor]) -> None:
    out = attend(*inputs)
    torch.autograd.grad(out, inputs, torch.ones_like(out))


def _format(row: Row | None) -> str:
    return "" if row is None else f"{1000 * row['both']:,.2f} ms, {row['both_bytes'] / 2**20:,.1f} MiB"
