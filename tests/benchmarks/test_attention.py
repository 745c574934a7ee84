"""benchmarks/attention.py and attention_quality.py: merged results and reports."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import attention, attention_quality
from benchmarks.reports.attention import write_costs, write_quality
from benchmarks.reports.curves import crossover, fit

ABOUT: dict[str, Any] = {
    "what": "work",
    "machine": "a machine",
    "versions": {"torch": "2.11"},
    "other_libraries": {"library": "local"},
    "command": "python x.py",
}


def result(date: str, **times: float) -> dict[str, Any]:
    """Return a result with the times of systems at one length."""
    return ABOUT | {"date": date, "rows": [{"name": name, "length": 256, "both": time} for name, time in times.items()]}


def test_merged_rows_keep_their_date(tmp_path: Path) -> None:
    path = tmp_path / "attention-gpu.json"
    attention.merge(path, result("2026-01-01", full=1.0, local=2.0))
    attention.merge(path, result("2026-02-02", local=3.0))
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert [(row["name"], row["both"], row["date"]) for row in rows] == [
        ("full", 1.0, "2026-01-01"),
        ("local", 3.0, "2026-02-02"),
    ]


@pytest.mark.parametrize("change", [{"machine": "another"}, {"versions": {"torch": "2.13"}}, {"what": "more work"}])
def test_results_of_another_machine_or_version_are_not_merged(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "attention-gpu.json"
    attention.merge(path, result("2026-01-01", full=1.0))
    before = path.read_text("utf-8")
    with pytest.raises(SystemExit, match=f"{next(iter(change))} is .*, not .*; measure everything"):
        attention.merge(path, result("2026-02-02", local=3.0) | change)
    assert path.read_text("utf-8") == before


def test_quality_result_lists_machines_and_dates_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "quality.json"
    row = {"task": "copy", "kind": "full", "seed": 1, "machine": "GPU", "accuracy": 1.0}
    attention_quality.save_row(path, row | {"date": "2026-01-01", "torch": "2.0"}, "cuda")
    attention_quality.save_row(path, row | {"seed": 2, "machine": "CPU", "date": "2026-01-02", "torch": "2.1"}, "cpu")
    found = json.loads(path.read_text("utf-8"))
    assert [row["machine"] for row in found["rows"]] == ["GPU", "CPU"]
    assert found["machine"] == "CPU, GPU"
    assert found["date"] == "2026-01-01, 2026-01-02"
    assert found["versions"] == {"torch": "2.0, 2.1"}
    assert found["command"] == "python benchmarks/attention_quality.py --device cpu"


def test_power_law_is_fitted_within_its_range() -> None:
    series = {n: (n**1.5 if n >= 64 else 500.0) for n in (16, 64, 256, 1024, 4096)}
    law = fit(series, 64, 1024)
    assert law is not None
    assert math.isclose(law.exponent, 1.5)
    assert (law.shortest, law.longest) == (64, 1024)
    assert fit(series, 1024) is None, "there are only two points"


def test_crossover_is_interpolated() -> None:
    square, line = {n: n * n / 1000 for n in (100, 10_000)}, {n: float(n) for n in (100, 10_000)}
    assert crossover(line, square) == 1000
    assert crossover(square, line) is None


def costs(local: float, library: float) -> str:
    """Return the report on full attention up to 16,384, constant local, growing linear and another library."""
    times = {
        "full": lambda n: n * n / 4096,
        "local": lambda n: local if n <= 65536 else 1.5 * local,
        "linear": lambda n: n**0.4,
        "library": lambda n: library if n == 4096 else 2 * local,
    }
    rows = [
        {"name": name, "length": n, "date": "2026-01-01", "forward": time(n), "both": time(n), "both_bytes": n}
        for name, time in times.items()
        for n in (4096, 8192, 16384, 32768, 65536, 131072)
        if name != "full" or n <= 16384
    ]
    return write_costs({"attention-gpu": ABOUT | {"date": "2026-01-01", "rows": rows}})


def test_cost_table_names_ranges_constant_times_and_faster_libraries() -> None:
    text = costs(local=2.0, library=1.5)
    assert "n^2.00 (4,096 to 16,384) | not measured |" in text
    assert "| local | n^0.00 | n^0.18 | n^1.00 |" in text
    assert "nearly constant: local takes 1.0 times as long for 16 times as many." in text
    assert "library in forward at 4,096 (1500.00 against 2000.00 ms); library in forward and backward at 4,096" in text
    assert "No other library is faster" in costs(local=2.0, library=2.5)


def test_quality_table_names_kinds_worse_with_every_seed() -> None:
    scores = {"full": (99.8, 100.0), "local": (99.6, 99.9), "routing": (99.4, 99.7)}
    rows = [
        {"task": "corpus", "kind": kind, "seed": seed, "bleu": bleu}
        for kind, both in scores.items()
        for seed, bleu in enumerate(both)
    ]
    found = ABOUT | {"date": "2026-01-01", "rows": rows, "kinds": {kind: {"kind": kind} for kind in scores}}
    assert "Worse than full attention with every seed: in the demo corpus routing." in write_quality(found)
