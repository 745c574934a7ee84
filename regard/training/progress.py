"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows steps, loss, learning rate, speed, time left and validation scores."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self.steps = steps
        self.console = console or Console()
        self.started = time.perf_counter()
        self.first = 0
        self.bar: Bar | None = None
        if self.console.is_terminal:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.bar = Bar(*columns, console=self.console)
            self.line = self.bar.add_task("", total=steps, text="")

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def resume(self, step: int) -> None:
        """Says from where the run goes on; the time left is estimated from the steps after it alone."""
        self.say(f"resuming from step {step}")
        self.first, self.started = step, time.perf_counter()

    def step(self, step: int, report: dict[str, float]) -> None:
        text = f"loss {report['loss']:.3f}  {report['tokens_per_second']:,.0f} tokens/s  lr {report['lr']:.2e}"
        if self.bar:
            self.bar.update(self.line, completed=step, text=text)
        else:
            left = (time.perf_counter() - self.started) / (step - self.first) * (self.steps - step)
            self.say(f"step {step}/{self.steps}  {text}  {left:.0f} s left")

    def validated(self, step: int, scores: dict[str, float]) -> None:
        shown = {name: value for name, value in scores.items() if name != "score"}
        self.say(f"step {step}  validation  " + "  ".join(f"{name} {value:.2f}" for name, value in shown.items()))
