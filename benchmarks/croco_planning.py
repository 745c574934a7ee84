"""How many steps of a two-view recipe there is time for: a trial tells what they take."""

from __future__ import annotations

import gc
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console

from regard.devices import choose_device
from regard.training.completion.recipe import TwoViewRecipe
from regard.training.progress import Progress
from regard.training.run import prepare
from regard.training.timing import Pace, time_steps

TRIAL = 0.04
"""Share of the time given that a trial goes on behind its warm-up, unless it has seen too few steps by then."""
RISING = 5
"""The masked share rises during one of so many steps at the most."""
LEAST = 20
"""Steps that are planned however short the time."""
EARLY = 3
"""Stretches of a trial in which the masked share rises; as many as a median needs."""


class Speed(NamedTuple):
    """Seconds of a step: while the masked share rises, when few batches have the shape of the last, and later."""

    rising: float
    settled: float

    def __str__(self) -> str:
        return f"{1 / self.settled:.1f} steps a second ({1 / self.rising:.1f} at first)"


def measure_speed(recipe: TwoViewRecipe, seconds: float) -> Speed:
    """Takes steps, rendering included, until so many seconds have passed behind the warm-up, and keeps nothing."""
    device = choose_device(recipe.training.device)
    pace = Pace.on(device)
    rising = pace.warm_up + EARLY * pace.every
    trial = recipe.changed(completion=recipe.completion.model_dump() | {"rising": rising})
    torch.manual_seed(recipe.training.seed)
    task = prepare(trial, device, Progress(1, Console(quiet=True)))
    times = [milliseconds / 1000 for milliseconds in time_steps(task, trial, device, seconds).milliseconds]
    del task
    gc.collect()  # its memory is wanted by the run that follows
    settled = median(times[EARLY:])
    return Speed(median(times[:EARLY]) if recipe.completion.masked_at_first is not None else settled, settled)


def count_steps(recipe: TwoViewRecipe, speed: Speed, seconds: float) -> int:
    """How many steps of the recipe, as `fitted` would have them, take so many seconds."""
    steps = seconds / (speed.rising / RISING + speed.settled * (1 - 1 / RISING))
    most = recipe.completion.rising
    if steps / RISING > most:
        steps = most + (seconds - most * speed.rising) / speed.settled
    return max(LEAST, int(steps))


def fitted(recipe: TwoViewRecipe, steps: int, looks: int = 10) -> TwoViewRecipe:
    """The recipe for so many steps: what it does in the first ones takes no larger share of fewer."""
    every = max(1, -(-steps // looks))
    training = {"steps": steps, "validate_every": every, "checkpoint_every": steps, "log_every": max(1, steps // 40)}
    rising = max(1, min(recipe.completion.rising, steps // RISING))
    return recipe.changed(
        training=recipe.training.model_dump() | training,
        optim=recipe.optim.model_dump() | {"warmup": min(recipe.optim.warmup, steps // 10)},
        completion=recipe.completion.model_dump() | {"rising": rising},
    )
