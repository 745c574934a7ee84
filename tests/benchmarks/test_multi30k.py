"""benchmarks/multi30k.py and its report."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import multi30k as script
from benchmarks.reports import multi30k as report
from benchmarks.side_by_side import Job, run_stages
from regard.training.tasks.registry import load_recipe

TINY = ("training.steps=2", "training.validate_every=2", "batch.tokens=256", "training.device=cpu", "search.beam=1")
PAIRS = [
    ("a dog runs .", "ein hund rennt ."),
    ("two cats sleep .", "zwei katzen schlafen ."),
    ("a man .", "ein mann ."),
]


def arguments(folder: Path, *names: str, **changes: Any) -> argparse.Namespace:
    values = {"data": folder, "out": folder / "out", "names": names, "seed": [1], "changes": [*TINY], "test": True}
    return argparse.Namespace(**values | {"teach": None} | changes)


@pytest.mark.parametrize("name", [name for name in script.CONFIGURATIONS if name != "all"])
def test_configurations_have_valid_recipes(name: str) -> None:
    configuration = script.CONFIGURATIONS[name]
    assert configuration.keys() <= {"set", "first", "then", "teachers"}
    for phase in ("first", "then"):
        changes = [*script.CONFIGURATIONS["all"], *configuration.get("set", []), *configuration.get(phase, [])]
        training = load_recipe(Path("multi30k-en-de"), changes).training
        assert training.steps % training.validate_every == 0
    if "teachers" in configuration:
        assert "teachers" not in script.CONFIGURATIONS[configuration["teachers"]["name"]]


def test_teachers_are_trained_once_and_before_their_students(tmp_path: Path) -> None:
    stages = script.plan(arguments(tmp_path, "rehearsal", "plain", "rehearsal-teacher", seed=[1, 2]))
    names = [[job.name for job in stage] for stage in stages]
    teachers = ["rehearsal-teacher-seed1", "rehearsal-teacher-backward-seed1"]
    assert stages[0][1].words[-4:] == ("--backward", "--teach", "2", "train")
    assert names == [
        [*teachers, "plain-seed1", "plain-seed2", "rehearsal-teacher-seed2"],
        ["rehearsal-seed1", "rehearsal-seed2"],
    ]


def test_student_is_trained_on_translations_of_both_directions(tmp_path: Path) -> None:
    for split, number in (("train", 20), ("val", 1), ("test_2016_flickr", 1)):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in PAIRS) * number
            (tmp_path / f"{split}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    out = tmp_path / "out"
    script.run_configuration(arguments(tmp_path, "rehearsal-teacher", teach=["2", "train"]))
    script.run_backward_teacher(arguments(tmp_path, "rehearsal-teacher", teach=["2", "train"]))
    script.run_configuration(arguments(tmp_path, "rehearsal"))
    for folder, side in (("rehearsal-teacher-seed1", 0), ("rehearsal-teacher-backward-seed1", 1)):
        rows = [line.split("\t") for line in (out / folder / "train.tsv").read_text("utf-8").splitlines()]
        assert [row[0] for row in rows] == [pair[side] for pair in PAIRS] * 20
        assert all(len(row) == 2 for row in rows)
    corpora = script.list_corpora(out, "rehearsal", tmp_path)
    assert [corpus.get("columns") for corpus in corpora] == [None, [0, 1], [1, 0]]
    result = json.loads((out / "rehearsal-seed1.json").read_text())
    assert result["score"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none")
    assert list(result["val"]) == [str(alpha) for alpha in script.ALPHAS]


def test_jobs_that_fail_or_run_out_of_time_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("good", ("-c", "")), Job("bad", ("-c", "raise SystemExit('no data')"))]
    assert run_stages([jobs], tmp_path, 2, 60, mps=False) == 1
    assert capsys.readouterr().out == "bad: failed: ['no data']\n"
    assert run_stages([[Job("slow", ("-c", "import time; time.sleep(60)"))]], tmp_path, 1, 0.2, mps=False) == 1
    assert capsys.readouterr().out == "slow: out of time: []\n"


def result(val: float, test: float | None, **configuration: Any) -> dict[str, Any]:
    score = {} if test is None else {"score": {"value": test, "signature": "tok:none"}}
    about = {"configuration": {"all": ["model.width=256"], **configuration}, "training_seconds": 60.0}
    return about | {"val": {"0.6": val - 1, "1.0": val}, "versions": {"torch": "2"}, "date": "2026"} | score


def test_report_has_the_mean_and_the_spread_of_the_seeds() -> None:
    found = {"weak-seed1": result(40, 50.0), "strong-seed1": result(42, 41.0, set=["a=1"])}
    found |= {"strong-seed2": result(43, 42.0, set=["a=1"]), "untested-seed1": result(44, None)}
    text = report.write_configurations(found)
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows[1] == "| untested |  | 1 | 44.00 |  |  |  | 60 |"
    assert rows[2] == "| strong | `a=1` | 2 | 42.50 | **41.50** | 0.71 | 41.00, 42.00 | 60 |"
    assert report.best_configuration(found, seeds=2) == [found["strong-seed1"], found["strong-seed2"]]
    assert report.best_configuration(found) == []
