"""How far a file has come, on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time

from rich.console import Console

from regard.runtime import ProgressBar

SECONDS_BETWEEN_LINES = 5.0


class LineProgress(ProgressBar):
    """Counts lines, or what else, out of a total where it is known; what takes less than a few seconds says nothing."""

    def __init__(
        self,
        total: int | None,
        done: int = 0,
        *,
        shown: bool = True,
        console: Console | None = None,
        noun: str = "lines",
    ) -> None:
        count = "{task.completed}" + ("" if total is None else " of {task.total}") + f" {noun}"
        super().__init__(count, total, done, console=console or Console(stderr=True), drawn=shown, keep=False)
        self.total, self.done, self.shown, self.noun = total, done, shown, noun
        self.before = done
        self.started = self.said = time.perf_counter()

    def advance(self, lines: int) -> None:
        """So many more lines are done."""
        self.done += lines
        now = time.perf_counter()
        speed = (self.done - self.before) / max(now - self.started, 1e-9)
        if self.update(self.done, f"{_round(speed)} {self.noun}/s"):
            return
        if self.shown and now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            whole = "" if self.total is None else f" of {self.total}"
            left = "" if self.total is None else f", {(self.total - self.done) / max(speed, 1e-9):.0f} s left"
            self.print(f"regard: {self.done}{whole} {self.noun}, {_round(speed)} {self.noun}/s{left}")


def _round(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
