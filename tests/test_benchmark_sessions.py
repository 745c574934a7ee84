"""Whom benchmarks/training.py halts while it times steps, and that all go on afterwards."""

import importlib
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import attention

SPAWN = 'import subprocess; subprocess.Popen(["sleep", "60"]{}).wait()'
"""What a process runs that starts another one."""
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked for in /proc")


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A session of two processes, in a group each, that stands still."""
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    send = importlib.import_module("training_sessions").send
    leader = subprocess.Popen([sys.executable, "-c", SPAWN.format(", process_group=0")], start_new_session=True)
    try:
        wait_until(lambda: len(states_of_session(leader.pid)) == 2)
        send(signal.SIGSTOP, [leader.pid])
        wait_until(lambda: states_of_session(leader.pid) == ["T", "T"])
        yield leader.pid
    finally:
        send(signal.SIGKILL, [leader.pid])
        leader.wait()


@needs_proc
def test_who_stood_still_goes_on_though_the_contender_was_ended(
    halted: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = importlib.import_module("training")
    monkeypatch.setattr(training.subprocess, "Popen", lambda *given, **more: Namespace(returncode=-9))
    monkeypatch.setattr(training, "wait_for", lambda *given: "not done after 1 s")
    row = training.run_child("nn", training.parse(["--quick", f"--halt={halted}"]), Namespace(left=60.0))
    assert row["error"] == "not done after 1 s"
    wait_until(lambda: "T" not in states_of_session(halted))


@needs_proc
def test_nobody_is_left_running_or_standing_still_when_waiting_is_interrupted(
    halted: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training, begin = importlib.import_module("training"), subprocess.Popen
    begun: list[subprocess.Popen[bytes]] = []

    def stand_in(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        begun.append(begin([sys.executable, "-c", SPAWN.format("")], **more))
        return begun[-1]

    class Interrupted:
        """A deadline at which somebody presses Ctrl-C, once the contender has started a process of its own."""

        @property
        def left(self) -> float:
            if begun:
                wait_until(lambda: len(states_of_group(begun[0].pid)) == 2)
                raise KeyboardInterrupt
            return 60.0

    monkeypatch.setattr(training.subprocess, "Popen", stand_in)
    options = training.parse(["--quick", f"--halt={halted}"])
    try:
        with pytest.raises(KeyboardInterrupt):
            training.run_child("nn", options, Interrupted())
        wait_until(lambda: not set(states_of_group(begun[0].pid)) - {"Z"})
        wait_until(lambda: "T" not in states_of_session(halted))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(begun[0].pid, signal.SIGKILL)
        begun[0].wait()


def states_of_session(session: int) -> list[str]:
    """The state of each of its processes, T where it stands still."""
    return [state for state, _, belongs in states() if belongs == session]


def states_of_group(group: int) -> list[str]:
    """The state of each of its processes, Z where it has ended and nobody has asked how."""
    return [state for state, belongs, _ in states() if belongs == group]


def states() -> list[tuple[str, int, int]]:
    """State, group and session of every process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, session = stat.read_text("utf-8").rpartition(")")[2].split()[:4]
            found.append((state, int(group), int(session)))
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--halt", "1"], "--halt: 1 cannot stand still: a session has a number above 1"),
        (["--halt=-5"], "--halt: -5 cannot stand still"),
        (["--halt", str(os.getsid(0))], "is another than that of this call"),
        (["--halt", "70", "--together"], "leave out --together"),
        (["--halt", "70", "--largest"], "keeps its memory, so ask for --largest in a call without it"),
    ],
)
@needs_proc
def test_processes_that_nobody_should_halt_are_not(
    wrong: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refuse(wrong, monkeypatch, capsys)


@needs_proc
def test_a_session_to_halt_must_be_one_until_contenders_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = subprocess.Popen(["sleep", "60"])  # of this session, and no leader
    try:
        said = refuse([f"--halt={follower.pid}"], monkeypatch, capsys)
        assert f"no process is in a session {follower.pid}; begin with setsid" in said
    finally:
        follower.kill()
        follower.wait()
    assert f"no process is in a session {follower.pid};" in refuse([f"--halt={follower.pid}"], monkeypatch, capsys)
    training = importlib.import_module("training")
    options = training.parse([f"--halt={follower.pid}", "--child=nn"])
    importlib.import_module("training_sessions").send(signal.SIGSTOP, options.halt)  # to nobody


def test_only_who_halts_others_needs_to_see_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    sessions = importlib.import_module("training_sessions")
    monkeypatch.setattr(sessions, "PROCESSES", tmp_path / "proc")
    sessions.send(signal.SIGCONT, [])
    assert "--halt: the processes of a session are found in" in refuse(["--halt", "70"], monkeypatch, capsys)


def refuse(wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of these arguments."""
    monkeypatch.syspath_prepend(str(Path(attention.__file__).parent))
    with pytest.raises(SystemExit):
        importlib.import_module("training").parse(wrong)
    return " ".join(capsys.readouterr().err.split())
