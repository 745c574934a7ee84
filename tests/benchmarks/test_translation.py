"""benchmarks/translation.py and the report on its results."""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from benchmarks import translation as script
from benchmarks.reports import configurations as report
from benchmarks.side_by_side import Job, run_jobs
from regard.training.tasks.registry import load_recipe

TINY = ("training.steps=2", "training.validate_every=2", "batch.tokens=256", "training.device=cpu", "search.beam=1")
SMALL = ("model.width=16", "model.hidden=16", "model.heads=2", "tokenizer.size=400")
PAIRS = [("a dog runs .", "ein hund rennt ."), ("two cats sleep .", "zwei katzen schlafen ."), ("a man", "ein mann")]
TABLES = {path.stem: script.Table.load(path.stem) for path in script.FOLDER.glob("*.yaml")}
MULTI30K = TABLES["multi30k"]


def arguments(table: str, folder: Path, *names: str, **changes: Any) -> argparse.Namespace:
    values = {"table": table, "data": folder, "out": folder / "out", "names": names, "seed": [1], "teach": None}
    return argparse.Namespace(**values | {"changes": [*TINY], "test": True, "reverse": False} | changes)


def write_splits(table: script.Table, folder: Path, train: int = 20) -> None:
    for name in table.sets:
        for split, number in enumerate((train, 1, 1)):
            for side, path in enumerate(table.files(folder, name, split)):
                text = "".join(f"{pair[side]}\n" for pair in PAIRS) * number
                path.parent.mkdir(parents=True, exist_ok=True)
                compress = gzip.compress if path.suffix == ".gz" else lzma.compress
                path.write_bytes(compress(text.encode()))


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in TABLES for name in TABLES[table].configurations]
)
def test_configurations_have_valid_recipes(table: str, name: str) -> None:
    configuration = TABLES[table].configurations[name]
    for phase in ((), configuration.first or (), configuration.then):
        changes = [*TABLES[table].all, *configuration.set, *phase]
        training = load_recipe(Path(TABLES[table].recipe), changes).training
        assert training.steps % training.validate_every == 0
    if configuration.teachers is not None:
        assert TABLES[table].configurations[configuration.teachers.name].teachers is None


def test_teachers_are_trained_once_and_before_their_students(tmp_path: Path) -> None:
    jobs = script.plan(
        MULTI30K, arguments("multi30k", tmp_path, "rehearsal", "plain", "rehearsal-teacher", seed=[1, 2])
    )
    teachers = ["rehearsal-teacher-seed1", "rehearsal-teacher-backward-seed1"]
    assert jobs[1].words[-4:] == ("--backward", "--teach", "2", "train")
    plain, students = ["plain-seed1", "plain-seed2", "rehearsal-teacher-seed2"], ["rehearsal-seed1", "rehearsal-seed2"]
    assert [job.name for job in jobs] == [*teachers, *plain, *students]
    assert [job.after for job in jobs] == [()] * 5 + [tuple(teachers)] * 2


def test_student_is_trained_on_translations_of_both_directions(tmp_path: Path) -> None:
    write_splits(MULTI30K, tmp_path)
    out = tmp_path / "out"
    taught = arguments("multi30k", tmp_path, teach=["2", "train"])
    script.run_configuration(MULTI30K, taught, "rehearsal-teacher", 1)
    script.train_backward_teacher(MULTI30K, taught, "rehearsal-teacher", 1)
    script.run_configuration(MULTI30K, arguments("multi30k", tmp_path), "rehearsal", 1)
    for folder, side in (("rehearsal-teacher-seed1", 0), ("rehearsal-teacher-backward-seed1", 1)):
        rows = [line.split("\t") for line in (out / folder / "train.tsv").read_text("utf-8").splitlines()]
        assert [row[0] for row in rows] == [pair[side] for pair in PAIRS] * 20
        assert all(len(row) == 2 for row in rows)
    corpora = script.list_corpora(MULTI30K, out, "rehearsal", tmp_path)
    assert [corpus.get("columns") for corpus in corpora] == [None, [0, 1], [1, 0]]
    result = json.loads((out / "rehearsal-seed1.json").read_text())
    assert result["score"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none")
    assert list(result["val"]) == [str(alpha) for alpha in script.ALPHAS]


@pytest.mark.parametrize(("reverse", "tokeniser"), [(False, "tok:zh"), (True, "tok:13a")])
def test_joint_model_is_scored_on_every_set(tmp_path: Path, reverse: bool, tokeniser: str) -> None:
    table = script.Table.load("en-zh", reverse)
    write_splits(table, tmp_path, train=5)
    given = arguments("en-zh", tmp_path, changes=[*TINY, *SMALL, "objective.r_drop=0"])
    script.run_configuration(table, given, "joint", 1)
    result = json.loads((tmp_path / "out" / "joint-seed1.json").read_text())
    assert list(result["sets"]) == ["tatoeba", "3am", "pydocs"]
    for scored in result["sets"].values():
        assert tokeniser in scored["score"]["signature"]
        assert scored["chrf"]["metric"] == "chrF2"
    valid = (tmp_path / "out" / "joint-seed1" / f"run-valid.{table.languages[0]}").read_text().splitlines()
    assert len(valid) == 3 * len(PAIRS)


def test_jobs_that_fail_or_run_out_of_time_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("good", ("-c", "")), Job("bad", ("-c", "raise SystemExit('no data')"))]
    jobs += [Job("late", ("-c", ""), after=("good", "bad")), Job("next", ("-c", ""), after=("good",))]
    assert run_jobs(jobs, tmp_path, 1, 60, mps=False) == 2
    out = "bad: failed: ['no data']\nlate: not started, because bad did not finish\n"
    assert capsys.readouterr().out == out
    assert run_jobs([Job("slow", ("-c", "import time; time.sleep(60)"))], tmp_path, 1, 0.2, mps=False) == 1
    assert capsys.readouterr().out == "slow: out of time: []\n"


def result(val: float, test: float | None, **configuration: Any) -> dict[str, Any]:
    score = {} if test is None else {"score": {"value": test, "signature": "tok:none"}}
    about = {"configuration": {"all": ["model.width=256"], **configuration}, "training_seconds": 60.0}
    return about | {"val": {"0.6": val - 1, "1.0": val}, "versions": {"torch": "2"}, "date": "2026"} | score


def test_report_has_the_mean_and_the_spread_of_the_seeds() -> None:
    found = {"weak-seed1": result(40, 50.0), "strong-seed1": result(42, 41.0, set=["a=1"])}
    found |= {"strong-seed2": result(43, 42.0, set=["a=1"]), "untested-seed1": result(44, None)}
    text = report.write_configurations("multi30k", "Scores", found)
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows[1] == "| untested |  | 1 | 44.00 |  |  |  | 60 |"
    assert rows[2] == "| strong | `a=1` | 2 | 42.50 | **41.50** | 0.71 | 41.00, 42.00 | 60 |"
    assert report.best_configuration(found, seeds=2) == [found["strong-seed1"], found["strong-seed2"]]
    assert report.best_configuration(found) == []


def test_report_has_a_row_for_every_test_set() -> None:
    alone, joint = result(40, 41.0), result(30, 31.0)
    sets = {"sets": {"a": {"val": {"1.0": 20}, "score": joint["score"], "chrf": {"value": 55.5}}}}
    joint = {key: value for key, value in joint.items() if key not in ("val", "score")} | sets
    rows = report.write_configurations("en-zh", "Scores", {"joint-seed1": joint, "one-seed1": alone}).splitlines()
    assert "| joint, a |  | 1 | 20.00 | **31.00** |  | 31.00 | 60 |" in rows
