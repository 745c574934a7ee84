"""A scene as a picture on paper: PNG or SVG, the alignment large, every layer and head small below it."""

from __future__ import annotations

import io
import logging
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from regard.inspection.scene import Floats, Group, Scene, View, replace_unprintable

# Fonts that have Chinese, Japanese and Korean characters, as they are called on Linux, macOS and Windows.
FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)
# Through one hue, by lightness alone: order survives grey print and every kind of colour blindness.
SCALE = LinearSegmentedColormap.from_list("paper to ink", ["#f7f9fc", "#a3c5e6", "#3a79be", "#082864"])
TITLES: dict[Group, str] = {
    "cross": "from target to source: each token to be written (rows) looks at the source (columns)",
    "decoder": "decoder: each token to be written (rows) looks at what is written (columns)",
    "encoder": "encoder: the source looks at itself",
}
MOST_LABELS = 48  # tokens beside a map; with more they could not be read


def draw_figure(scene: Scene) -> Figure:
    """The whole scene."""
    groups = [(group, [view for view in scene.views if view.group == group]) for group in TITLES]
    groups = [(group, views) for group, views in groups if views]
    across = max(len(view.weights) for view in scene.views)
    side = 1.15
    tall = [_labels_height(views[0], scene) + side * len(views) + 0.45 for _, views in groups]
    tokens = max(scene.alignment.shape)
    top = 1.5 + min(5.0, max(1.6, 0.24 * tokens))
    width = max(7.0, 1.5 + side * across)
    with mpl.rc_context(_style()):
        figure = Figure((width, top + sum(tall)), layout="constrained")
        parts = figure.subfigures(1 + len(groups), 1, squeeze=False, height_ratios=[top, *tall])[:, 0]
        title = "\n".join(_lines(text, int(width * 10)) for text in (scene.source, scene.translation))
        parts[0].suptitle(title, fontsize=12)
        axes = parts[0].subplots()
        _draw_map(axes, scene.alignment, scene.labels["translation"], scene.labels["source"], 9)
        axes.set_xlabel("mean over all heads from target to source", fontsize=8, color="#66707f")
        for part, (group, views) in zip(parts[1:], groups, strict=True):
            _draw_group(part, group, views, scene, across)
    return figure


def render_figure(scene: Scene, form: Literal["png", "svg"]) -> bytes:
    """The picture as the contents of a file."""
    file = io.BytesIO()
    with mpl.rc_context(_style()):
        undated = {"Date": None} if form == "svg" else None
        draw_figure(scene).savefig(file, format=form, dpi=160, metadata=undated)
    return file.getvalue()


def _draw_group(part: SubFigure, group: Group, views: Sequence[View], scene: Scene, across: int) -> None:
    part.suptitle(TITLES[group], fontsize=9, color="#333333", x=0.01, ha="left")
    grid = part.subplots(len(views), across, squeeze=False)
    for row, view in enumerate(views):
        for head in range(across):
            axes = grid[row][head]
            if head >= len(view.weights):
                axes.set_visible(False)
                continue
            rows = scene.labels[view.rows] if head == 0 else []
            columns = scene.labels[view.columns] if row == 0 else []
            _draw_map(axes, view.weights[head], rows, columns, 5)
            axes.set_xlabel(f"layer {view.layer} · head {head}", fontsize=6, labelpad=1.5, color="#66707f")


def _draw_map(axes: Axes, weights: Floats, rows: Sequence[str], columns: Sequence[str], size: int) -> None:
    signed = weights.min() < 0
    high = max(float(abs(weights).max()), 1e-9)
    low = -high if signed else 0.0
    axes.imshow(weights, cmap="PuOr" if signed else SCALE, vmin=low, vmax=high, interpolation="nearest")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set_color("#c9d0da")
        spine.set_linewidth(0.6)
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = labels if len(labels) <= MOST_LABELS else []
        axis.set_ticks(range(len(shown)), [_short(label) for label in shown], fontsize=size)
    axes.tick_params(axis="x", labelrotation=90 if size < 8 else 45)
    if size >= 8:
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("left")
            label.set_rotation_mode("anchor")


def _labels_height(view: View, scene: Scene) -> float:
    labels = scene.labels[view.columns]
    if len(labels) > MOST_LABELS:
        return 0.1
    return 0.07 * max(sum(1 + _is_wide(char) for char in _short(label)) for label in labels)


def _lines(text: str, width: int) -> str:
    """The text in at most three lines of about so many letters, of which Chinese ones are twice as wide."""
    width = width // 2 if any(map(_is_wide, text)) else width
    return textwrap.fill(replace_unprintable(text), width, max_lines=3, placeholder=" …")


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _short(label: str) -> str:
    label = replace_unprintable(label)
    return label if len(label) <= 14 else f"{label[:13]}…"


def _style() -> Any:
    """Matplotlib's settings: fonts that have the characters, and text that is nothing but text."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    installed = set(font_manager.get_font_names())
    return {
        "font.family": ["DejaVu Sans", *(name for name in FONTS if name in installed)],
        "text.parse_math": False,  # a $ in a sentence is a $
        "svg.fonttype": "path",  # letters become outlines, which look the same where no such font is
        "svg.hashsalt": "regard",
    }
