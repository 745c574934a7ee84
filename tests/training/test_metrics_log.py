"""The metrics of a run: log.jsonl, TensorBoard events, samples."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.training.metrics_log import MetricsLog
from regard.training.progress import Progress, Sample
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.task import sample_indices
from tests.conftest import SMALL, settings_of
from tests.forks import Forked
from tests.training.test_loop import log

QUICK = {"training__steps": 8, "training__validate_every": 4, "training__log_every": 2, "optim__schedule": "constant"}


def read_events(out: Path) -> Any:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(out / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def test_tensorboard_has_every_metric_and_the_samples(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_recipe(make_recipe(**QUICK, training__tensorboard=True), tmp_path / "run")
    entries, board = log(tmp_path / "run"), read_events(tmp_path / "run")
    for name in ("loss", "lr", "gradient_norm", "tokens_per_second", "memory"):
        expected = [(entry["step"], entry[name]) for entry in entries if name in entry]
        found = [(event.step, event.value) for event in board.Scalars(f"training/{name}")]
        assert found == [(step, pytest.approx(value, rel=1e-5)) for step, value in expected]
        assert len(found) == 5
    assert [event.step for event in board.Scalars("validation/bleu")] == [4, 8]
    text = board.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    last = [entry["samples"] for entry in entries if "samples" in entry][-1]
    assert all(sample["source"] in text for sample in last)
    assert (tmp_path / "run" / "log.jsonl").exists()


def test_resumed_run_logs_no_step_twice(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = {"training__tensorboard": True, "training__keep_checkpoints": 9, "training__checkpoint_every": 4}
    run_recipe(make_recipe(**QUICK | board), tmp_path / "run")
    for name in ("step-00000008",):  # as if killed before this checkpoint was saved
        (tmp_path / "run" / "checkpoints" / name / "manifest.json").write_text("{}")
    (tmp_path / "run" / "checkpoints" / "last").write_text("step-00000004\n")
    run_recipe(make_recipe(**QUICK | board), tmp_path / "run")
    assert [event.step for event in read_events(tmp_path / "run").Scalars("training/loss")] == [1, 2, 4, 6, 8]
    assert [event.step for event in read_events(tmp_path / "run").Scalars("validation/bleu")] == [4, 8]


def test_missing_tensorboard_is_rejected_at_the_start(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"^training.tensorboard needs .*pip install 'regard\[watch\]'"):
        run_recipe(make_recipe(training__tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nan_and_infinity_are_logged_as_null(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path)
    metrics.write({"step": 1, "loss": math.nan, "validation": {"bleu": math.inf, "loss": 2.0}})
    assert log(tmp_path) == [{"step": 1, "loss": None, "validation": {"bleu": None, "loss": 2.0}}]
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()


# Samples


def test_every_validation_shows_the_same_sentences(trained_run: Path) -> None:
    samples = [entry["samples"] for entry in log(trained_run) if "samples" in entry]
    assert [len(some) for some in samples] == [3, 3, 3]
    first, *others = ([(one["source"], one["reference"]) for one in some] for some in samples)
    assert others == [first, first]
    assert len(set(first)) == 3
    assert samples[-1][0]["translation"] == samples[-1][0]["reference"]


def test_samples_are_evenly_spaced_and_limited_by_the_number_of_sentences() -> None:
    for number, total, expected in ((3, 10, [0, 3, 6]), (0, 10, []), (5, 2, [0, 1]), (1, 7, [0])):
        assert sample_indices(number, total) == expected


def test_each_sample_is_printed_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [Sample("a b", "x", "x"), Sample("c", "y", "z\nz"), Sample("w " * 99, "r", "t" * 99)]
    Progress(1).validated(1, {"bleu": 3.0}, samples)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "step 1  validation  bleu 3.00"
    assert lines[:2] == ["  a b  →  x", "  c  →  z z  (reference: y)"]
    assert len(lines) == 3
    assert "…" in lines[2]
    assert len(lines[2]) < 160


@pytest.mark.parametrize(("length", "shown"), [(60, "t" * 60), (61, "t" * 59 + "…")])
def test_long_samples_are_shortened(length: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1).validated(1, {"bleu": 3.0}, [Sample("s", "t" * length, "t" * length)])
    assert capsys.readouterr().out.splitlines()[1] == f"  s  →  {shown}"


# Closed standard output


def test_training_continues_when_standard_output_is_closed(
    toy: Path, tmp_path: Path, fork: Callable[..., Forked]
) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh", "--out", tmp_path / "run")
    quick = SMALL | {key.replace("__", "."): value for key, value in QUICK.items()}
    process = fork("train", *files, *settings_of(quick))
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert said == "regard: the output is no longer read; training and its log continue\n"
    assert process.wait(timeout=300) == 0
    assert log(tmp_path / "run")[-1]["step"] == 8
