"""Timing of training steps: run the real training loop until enough steps are timed, without saving anything."""

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

MIN_GROUPS = 5
"""Default number of groups of steps over which the median is taken."""
NEVER = 10**9


@dataclass
class StepTiming:
    """Timing of groups of training steps."""

    unit: str  # what `rates` count, such as "tokens"
    rates: list[float] = field(default_factory=list)  # units per second of each group
    milliseconds: list[float] = field(default_factory=list)  # per step of each group
    steps: int = 0  # that were timed
    warm_up: float = 0.0  # extra seconds of the first steps: trying the largest batch, graph capture, compilation
    peak: float | None = None  # memory on the GPU in bytes
    per_unit: float | None = None  # GPU memory of the largest batch per unit, without weights and optimizer state
    notes: list[str] = field(default_factory=list)  # messages of the loop, such as about batches that do not fit

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def step(self) -> float:
        """Median milliseconds per step."""
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
    task: Task[Any], recipe: Recipe, device: torch.device, seconds: float, groups: int = MIN_GROUPS
) -> StepTiming:
    """Train for the given time and number of groups of steps after the warm-up, without validation and checkpoints."""
    on_gpu = device.type == "cuda"
    # Reading the clock synchronises with a GPU, so groups of steps are timed there, as in a real run.
    # The first steps on a GPU include CUDA graph capture or compilation.
    warm_up, group = (10, 10) if on_gpu else (3, 1)
    settings = recipe.training.changed(
        steps=NEVER, log_every=group, validate_every=NEVER, checkpoint_every=NEVER, tensorboard=False
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    clock = _StepClock(StepTiming(task.unit), warm_up, group, device, seconds, groups)
    with tempfile.TemporaryDirectory() as folder, suppress(_EnoughStepsError):
        TrainingLoop(task, recipe.optim, settings, Path(folder), clock).train()
    timing = clock.timing
    timing.warm_up = max(0.0, clock.warm_up_seconds - warm_up * timing.step / 1000)
    if on_gpu:
        timing.peak = clock.peak
        timing.per_unit = (clock.peak - clock.allocated) / task.count(task.largest_batch())
    return timing


class _EnoughStepsError(Exception):
    """Ends the training loop."""


class _StepClock(Progress):
    """Records the time of every group of steps, prints nothing, and ends the loop when enough steps are timed."""

    def __init__(
        self, timing: StepTiming, warm_up: int, group: int, device: torch.device, seconds: float, groups: int
    ) -> None:
        super().__init__(NEVER, Console(quiet=True), timing.unit)
        self.timing, self.warm_up, self.group = timing, warm_up, group
        self.device, self.seconds, self.groups = device, seconds, groups
        self.last = self.start_time = time.perf_counter()
        self.warm_up_seconds = 0.0
        self.peak = self.allocated = 0.0

    def print(self, text: str) -> None:
        self.timing.notes.append(text)

    def step(self, step: int, report: dict[str, float]) -> None:
        """Record a group of steps, after which the training loop calls this method."""
        now, timing = time.perf_counter(), self.timing
        self.peak = max(self.peak, 1e6 * report["memory"])
        if step <= self.warm_up:
            self.warm_up_seconds = now - self.start_time
            if self.device.type == "cuda":
                self.allocated = float(torch.cuda.memory_allocated(self.device))
        else:
            timing.steps += self.group
            timing.rates.append(report[f"{timing.unit}_per_second"])
            timing.milliseconds.append(1000 * (now - self.last) / self.group)
        self.last = now
        timed_seconds = now - self.start_time - self.warm_up_seconds
        if len(timing.rates) >= self.groups and timed_seconds >= self.seconds:
            raise _EnoughStepsError
