"""Devices, optional packages, files, background threads, signals and progress bars."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import import_module
from io import BufferedReader
from itertools import repeat
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self, TextIO, TypeVar

from regard.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

Item = TypeVar("Item")
Result = TypeVar("Result")


def choose_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" selects a GPU if one is available."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used here ({reason}); try auto or cpu") from None
    return device


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use, by its CPU affinity and the CPU quotas of its cgroups.

    Args:
        root: Folder that contains proc and sys.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *map(int, _cpu_quotas(root))]))


SHORT_SPINS = 2000
"""Number of times that a waiting thread looks for work before it sleeps: some microseconds."""
SPINS = "GOMP_SPINCOUNT"
WAITING = ("OMP_WAIT_POLICY", SPINS, "KMP_BLOCKTIME")
"""Variables with which a user chooses how OpenMP threads wait: of the standard, of GNU and of Intel."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def configure_threads(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Choose the number of CPU threads and how they wait for each other, before torch is imported.

    By default, a thread that has finished its part of an operation spins for about a millisecond before it sleeps. On a
    shared machine it so takes the CPU from the threads it waits for. A short time costs nothing on an idle machine,
    because the parts of an operation end almost together. Variables that are set already are kept.

    Args:
        environment: Environment variables, which OpenMP reads when it is loaded.
        root: Folder that contains proc and sys.
    """
    if not any(name in environment for name in WAITING):
        environment.update({SPINS: str(SHORT_SPINS), "KMP_BLOCKTIME": "1"})
    # OpenMP knows the affinity of the process, but not the quotas of its cgroups.
    if not any(name in environment for name in THREADS) and any(_cpu_quotas(root)):
        environment["OMP_NUM_THREADS"] = str(available_cpus(root))


def describe_threads(threads: int, environment: Mapping[str, str] = os.environ) -> str:
    """Describe the CPU threads of this process, and what their number and waiting follow from."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = available_cpus()
    quota = f" by the quota of its cgroup, {affinity} by its affinity" if cpus < affinity else ""
    policy = environment.get("OMP_WAIT_POLICY")
    spins = environment.get(SPINS)
    waiting = f"OMP_WAIT_POLICY={policy}" if policy else f"{SPINS}={spins}" if spins else "the default of OpenMP"
    return f"CPU threads: {threads} of {cpus} CPUs{quota}; waiting: {waiting}"


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of the cgroups of this process and of all groups around them, in CPUs."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        home = root / "sys/fs/cgroup"
        if controllers:  # version 1
            home /= controllers
        group = home / path.lstrip("/")
        while group.is_relative_to(home):
            for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                with suppress(OSError, ValueError):  # there is no quota, or it is "max"
                    quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                    if quota > 0:
                        yield quota / period
            group = group.parent


def import_optional(module: str, extra: str) -> Any:
    """Import a module of a package that is installed with an extra of regard."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UserError(f"this needs the package {package}; install it with pip install 'regard[{extra}]'") from None


# Reading files
#
# Files can have any origin: a pipe blocks, a device such as /dev/zero never ends, deeply nested text exhausts the
# stack, and some image formats start programs. Errors are UserErrors that name the file.

MAX_BYTES = 2**28
"""Size of a file that is read as a whole. The largest are tokenizers of some ten megabytes."""
MAX_LINE_BYTES = 2**24
"""A longer line means that the file is not text with one sentence per line."""
MAX_DEPTH = 64
"""Nesting of JSON and YAML."""
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats of Pillow that only contain pixels. EPS, for example, would start another program."""
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


class MissingFileError(UserError):
    """A file that does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no such file")
        self.path = path


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Convert errors of the operating system into UserErrors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(path) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def check_regular(path: Path) -> None:
    """Check that a path is a regular file or a link to one, before a library opens it."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r}: a file name cannot contain a null character")
    with report_unreadable(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise UserError(f"{path}: is {kind}, but must be a regular file")


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading."""
    check_regular(path)
    with report_unreadable(path), path.open("rb") as file:
        yield file


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a regular file in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and checksum of a regular file, for `is_unchanged`."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def is_unchanged(path: Path, described: Any) -> bool:
    """Compare a file with the result of `describe_file`: first the size, because a checksum of a large file is slow."""
    check_regular(path)
    same_size = isinstance(described, dict) and path.stat().st_size == described.get("bytes")
    return same_size and sha256_of(path) == described.get("sha256")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UserError(f"{path}: has {size:,} bytes, but such a file has at most {limit:,}")
        return file.read(size)


def read_text(path: Path, limit: int = MAX_BYTES, errors: str = "strict") -> str:
    r"""Read a regular UTF-8 file of at most `limit` bytes; every line ends with "\n"."""
    try:
        text = read_bytes(path, limit).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged or not UTF-8 text (byte {error.start + 1})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a stream with their line breaks, at most `MAX_LINE_BYTES` long; errors contain `name`."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UserError(
                f"{name}, line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB; "
                f"the file must be text with one sentence per line."
            )
        yield line


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        text = read_text(path)
        value = parse_json(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate could not be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except ValueError as error:
        raise UserError(f"{path}: damaged or not JSON ({one_line(error)})") from None


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: It is invalid, or nested more than `MAX_DEPTH` levels deep.
    """
    try:
        level = [value := json.loads(text)]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    for _ in range(MAX_DEPTH):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for container in containers for inner in container]
        if not level:
            return value
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def one_line(error: object) -> str:
    """Return the start of an error message without line breaks."""
    return " ".join(str(error).split())[:200]


@cache
def supported_image_formats() -> tuple[str, ...]:
    """Return the image formats that are safe to open and that the installed version of Pillow supports."""
    from PIL import Image

    Image.init()
    return tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)


# Writing files


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` when the block succeeds."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_text_file(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file that appears at `path` when the block succeeds."""
    with (
        replace_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


# Threads, signals and progress


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Apply a function to items in background threads and yield the results in order, at most `ahead` in advance."""
    with ThreadPoolExecutor(threads) as pool:
        futures: deque[Future[Result]] = deque()
        try:
            for item in items:
                futures.append(pool.submit(function, item))
                if len(futures) > ahead:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()


def prefetch_iterator(iterator: Iterator[Item], ahead: int) -> Generator[Item, None, None]:
    """Yield the items of an iterator that a background thread advances, at most `ahead` items in advance."""
    end = object()
    with closing(prefetch(lambda _: next(iterator, end), repeat(None), threads=1, ahead=ahead)) as items:
        for item in items:
            if item is end:
                return
            yield item  # type: ignore[misc]


class Interrupted(KeyboardInterrupt):
    """Raised for Ctrl-C or a termination request; `signal` is the signal number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Interruptions:
    """Context manager that turns SIGINT and SIGTERM into `Interrupted`. Only the main thread receives signals.

    While `deferred` is set, the first signal is only recorded in `received`, so that the current operation can finish.
    A second signal always interrupts.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # shells ignore SIGINT in background jobs
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def pending(self) -> bool:
        """Whether a signal has been received."""
        return self.received is not None

    def interrupt(self) -> NoReturn:
        """Raise `Interrupted` for the received signal."""
        assert self.received is not None
        raise Interrupted(self.received)

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Defer interruptions to the end of the outermost such block."""
        before, self.deferred = self.deferred, True
        try:
            yield
        finally:
            self.deferred = before
        if self.pending and not self.deferred:
            self.interrupt()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        repeated = self.pending
        self.received = number
        if repeated or not self.deferred:
            self.interrupt()


class ProgressBar:
    """A progress bar with elapsed and remaining time. On anything but a terminal it draws nothing.

    Args:
        count: What is counted, as a rich format string with {task.completed} and {task.total}.
        total: The number of items, or None if it is unknown.
        done: The number of items that are already complete.
        console: Where to draw.
        drawn: False disables the bar.
        keep: Whether the bar stays on the screen at the end.
    """

    def __init__(
        self, count: str, total: int | None, done: int = 0, *, console: Console, drawn: bool = True, keep: bool = True
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.console = console
        self._bar: Progress | None = None
        if drawn and console.is_terminal:
            columns = (
                TextColumn(count),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console, transient=not keep)
            self._line = self._bar.add_task("", total=total, completed=done, text="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, text: str) -> bool:
        """Move the bar. Return False if there is none, in which case the caller may print a line instead."""
        if self._bar:
            self._bar.update(self._line, completed=done, text=text)
        return self._bar is not None

    def print(self, text: str) -> None:
        """Print one line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class LineProgress(ProgressBar):
    """Progress of a file: a bar on a terminal, elsewhere a line of text every few seconds.

    Args:
        total: The number of lines, or None if it is unknown.
        done: The number of lines that are already complete.
        shown: False disables all output.
        console: Where to draw; by default standard error.
        noun: What is counted.
    """

    SECONDS_BETWEEN_LINES = 5.0

    def __init__(
        self,
        total: int | None,
        done: int = 0,
        *,
        shown: bool = True,
        console: Console | None = None,
        noun: str = "lines",
    ) -> None:
        from rich.console import Console

        count = "{task.completed}" + ("" if total is None else " of {task.total}") + f" {noun}"
        super().__init__(count, total, done, console=console or Console(stderr=True), drawn=shown, keep=False)
        self.total, self.done, self.shown, self.noun = total, done, shown, noun
        self._done_before = done
        self._started = self._printed = time.perf_counter()

    def advance(self, lines: int) -> None:
        """Add completed lines."""
        self.done += lines
        now = time.perf_counter()
        speed = (self.done - self._done_before) / max(now - self._started, 1e-9)
        speed_text = f"{speed:.{0 if speed >= 10 else 1}f} {self.noun}/s"
        if self.update(self.done, speed_text):
            return
        if self.shown and now - self._printed >= self.SECONDS_BETWEEN_LINES:
            self._printed = now
            total = "" if self.total is None else f" of {self.total}"
            left = "" if self.total is None else f", {(self.total - self.done) / max(speed, 1e-9):.0f} s left"
            self.print(f"regard: {self.done}{total} {self.noun}, {speed_text}{left}")
