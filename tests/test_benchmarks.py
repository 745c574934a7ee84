"""What benchmarks of attention and training keep, what is written from it, and what they work on."""

import importlib
import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention, attention_quality, kernels
from benchmarks.reports.attention import write_costs, write_quality
from benchmarks.reports.curves import crossover, fit

ABOUT: dict[str, Any] = {
    "what": "work",
    "machine": "a machine",
    "versions": {"torch": "2.11"},
    "peers": {"peer": "local"},
    "command": "python x.py",
}


def result(date: str, **rows: float) -> dict[str, Any]:
    """Rows of one length, by name, with the time of each."""
    return ABOUT | {"date": date, "rows": [{"name": name, "length": 256, "both": time} for name, time in rows.items()]}


def test_rows_that_are_not_measured_again_keep_their_date(tmp_path: Path) -> None:
    target = tmp_path / "attention-gpu.json"
    attention.add(target, result("2026-01-01", full=1.0, local=2.0))
    attention.add(target, result("2026-02-02", local=3.0))
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [(row["name"], row["both"], row["date"]) for row in rows] == [
        ("full", 1.0, "2026-01-01"),
        ("local", 3.0, "2026-02-02"),
    ]


@pytest.mark.parametrize("change", [{"machine": "another"}, {"versions": {"torch": "2.13"}}, {"what": "more work"}])
def test_results_of_another_machine_or_version_are_not_merged(change: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / "attention-gpu.json"
    attention.add(target, result("2026-01-01", full=1.0))
    before = target.read_text("utf-8")
    with pytest.raises(SystemExit, match=f"{next(iter(change))} is .* there and .* here"):
        attention.add(target, result("2026-02-02", local=3.0) | change)
    assert target.read_text("utf-8") == before


def test_results_contain_the_command() -> None:
    given = Namespace(device="cuda", lengths=[256, 512], budget=1.0, peers=Path("somewhere"))
    command = attention.describe(torch.device("cpu"), given, ["device", "lengths"])["command"]
    assert command == "python benchmarks/attention.py --peers FOLDER --device cuda --lengths 256 512"
    command = kernels.name_command(["--parts", "agreement", "workload", "--peers", "/home/p", "--out", "/tmp/x.json"])
    assert command == "python benchmarks/kernels.py --parts agreement workload --peers FOLDER --out FILE"


def test_rows_of_the_quality_table_have_machine_and_date(tmp_path: Path) -> None:
    target = tmp_path / "quality.json"
    row = {"task": "copy", "kind": "full", "seed": 1, "machine": "a machine", "accuracy": 1.0}
    attention_quality.save(target, row | {"date": "2026-01-01", "torch": "2.0"}, "cuda")
    attention_quality.save(target, row | {"seed": 2, "machine": "CPU"}, "cpu")
    found = json.loads(target.read_text("utf-8"))
    assert [(one["machine"], one["date"] == "2026-01-01", one["torch"] == "2.0") for one in found["rows"]] == [
        ("a machine", True, True),
        ("CPU", False, False),
    ]
    assert found["machine"] == "CPU, a machine"
    assert found["command"] == "python benchmarks/attention_quality.py --device cpu"


def test_power_law_is_fitted_within_its_range() -> None:
    series = {n: (n**1.5 if n >= 64 else 500.0) for n in (16, 64, 256, 1024, 4096)}
    law = fit(series, 64, 1024)
    assert law is not None
    assert math.isclose(law.exponent, 1.5)
    assert (law.shortest, law.longest) == (64, 1024)
    assert fit(series, 1024) is None, "of two points"


def test_crossover_is_interpolated() -> None:
    square, line = {n: n * n / 1000 for n in (100, 10_000)}, {n: float(n) for n in (100, 10_000)}
    assert crossover(line, square) == 1000
    assert crossover(square, line) is None


def costs(local: float, peer: float) -> str:
    """The report on full attention that is measured to 16,384 alone, one flat to 65,536, one less so, a peer."""
    times = {
        "full": lambda n: n * n / 4096,
        "local": lambda n: local if n <= 65536 else 1.5 * local,
        "linear": lambda n: n**0.4,
        "peer": lambda n: peer if n == 4096 else 2 * local,
    }
    rows = [
        {"name": name, "length": n, "date": "2026-01-01", "forward": time(n), "both": time(n), "both_bytes": n}
        for name, time in times.items()
        for n in (4096, 8192, 16384, 32768, 65536, 131072)
        if name != "full" or n <= 16384
    ]
    return write_costs({"attention-gpu": ABOUT | {"date": "2026-01-01", "rows": rows}})


def test_cost_table_names_ranges_constant_times_and_faster_libraries() -> None:
    text = costs(local=2.0, peer=1.5)
    assert "n^2.00 (4,096 to 16,384) | not measured |" in text
    assert "| local | n^0.00 | n^0.18 | n^1.00 |" in text
    assert "nearly constant: local takes 1.0 times as long for 16 times as many." in text
    assert "peer in forward at 4,096 (1500.00 against 2000.00 ms); peer in forward and backward at 4,096" in text
    assert "No other library is faster" in costs(local=2.0, peer=2.5)


def test_quality_table_names_kinds_worse_with_every_seed() -> None:
    scores = {"full": (99.8, 100.0), "local": (99.6, 99.9), "routing": (99.4, 99.7)}
    rows = [
        {"task": "corpus", "kind": kind, "seed": seed, "bleu": bleu}
        for kind, both in scores.items()
        for seed, bleu in enumerate(both)
    ]
    found = ABOUT | {"date": "2026-01-01", "rows": rows, "kinds": {kind: {"kind": kind} for kind in scores}}
    assert "Worse than full attention with every seed: in the demo corpus routing." in write_quality(found)


def test_image_results_contain_the_training_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    vision = importlib.import_module("vision")
    entries = [
        {"step": 500, "seconds": 7.116, "images": 128000, "loss": 2.12224919, "lr": 0.00099948408},
        {"step": 500, "seconds": 7.2, "images": 128000, "validation": {"loss": 1.5, "accuracy": 50.0}},
        {"step": 510, "seconds": 8.0, "images": 130560, "loss": 1.94757146, "lr": 1.1610107e-08},
    ]
    log = vision.shorten_log(entries)
    assert log == [[500, 7.1, 2.1222, 0.0009995], [510, 8.0, 1.9476, 1.161e-08]]
    result = {"what": "[ a, b ]", "names": ["c", "d"], "none": [], "checks": [{"interval": [1.0, 2.5]}], "log": log}
    text = vision.write_result(result)
    assert json.loads(text) == result
    assert "\n    [500, 7.1, 2.1222, 0.0009995],\n" in text
