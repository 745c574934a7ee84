"""Records which lines of regard/ each test runs, in the process of pytest and in the processes that tests start.

A folder with a `sitecustomize.py` on PYTHONPATH starts the recorder in every process; `tools.mutation.coverage_map`
creates it. As a plugin of pytest, this module names the running test: the context of the lines. What a fixture of a
module or a session runs counts for every test that uses the fixture.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "REGARD_COVERAGE"
recorder: Recorder


class Recorder:
    """Measures this process and, after a fork, the child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "current"  # the context in which new processes run
        self.start()
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self.restart)
        self.exit, os._exit = os._exit, self.write_and_exit  # type: ignore[assignment]

    def start(self) -> None:
        self.name = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self.coverage = coverage.Coverage(
            data_file=None,
            include=[f"{ROOT}/regard/*"],
            omit=[f"{ROOT}/regard/ops/triton/*"],
            config_file=False,
            messages=False,
        )
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self.coverage.start()
        self.coverage.switch_context(self.name)

    def restart(self) -> None:
        """Start again in a forked process, without what the parent has recorded."""
        self.coverage.stop()
        self.start()

    def write(self) -> None:
        """Write the lines of every context as JSON: {context: {path: [line, ...]}}."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for path in data.measured_files():
            found: dict[str, list[int]] = defaultdict(list)
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    found[context].append(line)
            for context, numbers in found.items():
                lines[context][str(Path(path).relative_to(ROOT))] = numbers
        (self.folder / f"lines-{os.getpid()}-{time.time_ns()}.json").write_text(json.dumps(lines), encoding="utf-8")

    def write_and_exit(self, code: int) -> None:
        try:
            self.write()
        finally:
            self.exit(code)

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        before = self.name
        self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, name: str) -> None:
        self.name = name
        self.path.write_text(name, encoding="utf-8")
        self.coverage.switch_context(name)


class Plugin:
    """Names the context after the running test or fixture, and measures how long tests and fixtures take."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tests: dict[str, dict[str, Any]] = {}
        self.fixtures: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        used = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        names = [_name_fixture(found[-1]) for found in used if found and found[-1].scope != "function"]
        self.tests[item.nodeid] = {"seconds": 0.0, "passed": False, "fixtures": names}
        with self.recorder.context(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        name, begin = _name_fixture(fixturedef), time.perf_counter()
        with self.recorder.context(name):
            result = yield
        self.fixtures[name] = time.perf_counter() - begin
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        if report.when == "call":
            test["passed"] = report.passed
            test["seconds"] += report.duration

    def pytest_unconfigure(self) -> None:
        done = {"tests": self.tests, "fixtures": self.fixtures}
        (self.recorder.folder / "tests.json").write_text(json.dumps(done), encoding="utf-8")


def _name_fixture(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def start() -> None:
    """Start the recorder of this process; called by `sitecustomize`."""
    global recorder
    recorder = Recorder(Path(os.environ[FOLDER]))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin; called by pytest."""
    config.pluginmanager.register(Plugin(recorder))
