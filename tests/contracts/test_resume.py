"""Contract 5: killed at any step and restarted with the same command, training ends with bit-identical weights."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.forks import Forked
from tools.kill_and_resume import Death, assert_same_run, drive, image_command, text_command
from tools.killing import CALLS

STEPS = 24


@pytest.fixture(scope="module")
def uninterrupted(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted, in a process like those that are killed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    ends, output = drive([], text_command(toy, folder / "run", training__steps=STEPS), folder)
    assert ends == [[0, ""]], output
    return folder / "run"


# Calls 1 to 20 create the run and its first checkpoints. Even numbers kill before the call, odd ones after it.
CREATION: list[Death] = [{"call": number} for number in (2, 5, 9, 14, 19)]
EACH_KIND: list[Death] = [{"call": 3 + number % 2, "of": kind} for number, kind in enumerate(CALLS)]
WORKERS: list[Death] = [
    {"call": 4, "of": "replace"},
    {"step": 3},
    {"worker": 2, "batch": 2, "at": "before"},
    {"step": 2},
    {"worker": 1, "batch": 3, "at": "within"},
]


@pytest.mark.parametrize(
    ("plan", "workers", "background"),
    [(CREATION + EACH_KIND, 0, False), (EACH_KIND, 0, True), (WORKERS, 2, False)],
    ids=["files", "files in the background", "workers"],
)
def test_killed_run_resumes_to_bit_identical_weights(
    plan: list[Death], workers: int, background: bool, toy: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    command = text_command(toy, tmp_path / "run", training__steps=STEPS, training__workers=workers)
    ends, output = drive(plan, command, tmp_path, background)
    expected = [2 if "worker" in death else -signal.SIGKILL for death in plan]
    assert [os.waitstatus_to_exitcode(status) for status, _ in ends] == [*expected, 0]
    for death, (_, place) in zip(plan, ends, strict=False):
        assert place == death.get("of", place)
        assert place in CALLS or place in death, "it was killed as planned"
    assert len(set(re.findall(r"resuming from step (\d+)", output))) >= len(plan) // 3
    assert "Traceback" not in output
    assert_same_run(uninterrupted, tmp_path / "run")


def test_killed_image_run_resumes_to_bit_identical_weights(painted: Path, tmp_path: Path) -> None:
    drive([], image_command(painted, tmp_path / "uninterrupted", training__steps=8), tmp_path)
    # In the data preparation, which is specific to images; then in checkpoints, which all runs have in common.
    plan: list[Death] = [{"call": 4}, {"call": 8}, {"call": 12}, {"call": 4, "of": "replace"}, {"step": 2}]
    ends, output = drive(plan, image_command(painted, tmp_path / "killed", training__steps=8), tmp_path)
    assert [status for status, _ in ends] == [signal.SIGKILL] * len(plan) + [0]
    assert len(set(re.findall(r"resuming from step (\d+)", output))) >= 2
    assert "Traceback" not in output
    assert_same_run(tmp_path / "uninterrupted", tmp_path / "killed")


def test_interrupted_run_saves_a_checkpoint_and_resumes(toy: Path, tmp_path: Path, uninterrupted: Path) -> None:
    validating = {"call": 1, "of": "save_file"}  # the first model that a process writes: at step 8, then at step 16
    plan = [validating | {"signal": signal.SIGTERM}, validating | {"signal": signal.SIGINT}]
    # The checkpoint interval may differ from that of the uninterrupted run.
    command = text_command(toy, tmp_path / "run", training__steps=STEPS, training__checkpoint_every=1000)
    ends, output = drive(plan, command, tmp_path)
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
    ends, output = drive(plan, text_command(toy, tmp_path / "run", training__steps=STEPS), tmp_path)
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
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
