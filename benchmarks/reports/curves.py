"""Growth of cost with sequence length: fitted power laws and their crossover."""

import math
from collections.abc import Mapping
from typing import NamedTuple

Series = Mapping[int, float]  # cost by length


class Law(NamedTuple):
    """Cost grows as length ** exponent between two lengths."""

    exponent: float
    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"n^{self.exponent:.2f}"


def fit(series: Series, shortest: int, longest: int | None = None) -> Law | None:
    """Fit a power law to the lengths within these bounds; None if fewer than three were measured."""
    lengths = [n for n in sorted(series) if shortest <= n <= (longest or n)]
    if len(lengths) < 3:
        return None
    points = [(math.log(n), math.log(series[n])) for n in lengths]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return Law(slope, lengths[0], lengths[-1])


def crossover(one: Series, other: Series) -> int | None:
    """The length from which `one` costs less than `other`, interpolated between measured lengths."""
    lengths = sorted(one.keys() & other.keys())
    gaps = [(n, math.log(one[n] / other[n])) for n in lengths]
    if not gaps or gaps[-1][1] > 0:
        return None
    for (short, above), (long, below) in zip(reversed(gaps[:-1]), reversed(gaps[1:]), strict=True):
        if above > 0:
            return round(math.exp(math.log(short) + math.log(long / short) * above / (above - below)))
    return lengths[0]
