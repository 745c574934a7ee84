"""The learning rate of each step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.training.recipe import OptimSettings

Schedule = Callable[[int], float]


def build_schedule(optim: OptimSettings, steps: int, width: int) -> Schedule:
    """The schedule that the settings name; all but noam rise linearly to `lr` within the warm-up."""
    lr, warmup = optim.lr, max(1, optim.warmup)

    def noam(step: int) -> float:
        return float(lr * width**-0.5 * min(step**-0.5, step * warmup**-1.5))

    def inverse_sqrt(step: int) -> float:
        return lr * min(step / warmup, math.sqrt(warmup / step))

    def cosine(step: int) -> float:
        done = max(0, step - warmup) / max(1, steps - warmup)
        return lr * min(step / warmup, (1 + math.cos(math.pi * min(1.0, done))) / 2)

    def constant(step: int) -> float:
        return lr * min(1.0, step / warmup)

    schedules = {"noam": noam, "inverse-sqrt": inverse_sqrt, "cosine": cosine, "constant": constant}
    return schedules[optim.schedule]
