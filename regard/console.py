"""The user at the console: interruptions by signals, and progress bars."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from rich.console import Console


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
