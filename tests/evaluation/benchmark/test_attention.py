"""`regard bench --attention`."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.evaluation.benchmark import attention
from regard.evaluation.benchmark.attention import (
    COMPARED,
    KINDS,
    AttentionFunction,
    AttentionReport,
    Heads,
    benchmark_attention,
    measure_length,
    measure_peak,
    read_heads,
    time_call,
    too_slow,
    trained_routing,
)
from regard.masks import Mask

CPU = torch.device("cpu")


def test_heads_are_read_from_the_model(trained_run: Path, image_run: Path) -> None:
    assert read_heads(trained_run, CPU) == Heads(2, 16, True, CPU)
    assert read_heads(image_run, CPU) == Heads(2, 8, False, CPU)


def test_inputs_are_one_sequence_in_the_precision_of_the_device() -> None:
    heads = Heads(2, 8, True, CPU)
    inputs = heads.random_inputs(5)
    assert [(tuple(x.shape), x.dtype, x.requires_grad) for x in inputs] == [((1, 2, 5, 8), torch.float32, True)] * 3
    assert Heads(2, 8, True, torch.device("cuda")).dtype == torch.bfloat16


@pytest.mark.parametrize("causal", [False, True])
def test_mask_of_the_heads_is_applied(causal: bool) -> None:
    heads = Heads(2, 8, causal, CPU)
    q, k, v = heads.random_inputs(5)
    attend = heads.bind(KINDS["full"](heads, 5))
    changed = v.detach().clone()
    changed[:, :, -1] += 1
    differs = (attend(q, k, v) - attend(q, k, changed)).abs().amax((0, 1, 3)) > 0
    assert differs.tolist() == ([False] * 4 + [True] if causal else [True] * 5)


def test_inputs_may_have_tokens_before_heads() -> None:
    shapes: dict[str, tuple[int, ...]] = {}

    def attend(name: str) -> AttentionFunction:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            shapes[name] = tuple(q.shape)
            return q + k + v

        return run

    measure_length({"a": attend("a"), "b": attend("b")}, Heads(2, 4, False, CPU), 8, 1, 60.0, tokens_first=["b"])
    assert shapes == {"a": (1, 2, 8, 4), "b": (1, 8, 2, 4)}


def test_every_kind_is_timed_at_every_length(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "measure_peak", lambda run, device: 5)  # tested below; the profiler takes seconds
    progress: list[str] = []
    report = benchmark_attention(str(trained_run), CPU, 10.0, (16, 64), progress.append)
    assert progress == ["16 tokens", "64 tokens"]
    assert [(row["length"], row["name"]) for row in report.rows] == [(n, name) for n in (16, 64) for name in COMPARED]
    assert all(row["both"] > 0 and row["both_bytes"] == 5 for row in report.rows)
    assert "causal, 2 heads of width 16, float32" in report.lines()[-1]


def test_slow_kinds_are_skipped_at_longer_lengths(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "measure_peak", lambda run, device: 5)
    rows = [{"name": "full", "length": 64, "both": 0.6}, {"name": "linear", "length": 64, "both": 0.4}]
    assert too_slow(rows, 128, 2.0) == {"full"}
    assert too_slow(rows, 256, 2.0) == set()
    report = benchmark_attention(str(trained_run), CPU, 0.0, (16, 32))
    assert {row["length"] for row in report.rows} == {16}


def test_routing_learns_balanced_clusters() -> None:
    heads, tokens = Heads(2, 8, False, CPU), torch.randn(1, 2, 400, 8, generator=torch.Generator().manual_seed(1))

    def largest_share(steps: int) -> float:
        torch.manual_seed(0)
        kind = trained_routing(heads, 100, steps)
        assert not kind.training
        clusters, _ = kind.assign(tokens, tokens, Mask())
        assert clusters.max() < 10  # √100 clusters
        return max(float(torch.bincount(row.flatten()).max()) for row in clusters[0]) / 400

    assert largest_share(60) < 0.8 * largest_share(0)


def test_slow_calls_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, calls = Heads(1, 4, False, CPU), {"slow": 0, "fast": 0}

    def attend(name: str) -> AttentionFunction:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            calls[name] += 1
            return q + k + v

        return run

    seconds = iter([0.0, 2.0, 0.0, 0.5, *[7.0] * 99])  # the second call of each is timed first
    monkeypatch.setattr(attention, "time_call", lambda run, device: (run(), next(seconds))[1])
    slow, fast = measure_length({name: attend(name) for name in calls}, heads, 8, 3, budget=3.0)
    assert calls == {"slow": 2 + 2 + 2, "fast": 2 + 2 * 3 + 2}  # first, repetitions, memory
    assert (slow["both"], fast["both"]) == (4.5, 7.0)
    assert (slow["forward"], fast["forward"]) == (7.0, 7.0)


def test_backward_pass_is_timed_as_well() -> None:
    heads, passes = Heads(1, 4, False, CPU), {"forward": 0, "backward": 0}

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            passes["forward"] += 1
            return q + k + v

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            passes["backward"] += 1
            return grads * 3

    (row,) = measure_length({"counting": Counting.apply}, heads, 8, 2, budget=60.0)
    assert passes == {"forward": 2 + 2 * 2 + 2, "backward": 2 + 2 + 1}  # first, repetitions, memory
    assert 0 < row["forward"] < 60 and 0 < row["both"] < 60


def test_memory_of_the_backward_pass_includes_the_gradients() -> None:
    heads = Heads(1, 4, False, CPU)
    (row,) = measure_length({"product": lambda q, k, v: q * k * v}, heads, 8, 1, budget=60.0)
    assert row["both_bytes"] > row["forward_bytes"] >= 4 * 8 * 4


def test_seconds_of_a_call_are_the_difference_of_two_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.5])
    monkeypatch.setattr(attention.time, "perf_counter", lambda: next(times))
    calls: list[str] = []
    assert time_call(lambda: calls.append("called"), CPU) == 2.5
    assert calls == ["called"]


def test_time_on_a_gpu_is_that_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.moment = len(order)
            order.append("event")

        def elapsed_time(self, end: "Event") -> float:
            return 1000.0 * (end.moment - self.moment)  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronize"))
    assert time_call(lambda: order.append("call"), torch.device("cuda")) == 2.0
    assert order == ["synchronize", "event", "call", "event", "synchronize"]


def test_memory_on_a_gpu_is_the_peak_above_what_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = {"now": 100, "peak": 900}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocated["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: allocated.update(peak=allocated["now"]))
    assert measure_peak(lambda: allocated.update(peak=allocated["peak"] + 50), torch.device("cuda")) == 50


def test_profiler_is_silent_unless_a_level_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in ((None, "6"), ("1", "1")):
        if given is None:
            monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
        else:
            monkeypatch.setenv("KINETO_LOG_LEVEL", given)
        measure_peak(lambda: None, CPU)
        assert os.environ["KINETO_LOG_LEVEL"] == expected


def test_peak_memory_counts_simultaneous_allocations() -> None:
    def run() -> None:
        for _ in range(3):
            torch.empty(1000, 100)

    assert measure_peak(run, CPU) == 4 * 1000 * 100


def test_failing_function_is_reported_and_others_are_measured() -> None:
    heads = Heads(1, 4, True, CPU)

    def fail(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise ValueError("unsupported length")

    functions = {"failing": fail, "full": heads.bind(KINDS["full"](heads, 8))}
    failing, full = measure_length(functions, heads, 8, 1, 1.0)
    assert failing["error"] == "ValueError: unsupported length"
    assert full["both"] > 0
    table = AttentionReport(heads, [failing, full]).tabulate()
    assert table.splitlines()[2].startswith("| 8 | ")


def test_table_has_milliseconds_and_mebibytes() -> None:
    full = {"name": "full", "length": 2048, "both": 0.0125, "both_bytes": 3 * 2**19}
    report = AttentionReport(Heads(4, 16, False, CPU), [full, {"name": "local", "length": 2048, "error": "x"}])
    assert report.tabulate().splitlines() == [
        "| tokens | full | local | linear | routing |",
        "| --- | --- | --- | --- | --- |",
        "| 2,048 | 12.50 ms, 1.5 MiB |  |  |  |",
    ]
    assert report.as_dict() == {
        "timed": "one sequence, 4 heads of width 16, float32; seconds and bytes",
        "attention": report.rows,
    }
