"""How far a file has come, on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 5.0


class LineProgress:
    """Counts lines, out of a total where it is known; what takes less than a few seconds says nothing."""

    def __init__(self, total: int | None, done: int = 0, *, shown: bool = True, console: Console | None = None) -> None:
        self.total, self.done = total, done
        self.shown = shown
        self.console = console or Console(stderr=True)
        self.before = done
        self.started = self.said = time.perf_counter()
        self.bar: Bar | None = None
        if shown and self.console.is_terminal:
            columns = (
                TextColumn("{task.completed} of {task.total} lines" if total is not None else "{task.completed} lines"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.bar = Bar(*columns, console=self.console, transient=True)
            self.line = self.bar.add_task("", total=total, completed=done, text="")

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, lines: int) -> None:
        """So many more lines are done."""
        self.done += lines
        if not self.shown:
            return
        now = time.perf_counter()
        speed = (self.done - self.before) / max(now - self.started, 1e-9)
        if self.bar:
            self.bar.update(self.line, completed=self.done, text=f"{_round(speed)} lines/s")
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            whole = "" if self.total is None else f" of {self.total}"
            left = "" if self.total is None else f", {(self.total - self.done) / max(speed, 1e-9):.0f} s left"
            self.console.print(
                f"regard: {self.done}{whole} lines, {_round(speed)} lines/s{left}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def _round(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
