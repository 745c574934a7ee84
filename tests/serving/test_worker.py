"""The server's handle of a worker process."""

import signal

import pytest

from regard.serving import worker as module
from regard.serving.worker import WorkerProcess
from tests.asynchronous import run_in_thread


@pytest.mark.parametrize(("busy", "code"), [(False, 0), (True, -signal.SIGKILL)])
def test_idle_workers_exit_and_busy_ones_are_killed(busy: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 300.0)
    worker = WorkerProcess()
    worker._busy = busy
    run_in_thread(worker.stop())
    assert worker._process.returncode == code
