"""How many steps of a two-view recipe there is time for: a trial tells what they take."""

from __future__ import annotations

import gc
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console

from regard.runtime import choose_device
from regard.training.progress import Progress
from regard.training.run import build_task
from regard.training.step_timing import Pace, time_steps
from regard.training.tasks.croco.recipe import CroCoRecipe

TRIAL = 0.04
"""Share of the time given that a trial goes on behind its warm-up, unless it has seen too few steps by then."""
RISING = 5
"""The masked share rises during one of so many steps at the most."""
LEAST = 20
"""Steps that are planned however short the time."""
EACH = 3
"""Stretches of a trial of each masked share, the first and the last; as many as a median needs."""


class Speed(NamedTuple):
    """Seconds of a step: while the masked share rises, and later; what a change of it costs once is not among them."""

    rising: float
    settled: float

    def __str__(self) -> str:
        return f"{1 / self.settled:.1f} steps a second ({1 / self.rising:.1f} at first)"


def measure_speed(recipe: CroCoRecipe, seconds: float) -> Speed:
    """Takes steps, rendering included, until so many seconds have passed behind the warm-up, and keeps nothing."""
    device = choose_device(recipe.training.device)
    pace = Pace.on(device)
    changes = {"ramp_steps": pace.warm_up + EACH * pace.group, "ramp_levels": 2}
    trial = recipe.changed(completion=recipe.completion.model_dump() | changes)
    torch.manual_seed(recipe.training.seed)
    task = build_task(trial, device, Progress(1, Console(quiet=True)))
    timing = time_steps(task, trial, device, seconds, groups=2 * EACH + 1)
    del task
    gc.collect()  # its memory is wanted by the run that follows
    times = [milliseconds / 1000 for milliseconds in timing.milliseconds]
    first, settled = median(times[:EACH]), median(times[EACH + 1 :])  # a new shape is made ready in that between them
    if recipe.completion.initial_mask_ratio is None:
        return Speed(settled, settled)
    return Speed(_mean_of_plateaus(first, settled, recipe.completion.ramp_levels), settled)


def _mean_of_plateaus(first: float, last: float, plateaus: int) -> float:
    """Seconds of a step on all plateaus but the last, which are as long as each other, from those on the outer two."""
    risen = (plateaus - 2) / (plateaus - 1) / 2
    return (1 - risen) * first + risen * last


def count_steps(recipe: CroCoRecipe, speed: Speed, seconds: float) -> int:
    """How many steps of the recipe, as `fitted` would have them, take so many seconds."""
    steps = seconds / (speed.rising / RISING + speed.settled * (1 - 1 / RISING))
    most = recipe.completion.ramp_steps
    if steps / RISING > most:
        steps = most + (seconds - most * speed.rising) / speed.settled
    return max(LEAST, int(steps))


def fitted(recipe: CroCoRecipe, steps: int, looks: int = 10) -> CroCoRecipe:
    """The recipe for so many steps: what it does in the first ones takes no larger share of fewer."""
    every = max(1, -(-steps // looks))
    training = {"steps": steps, "validate_every": every, "checkpoint_every": steps, "log_every": max(1, steps // 40)}
    rising = max(1, min(recipe.completion.ramp_steps, steps // RISING))
    return recipe.changed(
        training=recipe.training.model_dump() | training,
        optim=recipe.optim.model_dump() | {"warmup": min(recipe.optim.warmup, steps // 10)},
        completion=recipe.completion.model_dump() | {"ramp_steps": rising},
    )
