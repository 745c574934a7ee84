"""Contract 5: killed at any step and started again with the same command, training ends in the same weights."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.training.run import run_recipe
from tests.conftest import ENVIRONMENT, SMALL, Command, settings_of, small_recipe
from tests.forks import Forked
from tests.images import TINY

Death = dict[str, Any]
DRIVER = Path(__file__).with_name("killing.py")
STEPS = 40
LIVELY = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "batch.tokens": 128,
    "model.dropout": 0.2,
    "model.attention_dropout": 0.1,
    "optim.accumulate": 2,
    "training.average": 0.5,
    "objective.scheduled_sampling.half_life": 10,
    "objective.guided_attention.steps": 30,
    "objective.r_drop": 0.5,
    "training.steps": STEPS,
    "training.validate_every": 8,
    "training.valid_sentences": 4,
    "training.log_every": 3,
    "training.checkpoint_every": 1,
}


def words(toy: Path, out: Path, **changes: object) -> list[str]:
    settings = settings_of(SMALL | LIVELY | {key.replace("__", "."): value for key, value in changes.items()})
    return ["train", "--src", str(toy / "train.en"), "--tgt", str(toy / "train.zh"), "--out", str(out), *settings]


def image_words(images: Path, out: Path) -> list[str]:
    lively = {"model.drop_path": 0.2, "augmentation.preset": "strong", "optim.accumulate": 2, "training.ema": 0.9}
    often = {f"training.{key}_every": steps for key, steps in {"validate": 4, "log": 3, "checkpoint": 1}.items()}
    settings = settings_of(TINY | lively | often | {"training.steps": 12})
    return ["train", "--data", str(images), "--out", str(out), *settings]


def drive(plan: list[Death], command: list[str], folder: Path) -> tuple[list[tuple[int, str]], str]:
    """Carries out a plan of killings; returns how each process ended and all that was said."""
    (folder / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, DRIVER, folder / "plan.json", *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT | {"PYTHONPATH": str(DRIVER.parents[2])},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def results(out: Path) -> dict[str, bytes]:
    """Everything that a run has learned: its models, and the tensors that its last checkpoint holds."""
    place = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    files = [*(out / "best").iterdir(), *(out / "last").iterdir(), place / "state.safetensors"]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def log(out: Path) -> list[dict[str, object]]:
    """The log without what depends on the clock and the machine."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = ("seconds", "tokens_per_second", "images_per_second", "memory")
    return [{key: value for key, value in entry.items() if key not in measured} for entry in entries]


@pytest.fixture(scope="module")
def whole(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **LIVELY), out)
    return out


def assert_same_as(whole: Path, out: Path) -> None:
    assert results(out) == results(whole)
    assert log(out) == log(whole)
    hidden = list(out.rglob(".*"))
    assert not hidden, "what killed processes left is cleared away"


def plan_calls() -> list[Death]:
    """The first 20 calls one by one, which are those of a beginning and of the first saves; each kind; then any."""
    chance = random.Random(5)
    kinds = ("save_file", "rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
    return [
        *({"call": number} for number in range(1, 21)),
        *({"call": number, "of": kind} for number in (3, 4) for kind in kinds),
        *({"call": chance.randint(8, 40)} for _ in range(6)),
    ]


def plan_times() -> list[Death]:
    chance = random.Random(6)
    return [{"seconds": chance.uniform(0.1, 0.4)} for _ in range(14)]


@pytest.mark.parametrize(
    ("plan", "workers"),
    [(plan_calls(), 0), (plan_calls()[20:], 2), (plan_times(), 0), (plan_times()[:7], 2)],
    ids=["inside saves", "inside saves, with workers", "at random times", "at random times, with workers"],
)
def test_killed_and_started_again_it_ends_in_the_same_weights(
    plan: list[Death], workers: int, toy: Path, tmp_path: Path, whole: Path
) -> None:
    ends, said = drive(plan, words(toy, tmp_path / "run", training__workers=workers), tmp_path)
    killed = [call for status, call in ends if status == signal.SIGKILL]
    assert ends[-1] == [0, ""]
    if "call" in plan[0]:
        assert len(killed) == len(plan) >= 20
        assert {"save_file", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir"} == set(killed)
        assert len(set(re.findall(r"resuming from step (\d+)", said))) >= len(plan) // 4
    else:
        assert len(killed) >= 2  # on a quick machine it has ended by then
    assert "Traceback" not in said
    assert_same_as(whole, tmp_path / "run")


def test_a_run_on_images_ends_in_the_same_weights_too(painted: Path, tmp_path: Path, command: Command) -> None:
    assert command(*image_words(painted, tmp_path / "whole")).code == 0
    # What is made of the images, which is a run's own; then some saves, which are those of every run.
    plan: list[Death] = [
        *({"call": number} for number in (4, 8, 12)),
        *({"call": 4, "of": "replace"} for _ in range(3)),
    ]
    ends, said = drive(plan, image_words(painted, tmp_path / "killed"), tmp_path)
    assert [status for status, _ in ends] == [signal.SIGKILL] * len(plan) + [0]
    assert len(set(re.findall(r"resuming from step (\d+)", said))) >= 2
    assert "Traceback" not in said
    assert_same_as(tmp_path / "whole", tmp_path / "killed")


def test_a_run_that_is_asked_to_stop_saves_first_and_goes_on(toy: Path, tmp_path: Path, whole: Path) -> None:
    validating = {"call": 1, "of": "save_file"}  # the first model that a process writes: at step 8, then at step 16
    plan = [validating | {"signal": signal.SIGTERM}, validating | {"signal": signal.SIGINT}]
    # How often to save is one of the settings that may differ from those of the whole run.
    ends, said = drive(plan, words(toy, tmp_path / "run", training__checkpoint_every=1000), tmp_path)
    assert [os.waitstatus_to_exitcode(status) for status, _ in ends] == [143, 130, 0]
    assert re.findall(r"^saved at step (\d+); the same command resumes from there$", said, re.M) == ["8", "16"]
    assert re.findall(r"^resuming from step (\d+)$", said, re.M) == ["8", "16"]
    assert "regard: interrupted\n" in said
    assert "Traceback" not in said
    assert_same_as(whole, tmp_path / "run")


def test_a_checkpoint_that_finds_no_room_ends_the_run_and_the_one_before_it_is_used(
    toy: Path, tmp_path: Path, whole: Path
) -> None:
    state = next((whole / "checkpoints").glob("step-*/state.safetensors")).stat().st_size
    model = (whole / "last" / "model.safetensors").stat().st_size
    plan = [{"call": 3, "of": "save_file"}, {"limit": (state + model) // 2}]
    ends, said = drive(plan, words(toy, tmp_path / "run"), tmp_path)
    assert [os.waitstatus_to_exitcode(status) for status, _ in ends] == [-9, 2, 0]
    (sentence,) = re.findall("^regard: .*$", said, re.M)
    assert "checkpoints/step-00000003: could not be written (" in sentence
    assert "File too large" in sentence
    assert sentence.endswith("the same command resumes from step-00000002")
    assert "Traceback" not in said
    assert_same_as(whole, tmp_path / "run")


def test_two_processes_do_not_train_in_one_folder(
    toy: Path, tmp_path: Path, fork: Callable[..., Forked], command: Command
) -> None:
    endless = words(toy, tmp_path / "run", training__steps=100_000, training__checkpoint_every=100_000)
    process = fork(*endless)
    for line in process.stdout:
        if line.startswith("step "):
            break
    assert "another process is training here" in command(*endless).error
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
