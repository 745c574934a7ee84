"""Contract 5: killed at any step and restarted with the same command, training ends with bit-identical weights."""

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

from tests.conftest import ENVIRONMENT, SMALL, Command, settings_of
from tests.forks import Forked
from tests.images import TINY

Death = dict[str, Any]
DRIVER = Path(__file__).with_name("killing.py")
STEPS = 40
EVERYTHING = {
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
CALLS = ("save_file", "rename", "replace", "mkdir", "unlink", "rmdir", "fsync")


def text_command(toy: Path, out: Path, **changes: object) -> list[str]:
    settings = settings_of(SMALL | EVERYTHING | {key.replace("__", "."): value for key, value in changes.items()})
    return ["train", "--src", str(toy / "train.en"), "--tgt", str(toy / "train.zh"), "--out", str(out), *settings]


def image_command(images: Path, out: Path) -> list[str]:
    random_parts = {"model.drop_path": 0.2, "augmentation.preset": "strong"}
    averaged = {"optim.accumulate": 2, "training.ema": 0.9}
    frequent = {f"training.{key}_every": steps for key, steps in {"validate": 4, "log": 3, "checkpoint": 1}.items()}
    settings = settings_of(TINY | random_parts | averaged | frequent | {"training.steps": 12})
    return ["train", "--data", str(images), "--out", str(out), *settings]


def drive(plan: list[Death], command: list[str], folder: Path) -> tuple[list[tuple[int, str]], str]:
    """Run a command with the planned kills; return how each process ended and the output of all."""
    out = command[command.index("--out") + 1]
    (folder / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, DRIVER, folder / "plan.json", out, *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT | {"PYTHONPATH": str(DRIVER.parents[2])},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def results(out: Path) -> dict[str, bytes]:
    """Return the models of a run and the tensors of its last checkpoint."""
    checkpoint = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    files = [*(out / "best").iterdir(), *(out / "last").iterdir(), checkpoint / "state.safetensors"]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def log(out: Path) -> list[dict[str, object]]:
    """Return the log without time and memory."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = ("seconds", "tokens_per_second", "images_per_second", "memory")
    return [{key: value for key, value in entry.items() if key not in measured} for entry in entries]


@pytest.fixture(scope="module")
def uninterrupted(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted, in a process like those that are killed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    ends, output = drive([], text_command(toy, folder / "run"), folder)
    assert ends == [[0, ""]], output
    return folder / "run"


def assert_same_run(expected: Path, out: Path) -> None:
    assert results(out) == results(expected)
    assert log(out) == log(expected)
    assert not list(out.rglob(".*")), "temporary files of killed processes are removed"


def plan_calls() -> list[Death]:
    """Kill in each of the first 20 calls, which create the run and its first checkpoints; in each kind; at random."""
    rng = random.Random(5)
    return [
        *({"call": number} for number in range(1, 21)),
        *({"call": number, "of": kind} for number in (3, 4) for kind in CALLS),
        *({"call": rng.randint(8, 40)} for _ in range(6)),
    ]


def plan_steps() -> list[Death]:
    rng = random.Random(6)
    return [{"step": rng.randint(1, 6)} for _ in range(8)]


def plan_times() -> list[Death]:
    rng = random.Random(6)
    return [{"seconds": rng.uniform(0.1, 0.4)} for _ in range(10)]


@pytest.mark.parametrize(
    ("plan", "workers"),
    [(plan_calls(), 0), (plan_calls()[20:], 2), (plan_steps(), 0), (plan_steps(), 2), (plan_times(), 2)],
    ids=["files", "files, with workers", "steps", "steps, with workers", "times, with workers"],
)
def test_killed_run_resumes_to_bit_identical_weights(
    plan: list[Death], workers: int, toy: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    ends, output = drive(plan, text_command(toy, tmp_path / "run", training__workers=workers), tmp_path)
    killed = [call for status, call in ends if status == signal.SIGKILL]
    assert ends[-1] == [0, ""]
    if "call" in plan[0]:
        assert len(killed) == len(plan) >= 20
        assert set(CALLS) == set(killed)
        assert len(set(re.findall(r"resuming from step (\d+)", output))) >= len(plan) // 4
    if "step" in plan[0]:
        assert len(killed) == len(plan)
    assert "Traceback" not in output
    assert_same_run(uninterrupted, tmp_path / "run")


def test_killed_image_run_resumes_to_bit_identical_weights(painted: Path, tmp_path: Path) -> None:
    drive([], image_command(painted, tmp_path / "uninterrupted"), tmp_path)
    # In the data preparation, which is specific to images; then in checkpoints, which all runs have in common.
    plan: list[Death] = [
        *({"call": number} for number in (4, 8, 12)),
        *({"call": 4, "of": "replace"} for _ in range(3)),
    ]
    ends, output = drive(plan, image_command(painted, tmp_path / "killed"), tmp_path)
    assert [status for status, _ in ends] == [signal.SIGKILL] * len(plan) + [0]
    assert len(set(re.findall(r"resuming from step (\d+)", output))) >= 2
    assert "Traceback" not in output
    assert_same_run(tmp_path / "uninterrupted", tmp_path / "killed")


def test_interrupted_run_saves_a_checkpoint_and_resumes(toy: Path, tmp_path: Path, uninterrupted: Path) -> None:
    validating = {"call": 1, "of": "save_file"}  # the first model that a process writes: at step 8, then at step 16
    plan = [validating | {"signal": signal.SIGTERM}, validating | {"signal": signal.SIGINT}]
    # The checkpoint interval may differ from that of the uninterrupted run.
    ends, output = drive(plan, text_command(toy, tmp_path / "run", training__checkpoint_every=1000), tmp_path)
    assert [os.waitstatus_to_exitcode(status) for status, _ in ends] == [143, 130, 0]
    assert re.findall(r"^saved at step (\d+); the same command resumes from there$", output, re.M) == ["8", "16"]
    assert re.findall(r"^resuming from step (\d+)$", output, re.M) == ["8", "16"]
    assert "regard: interrupted\n" in output
    assert "Traceback" not in output
    assert_same_run(uninterrupted, tmp_path / "run")


def test_full_disk_ends_the_run_and_keeps_the_previous_checkpoint(
    toy: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    state = next((uninterrupted / "checkpoints").glob("step-*/state.safetensors")).stat().st_size
    model = (uninterrupted / "last" / "model.safetensors").stat().st_size
    plan = [{"call": 3, "of": "save_file"}, {"limit": (state + model) // 2}]
    ends, output = drive(plan, text_command(toy, tmp_path / "run"), tmp_path)
    assert [os.waitstatus_to_exitcode(status) for status, _ in ends] == [-9, 2, 0]
    (message,) = re.findall("^regard: .*$", output, re.M)
    assert "checkpoints/step-00000003: could not be written (" in message
    assert "File too large" in message
    assert message.endswith("the same command resumes from step-00000002")
    assert "Traceback" not in output
    assert_same_run(uninterrupted, tmp_path / "run")


def test_two_processes_cannot_train_in_one_folder(
    toy: Path, tmp_path: Path, fork: Callable[..., Forked], command: Command
) -> None:
    endless = text_command(toy, tmp_path / "run", training__steps=100_000, training__checkpoint_every=100_000)
    process = fork(*endless)
    for line in process.stdout:
        if line.startswith("step "):
            break
    assert "another process is training here" in command(*endless).error
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
