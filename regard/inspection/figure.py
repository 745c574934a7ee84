"""Draw a scene as a static figure (PNG or SVG): the alignment, and below it every head of every layer."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from regard.inspection.fonts import save_figure
from regard.inspection.words import display_width, replace_unprintable

# A single hue whose lightness carries the value, which survives grey print and colour blindness.
COLOUR_MAP = LinearSegmentedColormap.from_list("paper to ink", ["#f7f9fc", "#a3c5e6", "#3a79be", "#082864"])
TITLES = {
    "cross": "cross-attention: each predicted token (rows) attends to the source (columns)",
    "decoder": "decoder self-attention: each predicted token (rows) attends to the decoder input (columns)",
    "encoder": "encoder self-attention: the source attends to itself",
}
MAX_LABELS = 48
"""Maps with more tokens are drawn without labels."""
CELL_INCHES = 1.15


def save_scene_figure(scene: Any, out: Path) -> None:
    """Write the figure of a scene to a file whose suffix selects the format."""
    labels = (label for labels in scene.labels.values() for label in labels)
    save_figure(lambda: draw_figure(scene), [scene.source, scene.translation, *labels], out, dpi=160)


def draw_figure(scene: Any) -> Figure:
    """Draw the alignment and all attention maps of a scene."""
    groups = [(group, [view for view in scene.views if view.group == group]) for group in TITLES]
    groups = [(group, views) for group, views in groups if views]
    most_heads = max(len(view.weights) for view in scene.views)
    group_heights = [_label_height(views[0], scene) + CELL_INCHES * len(views) + 0.45 for _, views in groups]
    alignment_height = 1.5 + min(5.0, max(1.6, 0.24 * max(scene.alignment.shape)))
    width = max(7.0, 1.5 + CELL_INCHES * most_heads)
    figure = Figure((width, alignment_height + sum(group_heights)), layout="constrained")
    height_ratios = [alignment_height, *group_heights]
    parts = figure.subfigures(1 + len(groups), 1, squeeze=False, height_ratios=height_ratios)[:, 0]
    title = "\n".join(_wrap(text, int(width * 10)) for text in (scene.source, scene.translation))
    parts[0].suptitle(title, fontsize=12)
    axes = parts[0].subplots()
    _draw_map(axes, scene.alignment)
    _label_axes(axes, scene.labels["translation"], scene.labels["source"], font_size=9, slanted=True)
    axes.set_xlabel("cross-attention, mean over all heads", fontsize=8, color="#66707f")
    for part, (group, views) in zip(parts[1:], groups, strict=True):
        _draw_group(part, group, views, scene, most_heads)
    return figure


def _draw_group(part: SubFigure, group: str, views: Sequence[Any], scene: Any, columns: int) -> None:
    part.suptitle(TITLES[group], fontsize=9, color="#333333", x=0.01, ha="left")
    grid = part.subplots(len(views), columns, squeeze=False)
    for row, view in enumerate(views):
        for head in range(columns):
            axes = grid[row][head]
            if head >= len(view.weights):
                axes.set_visible(False)
                continue
            row_labels = scene.labels[view.rows] if head == 0 else []
            column_labels = scene.labels[view.columns] if row == 0 else []
            _draw_map(axes, view.weights[head])
            _label_axes(axes, row_labels, column_labels, font_size=5, slanted=False)
            axes.set_xlabel(f"layer {view.layer} · head {head}", fontsize=6, labelpad=1.5, color="#66707f")


def _draw_map(axes: Axes, weights: npt.NDArray[np.floating]) -> None:
    """Draw one attention map, (rows, columns), without labels."""
    signed = weights.min() < 0
    high = max(float(abs(weights).max()), 1e-9)
    low = -high if signed else 0.0
    axes.imshow(weights, cmap="PuOr" if signed else COLOUR_MAP, vmin=low, vmax=high, interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_color("#c9d0da")
        spine.set_linewidth(0.6)


def _label_axes(axes: Axes, rows: Sequence[str], columns: Sequence[str], font_size: int, slanted: bool) -> None:
    """Write the labels of the rows on the left, and those of the columns at the top, slanted or vertical."""
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2)
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = labels if len(labels) <= MAX_LABELS else []
        axis.set_ticks(range(len(shown)), [_shorten(label) for label in shown], fontsize=font_size)
    axes.tick_params(axis="x", labelrotation=45 if slanted else 90)
    if slanted:
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("left")
            label.set_rotation_mode("anchor")


def _label_height(view: Any, scene: Any) -> float:
    """Estimate the height of the rotated column labels in inches."""
    labels = scene.labels[view.columns]
    if len(labels) > MAX_LABELS:
        return 0.1
    return 0.07 * max(display_width(_shorten(label)) for label in labels)


def _wrap(text: str, width: int) -> str:
    """Wrap a text to at most three lines of about `width` Latin or half as many East Asian characters."""
    width = width // 2 if display_width(text) > len(text) else width
    return textwrap.fill(replace_unprintable(text), width, max_lines=3, placeholder=" …")


def _shorten(label: str) -> str:
    label = replace_unprintable(label)
    return label if len(label) <= 14 else f"{label[:13]}…"
