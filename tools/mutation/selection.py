"""A plugin of pytest that runs chosen tests in a chosen order, and ends the process if one of them hangs.

The environment variable REGARD_SELECTION names a JSON file: {node id: limit in seconds of CPU time, ...}. The name of
the running test is written next to it, so that the test is known if the process ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATH = Path(os.environ["REGARD_SELECTION"])
DEVNULL = Path(os.devnull).open("w")  # noqa: SIM115 - in use until the process ends
LIMITS: dict[str, float] = json.loads(PATH.read_text(encoding="utf-8"))
WAIT_FACTOR = 5
"""A test may take several times its limit in total: it waits for other processes, and for a CPU on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in their order."""
    order = {name: number for number, name in enumerate(LIMITS)}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Limit the time of a test. The signal of the timer ends the process."""
    PATH.with_suffix(".current").write_text(item.nodeid, encoding="utf-8")
    signal.setitimer(signal.ITIMER_PROF, LIMITS[item.nodeid])
    faulthandler.dump_traceback_later(WAIT_FACTOR * LIMITS[item.nodeid], exit=True, file=DEVNULL)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the name of a test that fails."""
    if report.failed:
        with PATH.with_suffix(".failed").open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")
