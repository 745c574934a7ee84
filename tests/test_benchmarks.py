"""What benchmarks of attention and training keep, what is written from it, and what they work on."""

import importlib
import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from benchmarks import attention, attention_quality, kernels
from benchmarks.reports.attention import write_costs, write_quality
from benchmarks.reports.curves import crossover, fit
from benchmarks.reports.kernels import sum_by_group
from benchmarks.reports.markdown import dates_of
from benchmarks.reports.training import GROUPS, write_curves

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


@pytest.mark.parametrize(
    ("distance", "expected"),
    [(0.2, "is not larger than between two seeds"), (0.4, "is larger by 0.1000 than between two seeds")],
)
def test_loss_curves_are_compared_with_the_distance_of_two_seeds(distance: float, expected: str) -> None:
    distances = {"mean_distance_of_two_seeds": 0.3, "largest_distance_of_two_seeds": 0.5, "compared_steps": 40}
    distances |= {"mean_distance_of_ours": distance, "largest_distance_of_ours": 0.5}
    curves = {"reference 1": [9.0, 8.0, 7.0, 6.0], "ours 1": [9.0, 8.0, 6.5, 5.5], "reference 2": [9.0, 8.0, 6.0, 5.0]}
    rows = [{"name": name, "losses": losses, "last": losses[-1]} for name, losses in curves.items()]
    text = write_curves(ABOUT | {"date": "2026-01-01", "rows": rows, "distances": distances})
    assert expected in text
    assert "of the second half by seed: regard 6.00; reference 5.50, 6.50." in text
    assert "All curves" not in text
    rows[1]["losses"] = [9.0, 8.0, 5.0, 4.0]
    text = write_curves(ABOUT | {"date": "2026-01-01", "rows": rows, "distances": distances})
    assert "All curves of regard lie below the reference, which happens by chance in 2 of 3 orders." in text


def test_all_curves_are_compared_with_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    training = importlib.import_module("training")
    ends = {"reference 1": 6.0, "reference 2": 5.0, f"{training.FASTEST} 1": 5.5, f"{training.FASTEST} 2": 7.0}
    rows = [{"name": name, "losses": [9.0, end]} for name, end in ends.items()]
    assert training.compare_curves(rows) == {
        "mean_distance_of_two_seeds": 1.0,
        "largest_distance_of_two_seeds": 1.0,
        "mean_distance_of_ours": 1.0,
        "largest_distance_of_ours": 2.0,
        "compared_steps": 20,
    }


def make_options(out: Path) -> Namespace:
    return Namespace(device="cpu", preset="toy", tokens=256, curve=False, merge=True, out=out)


def test_training_rows_that_are_not_measured_again_keep_their_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    training = importlib.import_module("training")
    target = tmp_path / "training-cpu.json"
    training.Results(make_options(target)).keep({"name": "ours", "peer": False})
    found = json.loads(target.read_text("utf-8"))
    found["date"] = "2026-01-01"
    del found["rows"][0]["date"]  # as rows were before each had its own
    target.write_text(json.dumps(found), "utf-8")
    training.Results(make_options(target)).keep({"name": "theirs", "peer": True})
    merged = json.loads(target.read_text("utf-8"))
    assert [row["date"] for row in merged["rows"]] == ["2026-01-01", merged["date"]]
    assert dates_of(merged) == f"2026-01-01 to {merged['date']}"
    target.write_text(json.dumps(merged | {"machine": "another"}), "utf-8")
    with pytest.raises(SystemExit, match="is of another machine or PyTorch"):
        training.Results(make_options(target))


def test_note_is_kept_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    training, target = importlib.import_module("training"), tmp_path / "training-cpu.json"
    results = training.Results(make_options(target))
    results.all["note"] = "said by hand"
    results.keep({"name": "ours", "peer": False})
    training.Results(make_options(target)).keep({"name": "theirs", "peer": True})
    assert json.loads(target.read_text("utf-8"))["note"] == "said by hand"


@pytest.mark.parametrize(
    ("module", "kernel", "group"),
    [
        ("ops/triton/varlen_attention.py", "varlen_forward", "attention"),
        ("ops/triton/varlen_attention.py", "varlen_backward_sequences", "attention"),
        ("ops/triton/varlen_attention.py", "varlen_backward_keys", "attention"),
        ("ops/triton/key_ranges.py", "find_key_ranges", "attention"),
        ("ops/triton/add_norm.py", "add_norm_backward", "Add & Norm"),
        ("ops/triton/linear_backward.py", "matmul_relu_backward", "linear layers"),
        ("ops/triton/cross_entropy.py", "cross_entropy_two_reads", "cross-entropy"),
        ("ops/triton/cross_entropy.py", "cross_entropy_one_read", "cross-entropy"),
    ],
)
def test_profile_groups_know_our_kernels(module: str, kernel: str, group: str) -> None:
    assert f"def {kernel}(" in (Path(regard.__file__).parent / module).read_text("utf-8")
    assert sum_by_group([(kernel, 2.0)], GROUPS, 3.0)[group] == 2.0


def test_compiled_systems_see_a_batch_of_different_sizes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    workload = importlib.import_module("training_workload")
    begin_with_unlike_sizes = workload.begin_with_unlike_sizes
    batches = workload.Workload(100, 512, 16, torch.device("cpu")).make("padded")
    alike = [i for i, batch in enumerate(batches) if batch.source.shape[1] == batch.inputs.shape[1]]
    assert alike, "the test needs such a batch"
    turned = batches[alike[0] :] + batches[: alike[0]]
    found = begin_with_unlike_sizes(turned)
    assert len({*found[0].source.shape, *found[0].inputs.shape}) == 3
    assert sorted(map(id, found)) == sorted(map(id, batches))
    assert begin_with_unlike_sizes(batches[alike[0] : alike[0] + 1]) == batches[alike[0] : alike[0] + 1]


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
