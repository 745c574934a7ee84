"""Draw the heads of one attention module as SVG, without a plotting library.

Shapes: H heads, T target tokens, S source tokens.
"""

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

CELL = 22
FONT = "font-family=\"system-ui, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif\""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A single hue whose lightness carries the value, which survives grey print and colour blindness.
_LIGHT, _DARK = np.array([247, 249, 252]), np.array([8, 48, 107])


def draw_heads(
    weights_HTS: npt.NDArray[np.floating], sources: Sequence[str], targets: Sequence[str], title: str, columns: int = 4
) -> str:
    """Draw the attention map of each head, with one row per target token and one column per source token.

    Args:
        sources: Labels of the S columns.
        targets: Labels of the T rows.
        columns: Number of heads per row.
    """
    H, T, S = weights_HTS.shape
    if (len(targets), len(sources)) != (T, S):
        raise ValueError(f"maps of {T} × {S} do not fit {len(targets)} × {len(sources)} labels")
    columns = min(columns, H)
    left = 16 + max(map(_text_width, targets), default=0)
    # Column labels are rotated: they extend upwards, and the last one beyond the right edge of the map.
    above = 40 + int(max(map(_text_width, sources), default=0) * 0.8)
    panel_width = left + S * CELL + int(_text_width(sources[-1]) * 0.7) + 16
    panel_height = above + T * CELL + 16
    rows = math.ceil(H / columns)
    width, height = columns * panel_width + 16, rows * panel_height + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="30" font-size="16" font-weight="600" fill="#1a1a1a">{_escape(title)}</text>',
    ]
    for head in range(H):
        x, y = (head % columns) * panel_width, 40 + (head // columns) * panel_height
        parts.append(f'<g transform="translate({x} {y})">')
        parts.extend(_draw_panel(weights_HTS[head], sources, targets, f"head {head}", left, above))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _draw_panel(
    weights_TS: npt.NDArray[np.floating],
    sources: Sequence[str],
    targets: Sequence[str],
    title: str,
    left: int,
    above: int,
) -> list[str]:
    parts = [f'<text x="16" y="18" font-size="12" fill="#666666">{_escape(title)}</text>']
    for s, label in enumerate(sources):
        x = left + s * CELL + CELL // 2 + 4
        transform = f"translate({x} {above - 6}) rotate(-50)"
        parts.append(f'<text transform="{transform}" font-size="13" fill="#1a1a1a">{_escape(label)}</text>')
    for t, label in enumerate(targets):
        y = above + t * CELL
        parts.append(
            f'<text x="{left - 6}" y="{y + 16}" font-size="13" text-anchor="end" fill="#1a1a1a">{_escape(label)}</text>'
        )
        for s, source in enumerate(sources):
            weight = float(weights_TS[t, s])
            box = f'x="{left + s * CELL}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" rx="2"'
            tooltip = f"{_escape(label)} → {_escape(source)}: {weight:.3f}"
            parts.append(f'<rect {box} fill="{_colour(weight)}"><title>{tooltip}</title></rect>')
    return parts


def _colour(weight: float) -> str:
    share = min(1.0, max(0.0, weight)) ** 0.7  # makes small weights visible
    red, green, blue = (_LIGHT + (_DARK - _LIGHT) * share).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _escape(label: str) -> str:
    """Escape a label for XML; characters that XML does not allow become U+FFFD."""
    return escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", label))


def _text_width(label: str) -> int:
    """Estimate the width of a label in pixels; East Asian characters are about twice as wide."""
    return sum(14 if ord(char) > 0x2E80 else 8 for char in label)
