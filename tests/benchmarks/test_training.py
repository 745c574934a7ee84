"""benchmarks/training.py: result files, comparison of loss curves, batches and report."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from benchmarks import training
from benchmarks.reports.kernels import sum_by_group
from benchmarks.reports.markdown import dates_of
from benchmarks.reports.training import GROUPS, write_curves
from benchmarks.training_workload import Workload, rotate_to_distinct_sizes

ABOUT: dict[str, Any] = {"what": "work", "machine": "a machine", "versions": {"torch": "2.11"}, "date": "2026-01-01"}


def make_results(path: Path) -> training.Results:
    options = Namespace(device="cpu", preset="toy", tokens=256, curve=False, merge=True, out=path)
    return training.Results(options)


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return result


def test_merged_rows_keep_their_date(tmp_path: Path) -> None:
    path = tmp_path / "training-cpu.json"
    make_results(path).add({"name": "ours", "other_library": False})
    result = read(path)
    result["date"] = "2026-01-01"
    del result["rows"][0]["date"]
    path.write_text(json.dumps(result), "utf-8")
    make_results(path).add({"name": "theirs", "other_library": True})
    merged = read(path)
    assert [row["date"] for row in merged["rows"]] == ["2026-01-01", merged["date"]]
    assert dates_of(merged) == f"2026-01-01 to {merged['date']}"


def test_rows_of_another_machine_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "training-cpu.json"
    make_results(path).add({"name": "ours", "other_library": False})
    path.write_text(json.dumps(read(path) | {"machine": "another"}), "utf-8")
    with pytest.raises(SystemExit, match="was measured on another machine"):
        make_results(path)


def test_merging_keeps_the_note(tmp_path: Path) -> None:
    path = tmp_path / "training-cpu.json"
    results = make_results(path)
    results.result["note"] = "written by hand"
    results.add({"name": "ours", "other_library": False})
    make_results(path).add({"name": "theirs", "other_library": True})
    assert read(path)["note"] == "written by hand"


def test_all_curves_are_compared_with_all_references() -> None:
    ends = {"reference 1": 6.0, "reference 2": 5.0, f"{training.FASTEST} 1": 5.5, f"{training.FASTEST} 2": 7.0}
    rows = [{"name": name, "losses": [9.0, end]} for name, end in ends.items()]
    assert training.compare_curves(rows) == {
        "mean_distance_of_two_seeds": 1.0,
        "largest_distance_of_two_seeds": 1.0,
        "mean_distance_of_ours": 1.0,
        "largest_distance_of_ours": 2.0,
        "compared_steps": 20,
    }


@pytest.mark.parametrize(
    ("distance", "expected"),
    [(0.2, "is not larger than between two seeds"), (0.4, "is larger by 0.1000 than between two seeds")],
)
def test_report_compares_curves_with_the_distance_of_two_seeds(distance: float, expected: str) -> None:
    distances = {"mean_distance_of_two_seeds": 0.3, "largest_distance_of_two_seeds": 0.5, "compared_steps": 40}
    distances |= {"mean_distance_of_ours": distance, "largest_distance_of_ours": 0.5}
    curves = {"reference 1": [9.0, 8.0, 7.0, 6.0], "ours 1": [9.0, 8.0, 6.5, 5.5], "reference 2": [9.0, 8.0, 6.0, 5.0]}
    rows = [{"name": name, "losses": losses, "last": losses[-1]} for name, losses in curves.items()]
    text = write_curves(ABOUT | {"rows": rows, "distances": distances})
    assert expected in text
    assert "of the second half by seed: regard 6.00; reference 5.50, 6.50." in text
    assert "All curves" not in text
    rows[1]["losses"] = [9.0, 8.0, 5.0, 4.0]
    text = write_curves(ABOUT | {"rows": rows, "distances": distances})
    assert "All curves of regard lie below the reference, which happens by chance in 2 of 3 orders." in text


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
def test_profile_groups_contain_our_kernels(module: str, kernel: str, group: str) -> None:
    assert f"def {kernel}(" in (Path(regard.__file__).parent / module).read_text("utf-8")
    assert sum_by_group([(kernel, 2.0)], GROUPS, 3.0)[group] == 2.0


def test_first_batch_for_compilation_has_distinct_sizes() -> None:
    batches = Workload(100, 512, 16, torch.device("cpu")).make("padded")
    equal = [i for i, batch in enumerate(batches) if batch.source.shape[1] == batch.inputs.shape[1]]
    assert equal, "the test needs a batch with equal lengths"
    rotated = rotate_to_distinct_sizes(batches[equal[0] :] + batches[: equal[0]])
    assert len({*rotated[0].source.shape, *rotated[0].inputs.shape}) == 3
    assert sorted(map(id, rotated)) == sorted(map(id, batches))
    assert rotate_to_distinct_sizes([batches[equal[0]]]) == [batches[equal[0]]]
