"""The server's handle of a worker process."""

import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.serving import model_runner
from regard.serving import worker as module
from regard.serving.messages import Batch, BatchFailedError, LoadRequest
from regard.serving.worker import WorkerProcess, describe_error, run_batches
from tests.asynchronous import run_in_thread


@pytest.mark.parametrize(("busy", "code"), [(False, 0), (True, -signal.SIGKILL)])
def test_idle_workers_exit_and_busy_ones_are_killed(busy: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 300.0)
    worker = WorkerProcess()
    worker._busy = busy
    run_in_thread(worker.stop())
    assert worker._process.returncode == code


def test_a_process_that_does_not_exit_is_killed_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Stubborn:
        def wait(self, timeout: float | None = None) -> None:
            calls.append(f"wait {timeout}")
            if timeout is not None:
                raise subprocess.TimeoutExpired("worker", timeout)

        def kill(self) -> None:
            calls.append("kill")

    worker = object.__new__(WorkerProcess)
    worker._process = Stubborn()  # type: ignore[assignment]
    monkeypatch.setattr(module, "STOP_SECONDS", 3)
    worker._wait()
    assert calls == ["wait 3", "kill", "wait None"]


def test_a_worker_is_cleaned_up_without_a_thread() -> None:
    """A thread may not start in a process without memory."""
    worker = WorkerProcess()
    worker._thread.shutdown()
    worker.kill()
    worker.kill()
    assert worker._connection.closed
    assert worker._process.returncode == -signal.SIGKILL
    assert not worker.alive


def test_killing_a_worker_does_not_wait_for_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of the server would stand still."""
    worker, end = WorkerProcess(), threading.Event()
    worker._thread.submit(end.wait)
    worker.kill()  # with shutdown(wait=True) this would not return
    assert not worker.alive
    end.set()


class ScriptedConnection:
    """A connection of a worker with the given messages; the server then closes it."""

    def __init__(self, *messages: Any) -> None:
        self.messages, self.sent = list(messages), list[Any]()

    def recv(self) -> Any:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Runner:
    """A runner of given functions."""

    info = "info"

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions, self.warm = functions, False

    def warm_up(self) -> None:
        self.warm = True

    def run(self, operation: str, items: Any, options: dict[str, Any]) -> Any:
        assert self.warm
        return self.functions[operation](*items, **options)


class DerivedError(UserError):
    """An error of a module that the server does not import."""


def reject(item: str) -> None:
    error = DerivedError(f"{item} is wrong")
    error.kind = "tokens"
    raise error


def test_a_worker_answers_batches_and_errors_until_the_server_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = Runner(join=lambda *items, by: [by.join(items)], reject=reject, fail=lambda item: 1 / 0)
    monkeypatch.setattr(model_runner, "load_runner", lambda request: runner)
    batches = [Batch("join", (("by", "+"),), ["a", "b"]), Batch("reject", (), ["c"]), Batch("fail", (), ["secret"])]
    connection = ScriptedConnection(LoadRequest("toy", Path("run")), *batches)
    with pytest.raises(EOFError):
        run_batches(connection)  # type: ignore[arg-type]
    info, joined, rejected, failed = connection.sent
    assert (info, joined) == ("info", ["a+b"])
    assert (type(rejected), str(rejected), rejected.kind) == (UserError, "c is wrong", "tokens")
    assert type(failed) is BatchFailedError
    assert "ZeroDivisionError in <lambda>" in str(failed)
    assert "secret" not in str(failed)


def test_a_worker_that_cannot_load_its_model_says_why_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "load_runner", lambda request: reject("run"))
    connection = ScriptedConnection(LoadRequest("toy", Path("run")), Batch("join", (), []))
    run_batches(connection)  # type: ignore[arg-type]
    assert [(type(error), str(error)) for error in connection.sent] == [(UserError, "run is wrong")]
    assert len(connection.messages) == 1


def test_the_place_of_an_error_is_the_innermost_call() -> None:
    def inner() -> None:
        raise RuntimeError("secret")

    with pytest.raises(RuntimeError) as raised:
        inner()
    assert describe_error(raised.value).startswith(f"RuntimeError in inner, {__file__}:")
