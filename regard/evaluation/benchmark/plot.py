"""Plot of quality against speed: one panel for each batch size, with a logarithmic time axis."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from regard.errors import UserError
from regard.evaluation.benchmark.harness import Result
from regard.inspection.fonts import save_figure

FORMATS = (".png", ".svg", ".pdf")
# The colour-blind safe palette of Okabe and Ito, without yellow, which is too light on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def check_plot_path(path: Path) -> None:
    """Raise a `UserError` if a plot cannot be written to `path`."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: a plot is written as {', '.join(FORMATS)}; choose such a name")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path}: no file can be written there; --plot needs a file name in an existing folder")


def draw_quality_against_speed(results: Sequence[Result], title: str) -> Figure:
    """Draw every result with a score as a point: better results are higher, faster ones further left."""
    scored = [result for result in results if result.score is not None]
    sizes = [timing.batch for timing in scored[0].timings]
    figure = Figure(figsize=(4.2 * len(sizes) + 0.6, 5.2), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for size, axes in zip(sizes, panels, strict=True):
        for number, result in enumerate(scored):
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
        axes.set_title(f"batch of {size}" if size > 1 else "single sentences", loc="left", fontsize=11)
        axes.set_xlabel("milliseconds per batch")
        axes.grid(color="#e4e4e4", linewidth=0.8, which="both")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("BLEU")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def save_quality_plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Draw the results into a file."""
    texts = [title, *(result.name for result in results)]
    save_figure(lambda: draw_quality_against_speed(results, title), texts, path)
