"""`regard bench --attention`."""

from pathlib import Path

import pytest
import torch

from regard.attention.masks import Mask
from regard.evaluation.bench import attention
from regard.evaluation.bench.attention import (
    COMPARED,
    KINDS,
    AttentionFunction,
    AttentionReport,
    Heads,
    benchmark_attention,
    measure_length,
    measure_peak,
    read_heads,
    too_slow,
    trained_routing,
)

CPU = torch.device("cpu")


def test_heads_are_read_from_the_model(trained_run: Path, image_run: Path) -> None:
    assert read_heads(trained_run, CPU) == Heads(2, 16, True, CPU)
    assert read_heads(image_run, CPU) == Heads(2, 8, False, CPU)


def test_every_kind_is_timed_at_every_length(trained_run: Path) -> None:
    progress: list[str] = []
    report = benchmark_attention(str(trained_run), CPU, 10.0, (16, 64), progress.append)
    assert progress == ["16 tokens", "64 tokens"]
    assert [(row["length"], row["name"]) for row in report.rows] == [(n, name) for n in (16, 64) for name in COMPARED]
    assert all(row["both"] > 0 and row["both_bytes"] > 0 for row in report.rows)
    assert "causal, 2 heads of width 16, float32" in report.lines()[-1]


def test_slow_kinds_are_skipped_at_longer_lengths(trained_run: Path) -> None:
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
