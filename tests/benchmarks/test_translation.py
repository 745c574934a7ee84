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
    values = {"table": table, "data": folder, "out": folder / "out", "names": names, "seed": [1]}
    return argparse.Namespace(**values | {"changes": [*TINY], "test": True, "reverse": False} | changes)


def write_splits(table: script.Table, folder: Path, train: int = 20) -> None:
    for name in table.sets:
        for split, number in enumerate((train, 1, 1)):
            for side, path in enumerate(table.files(folder, name, split)):
                text = "".join(f"{pair[side]}\n" for pair in PAIRS) * number
                path.parent.mkdir(parents=True, exist_ok=True)
                suffix, compress = (".gz", gzip.compress) if split else (".xz", lzma.compress)
                path.with_name(path.name + suffix).write_bytes(compress(text.encode()))


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in TABLES for name in TABLES[table].configurations]
)
def test_configurations_have_valid_recipes(table: str, name: str) -> None:
    configuration = TABLES[table].configurations[name]
    for phase in ((), configuration.first or (), configuration.then):
        changes = [*TABLES[table].all, *configuration.set, *phase]
        training = load_recipe(Path(TABLES[table].recipe), changes).training
        assert training.steps % training.validate_every == 0
    used = [teachers.name for teachers in configuration.teachers] + [configuration.init, configuration.encoder]
    assert set(used) - {None} <= TABLES[table].configurations.keys()


def test_teachers_are_trained_once_and_before_their_students(tmp_path: Path) -> None:
    given = arguments("multi30k", tmp_path, "rehearsal", "plain", "rehearsal-teacher", seed=[1, 2])
    jobs = {job.name: job for job in script.plan(MULTI30K, given)}
    texts = ["rehearsal-teacher-ensemble-train-beam1", "rehearsal-teacher-backward-seed1-train-beam2"]
    assert list(jobs) == [
        *("plain-seed1", "rehearsal-teacher-seed1", "plain-seed2", "rehearsal-teacher-seed2", texts[0]),
        *("rehearsal-teacher-backward-seed1", texts[1], "rehearsal-seed1", "rehearsal-seed2"),
    ]
    assert jobs[texts[0]].after == ("rehearsal-teacher-seed1", "rehearsal-teacher-seed2")
    assert jobs["rehearsal-seed2"].after == (*texts, "rehearsal-teacher-seed2")
    (tmp_path / "out").mkdir()
    for name in ("rehearsal-teacher-seed1.json", f"{texts[0]}.tsv", f"{texts[1]}.tsv"):
        (tmp_path / "out" / name).write_text("finished")
    jobs = {job.name: job for job in script.plan(MULTI30K, given)}
    assert list(jobs) == ["plain-seed1", "plain-seed2", "rehearsal-teacher-seed2", "rehearsal-seed1", "rehearsal-seed2"]
    assert jobs["rehearsal-seed1"].after == ()
    assert jobs["rehearsal-seed2"].after == ("rehearsal-teacher-seed2",)


def test_student_is_trained_on_translations_of_both_directions(tmp_path: Path) -> None:
    write_splits(MULTI30K, tmp_path)
    out = tmp_path / "out"
    for job in script.plan(MULTI30K, arguments("multi30k", tmp_path, "rehearsal")):
        script.main([word for word in job.words if word != script.__file__])
    for name, side in (("ensemble-train-beam1", 0), ("backward-seed1-train-beam2", 1)):
        text = (out / f"rehearsal-teacher-{name}.tsv").read_text("utf-8")
        rows = [line.split("\t") for line in text.splitlines()]
        assert [row[0] for row in rows] == [pair[side] for pair in PAIRS] * 20
        assert all(len(row) == 2 for row in rows)
    corpora = script.list_corpora(MULTI30K, out, script.Run("rehearsal", 1), tmp_path)
    assert [(corpus.get("columns"), corpus["weight"]) for corpus in corpora] == [(None, 2), ([0, 1], 1), ([1, 0], 1)]
    result = json.loads((out / "rehearsal-seed1.json").read_text())
    assert result["score"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none")
    assert 0 <= result["val"] <= 100
    assert "score" not in json.loads((out / "rehearsal-teacher-backward-seed1.json").read_text())


def test_non_autoregressive_student_is_scored_with_every_search(tmp_path: Path) -> None:
    table, out = TABLES["multi30k-nat"], tmp_path / "out"
    write_splits(table, tmp_path)
    given = arguments("multi30k-nat", tmp_path, "rehearsal-distilled", seed=[2])
    jobs = script.plan(table, given)
    teaching = "rehearsal-teacher-seed1-train-beam2"
    assert [job.name for job in jobs] == ["rehearsal-teacher-seed1", teaching, "rehearsal-distilled-seed2"]
    for job in jobs:
        script.main([word for word in job.words if word != script.__file__])
    (corpus,) = script.list_corpora(table, out, script.Run("rehearsal-distilled", 2), tmp_path)
    assert corpus["source"] == str(out / f"{teaching}.tsv")
    assert load_recipe(out / "rehearsal-distilled-seed2" / "run" / "recipe.yaml").init.parts == "encoder"
    result = json.loads((out / "rehearsal-distilled-seed2.json").read_text())
    assert list(result["searches"]) == ["greedy", "lookahead", "viterbi", "beam 5"]
    best = result["searches"][result["search"]]
    assert (result["val"], result["score"]) == (best["val"], best["score"])
    assert best["val"] == max(each["val"] for each in result["searches"].values())


def test_best_model_of_a_stopped_run_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_splits(MULTI30K, tmp_path)
    given, run = arguments("multi30k", tmp_path, "rehearsal-teacher"), script.Run("rehearsal-teacher", 1)
    train = script.train

    def train_and_stop(*values: Any) -> None:
        train(*values)
        raise script.Interrupted(15)

    with monkeypatch.context() as patched, pytest.raises(SystemExit, match="the best model so far was scored"):
        patched.setattr(script, "train", train_and_stop)
        script.train_configuration(MULTI30K, given, run)
    assert 0 <= json.loads((tmp_path / "out" / f"{run}.stopped.json").read_text())["val"] <= 100
    assert [job.name for job in script.plan(MULTI30K, given)] == [str(run)]  # the same command continues


@pytest.mark.parametrize(("reverse", "tokenizer"), [(False, "tok:zh"), (True, "tok:13a")])
def test_joint_model_is_scored_on_every_set(tmp_path: Path, reverse: bool, tokenizer: str) -> None:
    table = script.Table.load("en-zh", reverse)
    write_splits(table, tmp_path, train=5)
    given = arguments("en-zh", tmp_path, changes=[*TINY, *SMALL, "objective.r_drop=0"])
    script.train_configuration(table, given, script.Run("joint", 1))
    result = json.loads((tmp_path / "out" / "joint-seed1.json").read_text())
    assert list(result["sets"]) == ["tatoeba", "3am", "pydocs"]
    for scored in result["sets"].values():
        assert tokenizer in scored["score"]["signature"]
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
    return about | {"val": val, "versions": {"torch": "2"}, "date": "2026"} | score


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
    sets = {"sets": {"a": {"val": 20.0, "score": joint["score"], "chrf": {"value": 55.5}}}}
    joint = {key: value for key, value in joint.items() if key not in ("val", "score")} | sets
    rows = report.write_configurations("en-zh", "Scores", {"joint-seed1": joint, "one-seed1": alone}).splitlines()
    assert "| joint, a |  | 1 | 20.00 | **31.00** |  | 31.00 | 60 |" in rows
