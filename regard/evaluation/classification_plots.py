"""ImageDataset of how good a classifier is: what is taken for what, and whether it is as sure as it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.evaluation.classification import Scores

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"
NAMED = 60
"""Classes beyond which their names would be too small to read."""
WRITTEN = 20
"""Classes beyond which the numbers would be."""


def draw_confusion(scores: Scores) -> Figure:
    """The confusion matrix: a row a true class, shaded by the share of its images."""
    number = len(scores.classes)
    side = min(16.0, 2.5 + 0.4 * number)
    figure = Figure(figsize=(side + 1.5, side), layout="constrained")
    axes = figure.add_subplot()
    shares = scores.confusion / np.maximum(scores.confusion.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(picture, ax=axes, label="share of the images of a class", shrink=0.8)
    axes.set_xlabel("what the model said")
    axes.set_ylabel("what it is")
    axes.set_title(f"accuracy {scores.accuracy:.2f} % of {scores.images:,} images", loc="left", fontsize=11)
    if number <= NAMED:
        axes.set_xticks(range(number), scores.classes, rotation=90)
        axes.set_yticks(range(number), scores.classes)
    if number <= WRITTEN:
        for (row, column), count in np.ndenumerate(scores.confusion):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def draw_reliability(scores: Scores) -> Figure:
    """How often the model was right against how sure it was, and below how many images that were."""
    c = scores.calibration
    bins = len(c.images)
    left, filled = np.arange(bins) / bins, c.images > 0
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.bar(left[filled], c.accuracy[filled], 1 / bins, align="edge", color=BLUE, edgecolor="white", label="right")
    upper.plot(c.confidence[filled], c.accuracy[filled], "o", color=ORANGE, markersize=4, label="mean of the bin")
    upper.plot((0, 1), (0, 1), "--", color=GREY, linewidth=1, label="as sure as right")
    upper.set_ylabel("share that was right")
    upper.set_title(f"expected calibration error {c.error:.2f} %", loc="left", fontsize=11)
    upper.legend(frameon=False, fontsize=9, loc="upper left")
    lower.bar(left, c.images, 1 / bins, align="edge", color=GREY, edgecolor="white")
    lower.set_xlabel("how sure the model was")
    lower.set_ylabel("images")
    for axes in (upper, lower):
        axes.set_xlim(0, 1)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save_pictures(scores: Scores, folder: Path) -> list[Path]:
    """Writes confusion.png and reliability.png into a folder, which is made where it is missing.

    Raises:
        UserError: they cannot be written.
    """
    figures = {"confusion.png": draw_confusion(scores), "reliability.png": draw_reliability(scores)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=140, facecolor="white")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror or error})") from None
    return [folder / name for name in figures]
