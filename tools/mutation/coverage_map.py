"""The map from the lines of regard/ to the tests that run them, built by running all tests once.

`.mutation/map/` holds a file for each test file, so that new and changed tests can be added. `.mutation/sources/` holds
the files of regard/ as they were: if a file has changed since, its lines are aligned with those of the map.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".mutation"
DOCUMENTING = "tests/test_package.py::test_generated_page_is_current"
"""Tests that compare the defaults and limits of all settings, commands and requests with their documentation."""


def build(paths: list[str], jobs: int) -> None:
    """Run tests and add them to the map: all tests, folder by folder, or those of the given files and folders."""

    def record(group: list[str]) -> None:
        print(f"== {' '.join(group)}", flush=True)
        with tempfile.TemporaryDirectory() as name:
            _record(Path(name), group)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(record, [[path] for path in paths] or _list_groups()))


def _list_groups() -> list[list[str]]:
    """The folders in tests/, largest first, and its own files. Pytest runs once for each; a crash loses little."""
    sizes = Counter[str]()
    for path in (ROOT / "tests").glob("*/**/test_*.py"):
        sizes[path.relative_to(ROOT).parts[1]] += path.stat().st_size
    own = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_*.py"))]
    return [*([f"tests/{folder}"] for folder, _ in sizes.most_common()), own]


def _record(folder: Path, tests: list[str]) -> None:
    (folder / "sitecustomize.py").write_text("from tools.mutation.recorder import start\n\nstart()\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "REGARD_COVERAGE": str(folder),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "tools.mutation.recorder", "--tb=line", *tests]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if (folder / "tests.json").exists():
        _store(folder)


def _store(folder: Path) -> None:
    """Write what was recorded in a folder to the map, as one file for each test file."""
    done = json.loads((folder / "tests.json").read_text())
    masks: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in folder.glob("lines-*.json"):
        for context, files in json.loads(path.read_text()).items():
            for name, lines in files.items():
                for line in lines:
                    masks[context][name] |= 1 << line
    by_file: dict[str, dict[str, Any]] = defaultdict(dict)
    for test, record in done["tests"].items():
        if record["passed"]:
            used = {name: done["fixtures"][name] for name in record["fixtures"] if name in done["fixtures"]}
            ran: dict[str, int] = defaultdict(int)
            for context in [test, *used]:
                for name, mask in masks[context].items():
                    ran[name] |= mask
            by_file[test.split("::")[0]][test] = {
                "seconds": round(record["seconds"], 3),
                "fixtures": {name: round(seconds, 3) for name, seconds in used.items()},
                "lines": {name: f"{mask:x}" for name, mask in ran.items()},
            }
    sources = {name: _store_source(name) for name in {name for files in masks.values() for name in files}}
    for name, tests in by_file.items():
        path = HOME / "map" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"sources": sources, "tests": tests}), encoding="utf-8")


def _store_source(name: str) -> str:
    """Keep a file of regard/ under its hash, and return the hash."""
    text = (ROOT / name).read_bytes()
    digest = hashlib.sha256(text).hexdigest()[:16]
    path = HOME / "sources" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return digest


@dataclass
class CoveringTest:
    """A test of the map: how long it and its shared fixtures took, and the lines that it ran as bits of an integer."""

    name: str
    seconds: float
    fixtures: dict[str, float]
    lines: dict[str, str]
    sources: dict[str, str]

    @property
    def total(self) -> float:
        return self.seconds + sum(self.fixtures.values())

    def runs(self, path: str, lines: Iterable[int]) -> bool:
        """Whether the test runs one of some lines, which are numbered as in the file of today."""
        if path not in self.lines:
            return False
        mask, old = int(self.lines[path], 16), _align(path, self.sources[path])
        return any(mask >> number & 1 for line in lines for number in old.get(line, ()))


@cache
def _align(path: str, digest: str) -> dict[int, range]:
    """Map the line numbers of today's file to those of a stored version. New lines are missing."""
    stored = (HOME / "sources" / digest).read_text(encoding="utf-8").splitlines()
    today = (ROOT / path).read_text(encoding="utf-8").splitlines()
    aligned = {}
    for change, first, last, old_first, old_last in difflib.SequenceMatcher(None, today, stored, False).get_opcodes():
        for line in range(first, last):
            if change == "equal":
                aligned[line + 1] = range(old_first + line - first + 1, old_first + line - first + 2)
            elif change == "replace":
                aligned[line + 1] = range(old_first + 1, old_last + 1)
    return aligned


def load() -> list[CoveringTest]:
    """Return the tests of the map whose files still exist, fastest first."""
    tests = []
    for path in (HOME / "map").glob("**/*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if (ROOT / path.relative_to(HOME / "map").with_suffix("")).exists():
            for name, record in stored["tests"].items():
                tests.append(CoveringTest(name, sources=stored["sources"], **record))
    return sorted(tests, key=lambda test: (test.total, test.name))


def find_covering(mutant: Mutant, tests: list[CoveringTest]) -> list[CoveringTest]:
    """Return the tests that run the line of a mutant, fastest first.

    A line that runs when its module is imported, such as a default value, counts as covered by the tests of the
    generated documentation and by those that run a function of the file, or of a file that imports it.
    """
    path = mutant.path
    if mutant.covered_by:
        found = [test for test in tests if test.runs(path, mutant.covered_by)]
        if found or _is_known(path, mutant.covered_by, tests):
            return found
    documenting = [test for test in tests if test.name.startswith(DOCUMENTING)]
    for paths in ([path], list(_list_importers(path))):
        bodies = {name: _list_function_lines(name) for name in paths}
        if found := [test for test in tests if any(test.runs(name, lines) for name, lines in bodies.items())]:
            return [*documenting, *(test for test in found if test not in documenting)]
    return documenting


def find_related(mutant: Mutant, tests: list[CoveringTest]) -> list[CoveringTest]:
    """Return the tests that run a function of the file of a mutant whose own line no test of the map runs.

    The recorder misses lines that run in a process which is killed, such as a worker.
    """
    lines = _list_function_lines(mutant.path)
    return [test for test in tests if test.runs(mutant.path, lines)]


def _is_known(path: str, lines: Iterable[int], tests: list[CoveringTest]) -> bool:
    """Whether a version of the file in the map has one of these lines; new lines may be covered by any test."""
    digests = {test.sources[path] for test in tests if path in test.sources}
    return any(line in _align(path, digest) for digest in digests for line in lines)


@cache
def _list_function_lines(path: str) -> frozenset[int]:
    """The lines of a file inside functions."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1))


def _list_importers(path: str) -> Iterable[str]:
    """The files of regard/ that import a file."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    pattern = re.compile(rf"from {module} import|import {module}\b|from {package} import .*\b{name}\b")
    for other in sorted((ROOT / "regard").rglob("*.py")):
        if pattern.search(other.read_text(encoding="utf-8")):
            yield str(other.relative_to(ROOT))
