"""Attention as a picture: SVG, which needs no fonts, no plotting library and no screen to be made."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

CELL = 22
FONT = "font-family=\"system-ui, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif\""
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# From paper to deep blue through one hue: order survives grey printing and every kind of colour blindness.
_PAPER, _INK = np.array([247, 249, 252]), np.array([8, 48, 107])


def draw_heads(
    weights_HTS: npt.NDArray[np.floating], sources: Sequence[str], targets: Sequence[str], title: str, columns: int = 4
) -> str:
    """The heads of one attention side by side: a row for each target token, a column for each source token.

    Args:
        weights_HTS: attention weights, one (T, S) map a head.
        sources: what to write over the S columns.
        targets: what to write beside the T rows.
        title: of the whole picture.
        columns: how many heads stand in a row.
    """
    H, T, S = weights_HTS.shape
    if (len(targets), len(sources)) != (T, S):
        raise ValueError(f"maps of {T} × {S} cannot be labelled with {len(targets)} × {len(sources)} tokens")
    columns = min(columns, H)
    left = 16 + max(map(_width, targets), default=0)
    # The labels of the columns lean: half of their length rises, and the last one leans out to the right.
    above = 40 + int(max(map(_width, sources), default=0) * 0.8)
    panel_width = left + S * CELL + int(_width(sources[-1]) * 0.7) + 16
    panel_height = above + T * CELL + 16
    rows = math.ceil(H / columns)
    width, height = columns * panel_width + 16, rows * panel_height + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="30" font-size="16" font-weight="600" fill="#1a1a1a">{_text(title)}</text>',
    ]
    for head in range(H):
        x, y = (head % columns) * panel_width, 40 + (head // columns) * panel_height
        parts.append(f'<g transform="translate({x} {y})">')
        parts.extend(_draw_panel(weights_HTS[head], sources, targets, f"head {head}", left, above))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _draw_panel(
    weights: npt.NDArray[np.floating], sources: Sequence[str], targets: Sequence[str], name: str, left: int, above: int
) -> list[str]:
    parts = [f'<text x="16" y="18" font-size="12" fill="#666666">{_text(name)}</text>']
    for s, label in enumerate(sources):
        x = left + s * CELL + CELL // 2 + 4
        place = f"translate({x} {above - 6}) rotate(-50)"
        parts.append(f'<text transform="{place}" font-size="13" fill="#1a1a1a">{_text(label)}</text>')
    for t, label in enumerate(targets):
        y = above + t * CELL
        parts.append(
            f'<text x="{left - 6}" y="{y + 16}" font-size="13" text-anchor="end" fill="#1a1a1a">{_text(label)}</text>'
        )
        for s in range(len(sources)):
            weight = float(weights[t, s])
            place = f'x="{left + s * CELL}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" rx="2"'
            said = f"{_text(label)} → {_text(sources[s])}: {weight:.3f}"
            parts.append(f'<rect {place} fill="{_colour(weight)}"><title>{said}</title></rect>')
    return parts


def _colour(weight: float) -> str:
    share = min(1.0, max(0.0, weight)) ** 0.7  # lifts small weights out of the paper
    red, green, blue = (_PAPER + (_INK - _PAPER) * share).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(label: str) -> str:
    """A label as XML text; what XML has no way to say, such as most control characters, is shown as U+FFFD."""
    return escape(_UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", label))


def _width(label: str) -> int:
    """Roughly how wide a label is: a character of a wide script takes the room of two."""
    return sum(14 if ord(char) > 0x2E80 else 8 for char in label)
