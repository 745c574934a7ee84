"""Console output of a run: a progress bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console

from regard.console import ProgressBar

MAX_SHOWN = 60
"""Characters of a sample sentence that are shown."""
REPORT_INTERVAL = 10.0
"""Seconds between messages about data preparation."""
T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """An input from the validation set, its reference, and the model's output."""

    source: str
    reference: str
    translation: str


class OutputConsole(Console):
    """Standard output that is silenced if its reader exits, so that training continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write("regard: the output is no longer read; training and its log continue\n")


class Progress(ProgressBar):
    """Shows steps, loss, learning rate, speed, remaining time and validation scores."""

    def __init__(self, steps: int, console: Console | None = None, unit: str = "tokens") -> None:
        super().__init__("step {task.completed}/{task.total}", steps, console=console or OutputConsole())
        self.unit = unit
        self.steps = steps
        self.first_report: tuple[int, float] | None = None  # step and time

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Iterate over pairs and print from time to time how many have been read."""
        report = self.counter(what, "pairs")
        for number, item in enumerate(items, start=1):
            yield item
            if number % 10_000 == 0:
                report(number)

    def counter(self, what: str, noun: str) -> Callable[[int], None]:
        """Return a function that takes the number of finished items and prints it from time to time."""
        started = last_report = time.perf_counter()

        def report(number: int) -> None:
            nonlocal last_report
            if (now := time.perf_counter()) - last_report > REPORT_INTERVAL:
                self.print(f"{what}: {number:,} {noun}, {number / (now - started):,.0f} per second")
                last_report = now

        return report

    def resume(self, step: int) -> None:
        """Print the step from which the run resumes."""
        self.print(f"resuming from step {step}" if step else "starting again, because no checkpoint was saved")

    def step(self, step: int, report: dict[str, float]) -> None:
        speed = f"{report[f'{self.unit}_per_second']:,.0f} {self.unit}/s"
        text = f"loss {report['loss']:.3f}  {speed}  lr {report['lr']:.2e}"
        if not self.update(step, text):
            self.print(f"step {step}/{self.steps}  {text}{self._remaining(step)}")

    def _remaining(self, step: int) -> str:
        """Estimate the remaining time from the steps since the first report, before which programs may be compiled."""
        now = time.perf_counter()
        if self.first_report is None:
            self.first_report = step, now
            return ""
        first, start = self.first_report
        return f"  {(now - start) / (step - first) * (self.steps - step):.0f} s left"

    def validated(self, step: int, scores: dict[str, float], samples: Sequence[Sample] = ()) -> None:
        shown = {name: value for name, value in scores.items() if name != "score"}
        self.print(f"step {step}  validation  " + "  ".join(f"{name} {value:.2f}" for name, value in shown.items()))
        for sample in samples:
            correct = sample.translation == sample.reference
            reference = "" if correct else f"  (reference: {_shorten(sample.reference)})"
            self.print(f"  {_shorten(sample.source)}  →  {_shorten(sample.translation)}{reference}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 pair" or "2,000 pairs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
