"""How far something has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display:
    """A bar that counts, with a text beside it and the time taken and left, where there is a terminal to draw it on."""

    def __init__(
        self, count: str, total: int | None, done: int = 0, *, console: Console, drawn: bool = True, stays: bool = True
    ) -> None:
        """`count` names what is counted in rich's words, {task.completed} and {task.total}."""
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
            self._bar = Progress(*columns, console=console, transient=not stays)
            self._line = self._bar.add_task("", total=total, completed=done, text="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def draw(self, done: int, text: str) -> bool:
        """Moves the bar; False where there is none, and a line may be said instead."""
        if self._bar:
            self._bar.update(self._line, completed=done, text=text)
        return self._bar is not None

    def say(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
