"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console

from regard.runtime import ProgressBar
from regard.training.task import Sample

SHOWN = 60  # characters of a sentence
QUIET = 10.0  # seconds between two words about work that takes long
T = TypeVar("T")


class Screen(Console):
    """Standard output, which falls silent where nobody reads it any more: that is no reason to stop training."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write("regard: nobody reads the output any more; the run goes on, and so does its log\n")


class Progress(ProgressBar):
    """Shows steps, loss, learning rate, speed, time left and validation scores."""

    def __init__(self, steps: int, console: Console | None = None, unit: str = "tokens") -> None:
        super().__init__("step {task.completed}/{task.total}", steps, console=console or Screen())
        self.unit = unit
        self.steps = steps
        self.started = time.perf_counter()
        self.first = 0

    def watch(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items; from time to time it says how many have gone by."""
        tell = self.counter(what, "pairs")
        for number, item in enumerate(items, start=1):
            yield item
            if number % 10_000 == 0:
                tell(number)

    def counter(self, what: str, noun: str) -> Callable[[int], None]:
        """Something to be told how many are done, which from time to time says so."""
        started = said = time.perf_counter()

        def tell(number: int) -> None:
            nonlocal said
            if (now := time.perf_counter()) - said > QUIET:
                self.print(f"{what}: {number:,} {noun}, {number / (now - started):,.0f} a second")
                said = now

        return tell

    def resume(self, step: int) -> None:
        """Says from where the run goes on; the time left is estimated from the steps after it alone."""
        self.print(f"resuming from step {step}" if step else "beginning again, since nothing was saved before")
        self.first, self.started = step, time.perf_counter()

    def step(self, step: int, report: dict[str, float]) -> None:
        speed = f"{report[f'{self.unit}_per_second']:,.0f} {self.unit}/s"
        text = f"loss {report['loss']:.3f}  {speed}  lr {report['lr']:.2e}"
        if not self.update(step, text):
            left = (time.perf_counter() - self.started) / (step - self.first) * (self.steps - step)
            self.print(f"step {step}/{self.steps}  {text}  {left:.0f} s left")

    def validated(self, step: int, scores: dict[str, float], samples: Sequence[Sample] = ()) -> None:
        shown = {name: value for name, value in scores.items() if name != "score"}
        self.print(f"step {step}  validation  " + "  ".join(f"{name} {value:.2f}" for name, value in shown.items()))
        for sample in samples:
            right = sample.translation == sample.reference
            beside = "" if right else f"  (should be {_cut(sample.reference)})"
            self.print(f"  {_cut(sample.source)}  →  {_cut(sample.translation)}{beside}")


def counted(number: int, noun: str) -> str:
    """ "1 pair", "2,000 pairs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
