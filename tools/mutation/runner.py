"""Runs the covering tests of mutants in temporary copies of the working tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

from tools.mutation.coverage_map import ROOT, CoveringTest
from tools.mutation.fork_server import LIBRARIES
from tools.mutation.mutants import Mutant

FIRST_FILES, FIRST_SECONDS, SECOND_SECONDS = 3, 5, 15
"""Most mutants are killed by tests of these many files that take this long in total, and most others by all tests that
take little longer. The rest follows in a third process."""
LIMIT_SECONDS, LIMIT_FACTOR = 60, 10
"""A test hangs if it takes more CPU time than this many seconds plus a multiple of its time in the map."""


@dataclass
class Result:
    """What happened to a mutant."""

    key: str
    state: str
    """killed, survived, or uncovered: run by no test."""
    killer: str
    tests: int
    covering: int


def list_files() -> list[str]:
    """Return the tracked and new files of the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


class Copy:
    """A copy of the working tree in which mutants are tested."""

    def __init__(self, folder: Path, libraries: Sequence[str] = LIBRARIES) -> None:
        self.folder = folder
        self.python_path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        for name in list_files():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tools.mutation.fork_server", *libraries],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the fork server."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant. The compiled file is removed, since its time and size may equal those of the original."""
        path = self.folder / mutant.path
        source = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.apply(source), encoding="utf-8")
            Path(cache_from_source(str(path))).unlink(missing_ok=True)
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def run(self, tests: Iterable[CoveringTest], stop: bool = True) -> list[str]:
        """Run tests and return those that fail: the first one, or all. An import that fails counts as a test."""
        limits = {test.name: LIMIT_SECONDS + LIMIT_FACTOR * test.total for test in tests}
        with tempfile.TemporaryDirectory() as name:
            selection = Path(name) / "selection.json"
            selection.write_text(json.dumps(limits), encoding="utf-8")
            files = sorted({test.split("::")[0] for test in limits})
            plugins = ("no:xdist", "no:faulthandler", "no:cacheprovider", "tools.mutation.selection")
            command = {
                "folder": str(self.folder),
                "environment": {"PYTHONPATH": self.python_path, "REGARD_SELECTION": str(selection), "TMPDIR": name},
                "arguments": [
                    *(word for plugin in plugins for word in ("-p", plugin)),
                    *("--hypothesis-seed=0", "--tb=no", *["-x"] * stop, *files),
                ],
            }
            assert self.server.stdin is not None
            assert self.server.stdout is not None
            self.server.stdin.write(json.dumps(command) + "\n")
            self.server.stdin.flush()
            code = int(self.server.stdout.readline())
            failed, current = selection.with_suffix(".failed"), selection.with_suffix(".current")
            if failed.exists():
                return failed.read_text(encoding="utf-8").splitlines()
            if code:
                return [current.read_text(encoding="utf-8") if current.exists() else "import"]
            return []

    def test(self, mutant: Mutant, tests: list[CoveringTest], budget: float) -> Result:
        """Run the covering tests of a mutant, fastest first, until one fails or a number of seconds is reached."""
        if not tests:
            return Result(mutant.key, "uncovered", "", 0, 0)
        tests, covering = tests[: _count_within(tests, budget)], len(tests)
        with self.mutated(mutant):
            for part in split_tests(tests, f"tests/{mutant.package}/"):
                if failed := self.run(part):
                    return Result(mutant.key, "killed", failed[0], len(tests), covering)
        return Result(mutant.key, "survived", "", len(tests), covering)


def split_tests(tests: list[CoveringTest], folder: str) -> list[list[CoveringTest]]:
    """Split tests into those that are run first, second and third. Collecting the tests of many files takes long.

    The first tests are from files in `folder`, which mirrors the package of the mutant, and with many covering tests.
    """
    files = Counter(test.name.split("::")[0] for test in tests)
    ranked = sorted(files, key=lambda name: (not name.startswith(folder), -files[name], name))
    first = [test for test in tests if test.name.split("::")[0] in ranked[:FIRST_FILES]]
    first = first[: _count_within(first, FIRST_SECONDS)]
    names = {test.name for test in first}
    others = [test for test in tests if test.name not in names]
    number = _count_within(others, SECOND_SECONDS)
    return [part for part in (first, others[:number], others[number:]) if part]


def _count_within(tests: list[CoveringTest], budget: float) -> int:
    """Return how many tests, at least one, take a number of seconds in total. Shared fixtures count once."""
    fixtures: set[str] = set()
    total = 0.0
    for number, test in enumerate(tests):
        total += test.seconds + sum(seconds for name, seconds in test.fixtures.items() if name not in fixtures)
        fixtures.update(test.fixtures)
        if total > budget and number:
            return number
    return len(tests)


def load_results(path: Path) -> dict[str, Result]:
    """Return the stored results by the key of the mutant; the last one counts."""
    if not path.exists():
        return {}
    results = [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {result.key: result for result in results}


def store_result(path: Path, result: Result) -> None:
    """Append a result to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
