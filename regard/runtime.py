"""Devices, signals and progress bars."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from regard.errors import UserError

if TYPE_CHECKING:
    import torch
    from rich.console import Console


def choose_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" selects a GPU if one is available.

    Raises:
        UserError: the device does not exist or cannot be used.
    """
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
        count: what is counted, as a rich format string with {task.completed} and {task.total}.
        total: the number of items, or None if it is unknown.
        done: the number of items that are already complete.
        console: where to draw.
        drawn: False disables the bar.
        keep: whether the bar stays on the screen at the end.
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
