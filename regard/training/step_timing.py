"""How fast the training loop goes: its real steps, watched until the figures are good, and nothing kept of them."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from regard.training.loop import TrainingLoop
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.task import Task
from regard.training.tasks.registry import task_of

LEAST = 5
"""Stretches of steps of which a median is taken, unless more are asked for."""
NEVER = 10**9


@dataclass(frozen=True)
class Pace:
    """When a stopwatch is read: how many steps to warm up, how many from one reading to the next.

    To be read, a GPU must be waited for, which in a run happens as seldom.
    """

    warm_up: int
    every: int

    @classmethod
    def on(cls, device: torch.device) -> Pace:
        """A GPU needs some steps until what is recorded or compiled is."""
        return cls(10, 10) if device.type == "cuda" else cls(3, 1)


@dataclass
class StepTiming:
    """What the steps of a recipe took.

    Attributes:
        unit: what `rates` count, such as "tokens"; each rate is of a stretch of steps.
        milliseconds: of a step, for each stretch.
        steps: that were timed.
        warm_up: seconds that the first steps took beyond what so many take later: rehearsing, recording, compiling.
        peak: most bytes on the GPU at any time.
        per_unit: bytes on the GPU that the largest batch takes for each of its units, beside weights and moments.
        notes: what the loop had to say, such as that batches do not fit into memory.
    """

    unit: str
    rates: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    steps: int = 0
    warm_up: float = 0.0
    peak: float | None = None
    per_unit: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def step(self) -> float:
        """Milliseconds."""
        return median(self.milliseconds)

    def as_dict(self) -> dict[str, Any]:
        return {
            f"{self.unit}_per_second": round(self.rate, 1),
            "slowest": round(min(self.rates), 1),
            "fastest": round(max(self.rates), 1),
            "step_ms": round(self.step, 3),
            "steps": self.steps,
            "warm_up_s": round(self.warm_up, 2),
            "peak_bytes": self.peak,
            f"bytes_per_{self.unit.removesuffix('s')}": self.per_unit and round(self.per_unit),
            "notes": self.notes,
        }


def time_steps(
    task: Task[Any], recipe: Recipe, device: torch.device, seconds: float, stretches: int = LEAST
) -> StepTiming:
    """Trains for so many seconds and stretches behind the warm-up, without a validation or a checkpoint.

    Raises:
        UserError: the model or a batch does not fit into memory, or the steps cannot be taken so.
    """
    pace, on_gpu = Pace.on(device), device.type == "cuda"
    settings = recipe.training.changed(
        steps=NEVER, log_every=pace.every, validate_every=NEVER, checkpoint_every=NEVER, tensorboard=False
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    watch = _Stopwatch(StepTiming(task_of(recipe.kind).unit), pace, device, seconds, stretches)
    with tempfile.TemporaryDirectory() as room, suppress(_EnoughError):
        TrainingLoop(task, recipe.optim, settings, Path(room), watch).run()
    timing = watch.timing
    timing.warm_up = max(0.0, watch.warm - pace.warm_up * timing.step / 1000)
    if on_gpu:
        timing.peak = watch.peak
        timing.per_unit = (watch.peak - watch.held) / task.count(task.largest_batch())
    return timing


class _EnoughError(Exception):
    """All has been seen."""


class _Stopwatch(Progress):
    """Sees every stretch of steps, says nothing, and ends the run when it has seen enough."""

    def __init__(self, timing: StepTiming, pace: Pace, device: torch.device, seconds: float, stretches: int) -> None:
        super().__init__(NEVER, Console(quiet=True), timing.unit)
        self.timing, self.pace, self.device, self.seconds, self.stretches = timing, pace, device, seconds, stretches
        self.last = self.start_time
        self.warm = 0.0  # seconds, until the warm-up was over
        self.peak = self.held = 0.0

    def print(self, text: str) -> None:
        self.timing.notes.append(text)

    def step(self, step: int, report: dict[str, float]) -> None:
        now, timing = time.perf_counter(), self.timing
        self.peak = max(self.peak, 1e6 * report["memory"])
        if step <= self.pace.warm_up:
            self.warm = now - self.start_time
            if self.device.type == "cuda":
                self.held = float(torch.cuda.memory_allocated(self.device))
        else:
            timing.steps += self.pace.every
            timing.rates.append(report[f"{timing.unit}_per_second"])
            timing.milliseconds.append(1000 * (now - self.last) / self.pace.every)
        self.last = now
        if len(timing.rates) >= self.stretches and now - self.start_time - self.warm >= self.seconds:
            raise _EnoughError
