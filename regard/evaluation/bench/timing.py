"""How long batches take: whoever is timed takes turns with the others, and medians count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import TypeVar

from regard.errors import UserError

WARM_UP = 3
TURNS = 5
"""Batches before the clock counts, and how often each contender has its turn, for a batch at the least."""
T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """The median time of a batch of so many sentences or images, and how many batches it is the median of."""

    batch: int
    milliseconds: float
    batches: int

    @property
    def per_second(self) -> float:
        """Sentences, or images."""
        return 1000 * self.batch / self.milliseconds


def measure_speed(
    contenders: Sequence[Callable[[Sequence[T]], object]],
    items: Sequence[T],
    batch: int,
    seconds: float,
    noun: str = "sentences",
) -> list[Timing]:
    """Hands out batch after batch of the items, in order and again from the beginning, so many seconds each.

    The contenders take turns, so that whatever else the machine does slows all of them alike. What they return must be
    on the host, so that the device has done its work.

    Raises:
        UserError: there are fewer items than make a batch.
    """
    if batch > len(items):
        raise UserError(f"{len(items)} {noun} do not make a batch of {batch}; give more, or a smaller --batch")
    starts = range(0, len(items) - batch + 1, batch)
    feeds = [cycle([items[start : start + batch] for start in starts]) for _ in contenders]
    for work, feed in zip(contenders, feeds, strict=True):
        for some in islice(feed, WARM_UP):
            work(some)
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(TURNS):
        for work, feed, taken in zip(contenders, feeds, times, strict=True):
            taken += _take_turn(work, feed, seconds / TURNS)
    return [Timing(batch, round(1000 * median(taken), 4), len(taken)) for taken in times]


def _take_turn(work: Callable[[Sequence[T]], object], feed: Iterator[Sequence[T]], seconds: float) -> list[float]:
    """How long each batch took, until they have taken so many seconds."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        some = next(feed)
        begin = time.perf_counter()
        work(some)
        times.append(time.perf_counter() - begin)
    return times
