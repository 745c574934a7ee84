"""HTML for notebooks: pages in frames, and attention maps as images, without requests and without names to collide."""

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

FRAME_HEIGHT = 640
MAP_SIZE = 72
"""Size of a map in pixels of the page."""
MAX_MAPS = 200
"""Maps that are drawn; the others are counted."""
LIGHT, DARK = (247, 249, 252), (8, 40, 100)


def frame(page: str, title: str) -> str:
    """Return a page as a frame that holds all of it, so that several outputs do not share styles, scripts or names."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(title)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{FRAME_HEIGHT}px;border:0" loading="lazy"></iframe>'
    )


def draw_records(records: Mapping[str, Any]) -> str:
    """Return the attention maps of the last call of each module, a row for each module and an image for each head."""
    rows, drawn, left_out = [], 0, 0
    for name, record in records.items():
        weights = record.calls[-1].get("weights") if record.calls else None
        if weights is None:
            rows.append(f"<div><code>{html.escape(name)}</code> {html.escape(repr(record))}</div>")
            continue
        maps = weights[0].detach().float().cpu().numpy()
        shown = maps[: max(0, MAX_MAPS - drawn)]
        drawn, left_out = drawn + len(shown), left_out + len(maps) - len(shown)
        images = "".join(
            _draw_map(map_TS, f"{name}, head {head}") for head, map_TS in zip(record.heads, shown, strict=False)
        )
        shape = f"{len(weights)} × {weights.shape[2]} queries × {weights.shape[3]} keys"
        rows.append(f"<div><code>{html.escape(name)}</code> <small>{shape}</small></div><div>{images}</div>")
    if left_out:
        rows.append(f"<div>{left_out} more maps</div>")
    return f"<div>{''.join(rows)}</div>" if rows else "<div>no calls recorded</div>"


def _draw_map(map_TS: npt.NDArray[np.floating], title: str) -> str:
    """Return a map as an image; rows are queries, columns are keys, dark is the largest weight."""
    high = float(np.abs(map_TS).max()) if map_TS.size else 0.0
    shares = (np.abs(map_TS) / (high or 1.0))[..., None] ** 0.7
    pixels = (np.array(LIGHT) + shares * (np.array(DARK) - np.array(LIGHT))).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.size else np.full((1, 1, 3), 255, np.uint8)).save(file, "png")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return (
        f'<img src="data:image/png;base64,{data}" title="{html.escape(title)}" alt="{html.escape(title)}" '
        f'style="display:inline-block;width:{MAP_SIZE}px;height:{MAP_SIZE}px;margin:2px;image-rendering:pixelated">'
    )
