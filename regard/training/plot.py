"""Runs as a picture: what their logs hold, one panel a figure, several runs over each other."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from regard.errors import UserError
from regard.training.metrics_log import LOG

Horizontal = Literal["step", "seconds", "tokens", "images"]
COUNTED = ("tokens", "images")
FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind people can tell apart; without the yellow, which fades on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ABSENT = object()
Entry = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One figure of a log: a name to show, the keys that lead to it in an entry, and how it is drawn."""

    name: str
    keys: tuple[str, ...]
    style: dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """Curves that share a scale."""

    title: str
    curves: tuple[Curve, ...]
    scale: Literal["linear", "log", "from zero"] = "linear"
    events: bool = False  # whether what was out of the ordinary is marked here


LINE: dict[str, Any] = {"linewidth": 1.4}
DOTS: dict[str, Any] = {"linewidth": 1.2, "linestyle": "--", "marker": "o", "markersize": 4}
SQUARES = DOTS | {"linestyle": ":", "marker": "s"}
TICKS: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 9}
LOSSES = (Curve("training", ("loss",), LINE), Curve("validation", ("validation", "loss"), DOTS))
SCORES = (
    Curve("BLEU", ("validation", "bleu"), DOTS),
    Curve("chrF", ("validation", "chrf"), SQUARES),
    Curve("accuracy, %", ("validation", "accuracy"), DOTS),
    Curve("accuracy of the first five, %", ("validation", "top5"), SQUARES),
)
SPEEDS = (Curve("tokens", ("tokens_per_second",), LINE), Curve("images", ("images_per_second",), LINE))
PANELS = (
    Panel("loss", LOSSES, events=True),
    Panel("score", SCORES),
    Panel("learning rate", (Curve("", ("lr",), LINE),)),
    Panel("norm of the gradient", (Curve("", ("gradient_norm",), LINE),), "log"),
    Panel("speed, per second", SPEEDS, "from zero"),
    Panel("peak memory, MB", (Curve("", ("memory",), LINE),), "from zero"),
)


def plot_runs(runs: Sequence[Path], out: Path, horizontal: str = "step") -> None:
    """Draws the logs of runs, finished or not, into a PNG, SVG or PDF file, which is written whole or not at all.

    Raises:
        UserError: a run has no log, or its log is damaged or has nothing to draw; or the file cannot be written.
    """
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"{out}: a plot is written as {', '.join(FORMATS)}; choose such a name")
    if horizontal not in get_args(Horizontal):
        raise UserError(f"--x {horizontal}: choose {', '.join(get_args(Horizontal))}")
    logs = [read_log(run) for run in runs]
    for run, entries in zip(runs, logs, strict=True):
        if not any(horizontal in entry for entry in entries):
            raise UserError(f"{run}: its log does not say {horizontal}; choose another --x")
    _save(draw(name_runs(runs), logs, horizontal), out)


def read_log(run: Path) -> list[Entry]:
    """The entries of a run's log; half a line at its end, which is still being written, is left out.

    Raises:
        UserError: there is none, it is empty, or a line of it is damaged.
    """
    path = run / LOG
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        raise UserError(f"{run}: no training run is here, for there is no {LOG} in it") from None
    entries: list[Entry] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            entries.append({"step": int(entry["step"])} | entry)
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}, line {number}: not an entry of a log: {line[:80]!r}") from None
    if not entries:
        raise UserError(f"{path}: nothing has been logged yet; try again after training.log_every steps")
    return entries


def name_runs(runs: Sequence[Path]) -> list[str]:
    """What to call each run: the name of its folder, or as much of its path as tells it from the others."""
    parts = [run.resolve().parts for run in runs]
    length = 1
    while length < max(map(len, parts)) and len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def draw(names: Sequence[str], logs: Sequence[list[Entry]], horizontal: str) -> Figure:
    """A panel for each figure that some run has."""
    panels = [panel for panel in PANELS if any(_points(log, c, horizontal).size for log in logs for c in panel.curves)]
    rows = max(1, (len(panels) + 1) // 2)
    figure = Figure(figsize=(11, 0.8 + 2.9 * rows), layout="constrained")
    first: Axes | None = None
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, 2, place, sharex=first)
        first = first or axes
        _draw_panel(axes, panel, logs, horizontal)
    handles = [Line2D([], [], color=_colour(i), linewidth=3, label=name) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(names)), frameon=False)
    return figure


def _draw_panel(axes: Axes, panel: Panel, logs: Sequence[list[Entry]], horizontal: str) -> None:
    legend = [curve for curve in panel.curves if _draw_curve(axes, curve, logs, horizontal) and curve.name]
    if panel.events and _mark_events(axes, logs, horizontal):
        legend.append(Curve("step skipped, or out of memory", (), TICKS))
    if legend:
        handles = [Line2D([], [], color="#555555", label=curve.name, **curve.style) for curve in legend]
        axes.legend(handles=handles, frameon=False, fontsize=9)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(f"training {horizontal}" if horizontal in COUNTED else horizontal)
    if horizontal in COUNTED:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.scale == "log":
        axes.set_yscale("log")
    elif panel.scale == "from zero":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _draw_curve(axes: Axes, curve: Curve, logs: Sequence[list[Entry]], horizontal: str) -> bool:
    """Draws a curve of every run that has it; returns whether any has."""
    drawn = False
    for i, log in enumerate(logs):
        points = _points(log, curve, horizontal)
        if points.size:
            lonely = {"marker": "o", "markersize": 4} if len(points) == 1 else {}
            axes.plot(points[:, 0], points[:, 1], color=_colour(i), **(curve.style | lonely))
            drawn = True
    return drawn


def _mark_events(axes: Axes, logs: Sequence[list[Entry]], horizontal: str) -> bool:
    """A tick at the foot of the panel for all that was out of the ordinary; returns whether anything was."""
    marked = False
    for i, log in enumerate(logs):
        places = [entry[horizontal] for entry in log if "event" in entry and horizontal in entry]
        axes.plot(places, [0.02] * len(places), color=_colour(i), transform=axes.get_xaxis_transform(), **TICKS)
        marked = marked or bool(places)
    return marked


def _points(log: list[Entry], curve: Curve, horizontal: str) -> Floats:
    """(n, 2): where it was logged, and the figure; what is no number is a gap."""
    found = []
    for entry in log:
        value: Any = entry
        for key in curve.keys:
            value = value.get(key, ABSENT) if isinstance(value, dict) else ABSENT
        if value is not ABSENT and horizontal in entry:
            found.append((float(entry[horizontal]), np.nan if value is None else float(value)))
    return np.array(found).reshape(-1, 2)


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def _save(figure: Figure, out: Path) -> None:
    fresh = out.with_name(f".{out.stem}.{os.getpid()}{out.suffix}")
    try:
        figure.savefig(fresh, dpi=140, facecolor="white")
        fresh.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        fresh.unlink(missing_ok=True)
