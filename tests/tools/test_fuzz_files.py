"""Damaged and hostile files of every format are read or rejected with one sentence: no traceback, crash or hang."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("ctranslate2")

from tools.fuzz_files import Fuzzer
from tools.fuzz_targets import TARGETS

CASES = 10 * len(TARGETS)


@pytest.fixture(scope="module", autouse=True)
def _limited_memory() -> Iterator[None]:
    """Let a reader without a limit fail, rather than use the memory of all other processes."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer(tmp_path_factory.mktemp("fuzz"), seed=1)


def test_unchanged_files_are_read(fuzzer: Fuzzer) -> None:
    fuzzer.check_seeds()


def test_mutated_files_are_read_or_rejected(fuzzer: Fuzzer) -> None:
    results = {case: fuzzer.run(case) for case in range(CASES)}
    assert {case: result for case, result in results.items() if result[0] not in ("read", "rejected")} == {}
    assert len({result[0] for result in results.values()}) == 2


def test_cases_depend_on_the_seed_only(fuzzer: Fuzzer, tmp_path: Path) -> None:
    again = Fuzzer(tmp_path, 1, ["keys", "corpus"])
    assert [again.run(case) for case in range(6)] == [again.run(case) for case in range(6)]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "directory": Path.mkdir,
    "file of 1 TiB": sparse,
    "empty file": Path.touch,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_rejected(kind: str, fuzzer: Fuzzer) -> None:
    """Replace each file of each folder in turn. Optional files may be ignored."""
    findings = {}
    for name in TARGETS:
        for path in fuzzer.files(name):
            outcome = fuzzer.replace(name, path, HOSTILE[kind])
            if outcome not in ("read", "rejected"):
                findings[f"{name}: {path.name}"] = outcome
    assert findings == {}


def test_findings_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = Fuzzer(tmp_path, 1, ["keys"])

    def fail(folder: Path, changed: Path) -> None:
        raise KeyError("normalizer")

    monkeypatch.setitem(TARGETS, "keys", TARGETS["keys"]._replace(read=fail))
    assert fuzzer.run(0) == ("KeyError at ?: 'normalizer'", "keys/keys")


@pytest.mark.parametrize(
    ("limit", "read", "outcome"),
    [
        ("SECONDS", lambda folder, changed: sum(1 for _ in iter(int, 1)), "more than 0.1 s of CPU time"),
        ("WAIT", lambda folder, changed: time.sleep(60), "more than 0.1 s in total"),
    ],
)
def test_cpu_time_and_waiting_are_limited(
    limit: str, read: Callable[[Path, Path], object], outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzzer = Fuzzer(tmp_path, 1, ["keys"])
    monkeypatch.setattr(f"tools.fuzz_files.{limit}", 0.1)
    monkeypatch.setitem(TARGETS, "keys", TARGETS["keys"]._replace(read=read))
    assert fuzzer.run(0)[0] == outcome
