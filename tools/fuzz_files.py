"""Feed mutated files of every format that regard reads to the real readers.

    python -m tools.fuzz_files --files 100000 --seed 1
    python -m tools.fuzz_files --seed 1 --case 4711      # repeats one case with its traceback

A reader may succeed or raise a UserError of one short sentence. Everything else is a finding, printed with the number
of its case: another exception, a crash of the process, more than 10 seconds of CPU time, a minute of waiting, or more
than 2 GiB of memory. A case depends only on the seed and its number. The exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tools.fuzz_targets import TARGETS, UNCHANGED, Target

SECONDS, WAIT, MEMORY, SENTENCE = 10.0, 60.0, 2 * 2**30, 1500
"""Limits of one case: seconds of CPU time and in total, bytes of memory, and characters of an error message."""
NUMBERS = ("-1", "0", "1e999", "NaN", "9" * 5000, str(2**63), "1.5", "-0.0", "1" + "0" * 400)
VALUES = (*NUMBERS, "null", "true", '""', '"a"', "[]", "{}", "[[1], {}]", '{"a": 1}', '"\\ud800"')
VALUES += ('"/dev/zero"', '"../../etc/passwd"', "[" * 3000, '{"a":' * 70 + "1" + "}" * 70, '"' + "x" * 9000 + '"')
TEXTS = (
    "!!bool maybe", "!!int x", "&a [*a]", "*b", "2024-13-45", "<<: 3", "? [a]\n: 1", "!!binary x", "- - -", "|\n x",
    "\t", "\n", "\r", "\0", "\ufeff", "\u2028", "\x85", ",", "'", '"', "{", "]", ":", "- ", "# ", "0-0 9-9",
)  # fmt: skip

TEXT_FILES = (".yaml", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".align", "keys", ".md", ".html", ".htm", ".xhtml")
TEXT_FILES += (".srt", ".vtt", ".po", ".pot", ".xml", ".tmx", ".xlf", ".xliff")


class TimeLimitError(BaseException):
    """A case that takes too long."""


def mutate(content: bytes, name: str, rng: random.Random) -> bytes:
    """Return changed content; files of JSON are often changed in their structure."""
    if name.endswith(".json") and rng.random() < 0.6:
        return _mutate_json(content, rng)
    if name.endswith(TEXT_FILES) and rng.random() < 0.6:
        return _mutate_text(content, rng)
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        start = rng.randrange(len(changed) + 1)
        if rng.random() < 0.5:  # headers decide how the rest is read
            start = min(start, rng.randrange(200))
        length = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(6):
            case 0:
                changed[start : start + length] = rng.randbytes(length)
            case 1 if start < len(changed):
                changed[start] ^= 1 << rng.randrange(8)
            case 2:
                del changed[start : start + length]
            case 3:
                changed[start:start] = changed[start : start + length] * rng.choice((1, 2, 500))
            case 4:
                changed[start : start + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
            case 5 if rng.random() < 0.3:
                del changed[start:]
    return bytes(changed)


def _mutate_text(content: bytes, rng: random.Random) -> bytes:
    """Replace, insert, repeat or delete a piece of text between delimiters."""
    text = content.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 3))):
        marks = [i for i, character in enumerate(text) if character in " \n\t,:{}[]\"'#-"] or [0]
        start = rng.choice(marks) + 1
        end = next((mark for mark in marks if mark >= start), len(text))
        piece = rng.choice((rng.choice(VALUES), rng.choice(TEXTS), text[start:end] * 2, "", rng.choice(NUMBERS)))
        text = text[:start] + piece + text[rng.choice((start, end)) :]
    return text.encode("utf-8", "surrogatepass")


def _mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Replace, delete, rename or repeat a value at a random place of a JSON document."""
    document = json.loads(content)
    mark = "value that is replaced below"
    places = list(_places(document))
    container, key = rng.choice(places) if places else (None, None)
    if container is None:
        return rng.choice(VALUES).encode()
    match rng.randrange(5):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        case 2 if isinstance(container, list):
            container += container[: rng.choice((1, 300))]
        case 3:
            other, other_key = rng.choice(places)
            container[key] = json.loads(json.dumps(other[other_key]))
        case _:
            container[key] = mark
    return json.dumps(document, ensure_ascii=rng.random() < 0.5).replace(f'"{mark}"', rng.choice(VALUES)).encode()


def _places(document: Any, limit: int = 40) -> Iterator[tuple[Any, Any]]:
    """Yield containers with a key or index; of a long container, such as a vocabulary, the first and last items."""
    keys: Sequence[Any] = list(document) if isinstance(document, dict) else range(len(document))
    for key in (*keys[:limit], *keys[limit:][-limit:]):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _places(document[key], limit)


class Fuzzer:
    """Runs cases in a folder that contains the valid files of every target.

    Args:
        folder: An empty folder.
        names: The targets; by default all.
    """

    def __init__(self, folder: Path, seed: int, names: Sequence[str] = ()) -> None:
        self.folder, self.seed, self.names = folder, seed, list(names or TARGETS)
        self.contents: dict[str, dict[Path, bytes]] = {}
        self.stamps: dict[Path, tuple[int, ...]] = {}
        for name in self.names:
            self._home(name).mkdir()
            TARGETS[name].write(self._home(name))
            files = sorted(path for path in self._home(name).rglob("*") if path.is_file())
            self.contents[name] = {path: path.read_bytes() for path in files}

    def check_seeds(self) -> None:
        """Check that the unchanged files can be read."""
        for name in self.names:
            for path in self.files(name):
                TARGETS[name].read(self._home(name), path)
                self._restore(name)

    def files(self, name: str) -> list[Path]:
        """Return the files of a target that are changed."""
        return [path for path in self.contents[name] if path.name != UNCHANGED]

    def run(self, case: int) -> tuple[str, str]:
        """Run a case; return its outcome ("read", "rejected" or the finding) and the changed file."""
        rng = random.Random(f"{self.seed}:{case}")
        name = self.names[case % len(self.names)]
        path = rng.choice(self.files(name))
        content = mutate(self.contents[name][path], path.name, rng)
        return self.replace(name, path, lambda path: path.write_bytes(content)), str(path.relative_to(self.folder))

    def replace(self, name: str, path: Path, make: Callable[[Path], object]) -> str:
        """Replace a file by what `make` creates at its path, read the folder, and return the outcome."""
        path.unlink()
        make(path)
        try:
            return _read(TARGETS[name], self._home(name), path)
        finally:
            self._restore(name)

    def _home(self, name: str) -> Path:
        return self.folder / name.replace(" ", "-")

    def _restore(self, name: str) -> None:
        """Write the files that have changed, and remove new ones."""
        contents = self.contents[name]
        for path in sorted(self._home(name).rglob("*"), reverse=True):
            if path.is_symlink() or not path.is_dir():
                if self._stamp(path) != self.stamps.get(path):
                    path.unlink()
            elif path in contents:
                path.rmdir()
        for path, content in contents.items():
            if not path.exists():
                path.write_bytes(content)
                self.stamps[path] = self._stamp(path)

    def _stamp(self, path: Path) -> tuple[int, ...]:
        """Numbers that are others after a file has been written or replaced."""
        status = path.lstat()
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(target: Target, folder: Path, changed: Path) -> str:
    try:
        with _time_limits():
            target.read(folder, changed)
    except target.allowed as error:
        message = str(error)
        if len(message) > SENTENCE:
            return f"message of {len(message)} characters: {message[:200]}"
        return "rejected"
    except TimeLimitError as error:
        return str(error)
    except BaseException as error:  # a panic of Rust code is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/regard/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:200]}"
    return "read"


@contextmanager
def _time_limits() -> Iterator[None]:
    """Limit the CPU time, which does not depend on other processes, and the time in total, for reads that block."""

    def expire(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeLimitError(
            f"more than {SECONDS:g} s of CPU time" if number == signal.SIGPROF else f"more than {WAIT:g} s in total"
        )

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAIT)}
    before = {number: signal.signal(number, expire) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


# Command line


def _work(seed: int, names: Sequence[str], cases: range, results: Any, current: mmap.mmap) -> None:
    """Run cases in a process of its own, whose current case the parent can see if it crashes."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # panics of Rust code are printed there
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        fuzzer = Fuzzer(Path(folder), seed, names)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (max(used, address_space) + MEMORY,) * 2)
        for case in cases:
            current[:8] = case.to_bytes(8, "little")
            results.send((case, *fuzzer.run(case)))
    results.send(None)


def fuzz(seed: int, names: Sequence[str], cases: range) -> Iterator[tuple[int, str, str]]:
    """Yield the number, outcome and file of each case; a crashed process is replaced."""
    context = multiprocessing.get_context("fork")
    while cases:
        current = mmap.mmap(-1, 8)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(seed, names, cases, sender, current))
        process.start()
        sender.close()
        try:
            while receiver.poll(2 * WAIT) and (result := receiver.recv()) is not None:
                yield result
                cases = range(result[0] + 1, cases.stop)
            crashed = bool(cases) and process.is_alive()
        except EOFError:
            crashed = True
        process.kill()
        process.join()
        if not cases and not crashed:
            return
        case = int.from_bytes(current[:8], "little")
        yield case, f"the process died or hung (exit code {process.exitcode})", "?"
        cases = range(case + 1, cases.stop)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="number of mutated files")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to divide or continue a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this format (repeatable)")
    parser.add_argument("--case", type=int, help="repeat one case; give the same --seed and --target")
    arguments = parser.parse_args()
    names = arguments.target or list(TARGETS)
    if arguments.case is not None:
        _repeat(arguments.seed, names, arguments.case)
        return
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    findings: dict[str, list[int]] = {}
    started = time.monotonic()
    for case, outcome, where in fuzz(arguments.seed, names, range(arguments.first, arguments.first + arguments.files)):
        is_finding = outcome not in ("read", "rejected")
        outcomes[names[case % len(names)]]["finding" if is_finding else outcome] += 1
        if is_finding:
            key = outcome.partition(": ")[0]
            findings.setdefault(key, []).append(case)
            if len(findings[key]) <= 3:
                print(f"case {case}, {where}: {outcome}", flush=True)
    for name, counts in outcomes.items():
        print(f"{name:16}", *(f"{kind} {counts[kind]:6,}" for kind in ("read", "rejected", "finding")))
    total = sum(map(len, findings.values()))
    print(f"{arguments.files:,} files in {time.monotonic() - started:.0f} s, seed {arguments.seed}: {total} findings")
    for key, cases in sorted(findings.items(), key=lambda item: -len(item[1])):
        print(f"  {len(cases):5} × {key}, such as case {cases[0]}")
    sys.exit(1 if findings else 0)


def _repeat(seed: int, names: Sequence[str], case: int) -> None:
    """Run one case, and print the traceback of a finding."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), seed, names)
        target = TARGETS[fuzzer.names[case % len(fuzzer.names)]]

        def read(folder: Path, changed: Path) -> None:
            try:
                target.read(folder, changed)
            except target.allowed:
                raise
            except BaseException:
                traceback.print_exc()
                raise

        TARGETS[fuzzer.names[case % len(fuzzer.names)]] = target._replace(read=read)
        outcome, where = fuzzer.run(case)
        print(f"case {case}, {where}: {outcome}")


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
