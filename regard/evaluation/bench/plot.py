"""Quality against speed as a picture: one panel for each size of batch, the time on a logarithmic scale."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from regard.errors import UserError
from regard.evaluation.bench.speed import Result

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind people can tell apart; without the yellow, which fades on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def check_picture(path: Path) -> None:
    """Does nothing where a picture can be written to this path.

    Raises:
        UserError: its name says no format of a picture, or there is no such folder.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: a plot is written as {', '.join(FORMATS)}; choose such a name")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path}: no file can be written there; --plot needs a file name in an existing folder")


def draw_quality_against_speed(results: Sequence[Result], title: str) -> Figure:
    """Every result that has a score as a point: the better the higher, the faster the further left."""
    shown = [result for result in results if result.score is not None]
    sizes = [timing.batch for timing in shown[0].timings]
    figure = Figure(figsize=(4.2 * len(sizes) + 0.6, 5.2), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for size, axes in zip(sizes, panels, strict=True):
        for number, result in enumerate(shown):
            assert result.score is not None
            axes.plot(
                result.milliseconds(size),
                result.score.value,
                MARKERS[number // len(COLOURS) % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=9,
                label=result.name,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"batch of {size}" if size > 1 else "one sentence at a time", loc="left", fontsize=11)
        axes.set_xlabel("milliseconds a batch")
        axes.grid(color="#e4e4e4", linewidth=0.8, which="both")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("BLEU")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def save_quality_plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Draws the results into a file, which is written whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    fresh = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with mpl.rc_context({"svg.hashsalt": "regard"}):  # what is drawn again is the same file
            undated = {"Date": None} if path.suffix.lower() == ".svg" else None
            draw_quality_against_speed(results, title).savefig(fresh, dpi=140, facecolor="white", metadata=undated)
        fresh.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        fresh.unlink(missing_ok=True)
