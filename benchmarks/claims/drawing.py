"""Shared parts of the pictures: panels, colours, and lines with the range of seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.evaluation.benchmark.plot import COLOURS as COLOURS


def panels(count: int, label: str, rows: int = 1, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure and its panels, from left to right; `label` is that of the first y axis of each row."""
    figure = Figure(figsize=(4.6 * count, 4.0 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, count, squeeze=False, **options)
    for each in axes.flat:
        each.grid(color="#e4e4e4", linewidth=0.8)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel(label)
    return figure, list(axes.flat)


def draw_band(axes: Axes, x: Iterable[float], values: Sequence[Sequence[float]], **style: Any) -> None:
    """Draw the mean over seeds as a line and the range of seeds as a band; `values` has a row for each seed."""
    points, columns = list(x), list(zip(*values, strict=True))
    (line,) = axes.plot(points, [fmean(column) for column in columns], linewidth=1.6, **style)
    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(points, lowest, highest, color=line.get_color(), alpha=0.15, linewidth=0)
