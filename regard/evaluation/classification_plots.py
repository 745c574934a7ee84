"""Plots of a classifier's scores: confusion matrix and reliability diagram."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.evaluation.classification import Scores
from regard.inspection.fonts import save_figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"
MAX_NAMES = 60
"""Number of classes above which their names would be too small to read."""
MAX_COUNTS = 20
"""Number of classes above which the counts would be too small to read."""


def draw_confusion(scores: Scores) -> Figure:
    """Draw the confusion matrix, with each row shaded by the share of its images."""
    number = len(scores.classes)
    side = min(16.0, 2.5 + 0.4 * number)
    figure = Figure(figsize=(side + 1.5, side), layout="constrained")
    axes = figure.add_subplot()
    shares = scores.confusion / np.maximum(scores.confusion.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the images of the true class", shrink=0.8)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title(f"accuracy {scores.accuracy:.2f} % of {scores.images:,} images", loc="left", fontsize=11)
    if number <= MAX_NAMES:
        axes.set_xticks(range(number), scores.classes, rotation=90)
        axes.set_yticks(range(number), scores.classes)
    if number <= MAX_COUNTS:
        for (row, column), count in np.ndenumerate(scores.confusion):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def draw_reliability(scores: Scores) -> Figure:
    """Draw accuracy against confidence, and below it the number of images in each bin."""
    calibration = scores.calibration
    bins = len(calibration.images)
    left, filled = np.arange(bins) / bins, calibration.images > 0
    accuracy, confidence = calibration.accuracy[filled], calibration.confidence[filled]
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.bar(left[filled], accuracy, 1 / bins, align="edge", color=BLUE, edgecolor="white", label="accuracy")
    upper.plot(confidence, accuracy, "o", color=ORANGE, markersize=4, label="mean confidence of the bin")
    upper.plot((0, 1), (0, 1), "--", color=GREY, linewidth=1, label="perfect calibration")
    upper.set_ylabel("accuracy")
    upper.set_title(f"expected calibration error {calibration.error:.2f} %", loc="left", fontsize=11)
    upper.legend(frameon=False, fontsize=9, loc="upper left")
    lower.bar(left, calibration.images, 1 / bins, align="edge", color=GREY, edgecolor="white")
    lower.set_xlabel("confidence")
    lower.set_ylabel("images")
    for axes in (upper, lower):
        axes.set_xlim(0, 1)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save_plots(scores: Scores, folder: Path) -> list[Path]:
    """Write confusion.png and reliability.png to a folder, which is created if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror or error})") from None
    paths = [folder / "confusion.png", folder / "reliability.png"]
    save_figure(lambda: draw_confusion(scores), scores.classes, paths[0])
    save_figure(lambda: draw_reliability(scores), (), paths[1])
    return paths
