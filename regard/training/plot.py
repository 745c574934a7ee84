"""Plots of training logs: one panel per metric, several runs in each panel."""

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
from regard.files import MissingFileError, open_regular, parse_json, read_raw_lines
from regard.inspection.fonts import save_figure
from regard.training.metrics_log import LOG

XAxis = Literal["step", "seconds", "tokens", "images"]
COUNTED = ("tokens", "images")
FORMATS = (".png", ".svg", ".pdf")
# The palette of Okabe and Ito, distinguishable with colour blindness; without yellow, which is too light on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Entry = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One metric: its label, its path of keys in a log entry, and its line style."""

    name: str
    keys: tuple[str, ...]
    style: dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """Curves that share a y axis."""

    title: str
    curves: tuple[Curve, ...]
    scale: Literal["linear", "log", "from zero"] = "linear"
    events: bool = False  # whether skipped steps and out-of-memory events are marked


LINE: dict[str, Any] = {"linewidth": 1.4}
DOTS: dict[str, Any] = {"linewidth": 1.2, "linestyle": "--", "marker": "o", "markersize": 4}
SQUARES = DOTS | {"linestyle": ":", "marker": "s"}
TICKS: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 9}
SCORES = (
    Curve("BLEU", ("validation", "bleu"), DOTS),
    Curve("chrF", ("validation", "chrf"), SQUARES),
    Curve("accuracy, %", ("validation", "accuracy"), DOTS),
    Curve("top-5 accuracy, %", ("validation", "top5"), SQUARES),
)
SPEEDS = (Curve("tokens", ("tokens_per_second",), LINE), Curve("images", ("images_per_second",), LINE))
PANELS = (
    # In separate panels, because only the training loss includes label smoothing, dropout and auxiliary losses.
    Panel("training loss", (Curve("", ("loss",), LINE),), events=True),
    Panel("validation loss", (Curve("", ("validation", "loss"), DOTS),)),
    Panel("score", SCORES),
    Panel("learning rate", (Curve("", ("lr",), LINE),)),
    Panel("gradient norm", (Curve("", ("gradient_norm",), LINE),), "log"),
    Panel("speed, per second", SPEEDS, "from zero"),
    Panel("peak memory, MB", (Curve("", ("memory",), LINE),), "from zero"),
)
PLOTTED = [curve.keys for panel in PANELS for curve in panel.curves] + [(name,) for name in get_args(XAxis)]
"""Paths of keys whose values are numbers."""


def plot_runs(runs: Sequence[Path], out: Path, x_axis: str = "step") -> None:
    """Plot the logs of runs, complete or in progress, to a PNG, SVG or PDF file. The file is written atomically."""
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"{out}: unknown format; the name must end in {', '.join(FORMATS)}")
    if x_axis not in get_args(XAxis):
        raise UserError(f"--x {x_axis}: choose {', '.join(get_args(XAxis))}")
    logs = [read_log(run) for run in runs]
    for run, entries in zip(runs, logs, strict=True):
        if not any(x_axis in entry for entry in entries):
            raise UserError(f"{run}: its log has no {x_axis}; choose another --x")
    names = name_runs(runs)
    save_figure(lambda: draw(names, logs, x_axis), names, out)


def read_log(run: Path) -> list[Entry]:
    """Return the entries of a run's log, without an incomplete last line, which is still being written."""
    path = run / LOG
    try:
        with open_regular(path) as file:
            lines = [line.decode("utf-8", "replace") for line in read_raw_lines(file, str(path))]
    except MissingFileError:
        problem = f"not a training run ({LOG} is missing)" if run.is_dir() else "no such run folder"
        raise UserError(f"{run}: {problem}") from None
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            entry = parse_json(line)
            entries.append({"step": int(entry["step"])} | entry)
            for keys in PLOTTED:
                _value(entry, keys)
        except (ValueError, KeyError, TypeError, OverflowError):
            raise UserError(f"{path}, line {number}: not a log entry: {line.rstrip()[:80]!r}") from None
    if not entries:
        raise UserError(f"{path}: no entries yet; try again after training.log_every steps")
    return entries


def name_runs(runs: Sequence[Path]) -> list[str]:
    """Return the shortest path suffixes that distinguish the runs."""
    parts = [run.resolve().parts for run in runs]
    length = 1
    while length < max(map(len, parts)) and len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def draw(names: Sequence[str], logs: Sequence[list[Entry]], x_axis: str) -> Figure:
    """Draw one panel for each metric that at least one run has."""
    panels = [panel for panel in PANELS if any(_points(log, c, x_axis).size for log in logs for c in panel.curves)]
    rows = max(1, (len(panels) + 1) // 2)
    figure = Figure(figsize=(11, 0.8 + 2.9 * rows), layout="constrained")
    first: Axes | None = None
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, 2, number, sharex=first)
        first = first or axes
        _draw_panel(axes, panel, logs, x_axis)
    handles = [Line2D([], [], color=_colour(i), linewidth=3, label=name) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(names)), frameon=False)
    return figure


def _draw_panel(axes: Axes, panel: Panel, logs: Sequence[list[Entry]], x_axis: str) -> None:
    legend = [curve for curve in panel.curves if _draw_curve(axes, curve, logs, x_axis) and curve.name]
    if panel.events and _mark_events(axes, logs, x_axis):
        legend.append(Curve("step skipped, or out of memory", (), TICKS))
    if legend:
        handles = [Line2D([], [], color="#555555", label=curve.name, **curve.style) for curve in legend]
        axes.legend(handles=handles, frameon=False, fontsize=9)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(f"training {x_axis}" if x_axis in COUNTED else x_axis)
    if x_axis in COUNTED:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.scale == "log":
        axes.set_yscale("log")
    elif panel.scale == "from zero":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _draw_curve(axes: Axes, curve: Curve, logs: Sequence[list[Entry]], x_axis: str) -> bool:
    """Draw the metric for every run that has it, and return whether any has."""
    drawn = False
    for i, log in enumerate(logs):
        points = _points(log, curve, x_axis)
        if points.size:
            single = {"marker": "o", "markersize": 4} if len(points) == 1 else {}
            axes.plot(points[:, 0], points[:, 1], color=_colour(i), **(curve.style | single))
            drawn = True
    return drawn


def _mark_events(axes: Axes, logs: Sequence[list[Entry]], x_axis: str) -> bool:
    """Mark logged events by ticks at the bottom of the panel, and return whether there are any."""
    marked = False
    for i, log in enumerate(logs):
        positions = [float(entry[x_axis]) for entry in log if "event" in entry and entry.get(x_axis) is not None]
        axes.plot(positions, [0.02] * len(positions), color=_colour(i), transform=axes.get_xaxis_transform(), **TICKS)
        marked = marked or bool(positions)
    return marked


def _points(log: list[Entry], curve: Curve, x_axis: str) -> Floats:
    """Return (x, value) pairs, (n, 2); NaN values leave a gap."""
    found = []
    for entry in log:
        x, y = _value(entry, (x_axis,)), _value(entry, curve.keys)
        if x is not None and y is not None:
            found.append((x, y))
    return np.array(found).reshape(-1, 2)


def _value(entry: Entry, keys: Sequence[str]) -> float | None:
    """Return the number at a path of keys, NaN where the log has null, and None where it has nothing."""
    value: Any = entry
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return np.nan if value is None else float(value)


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]
