"""Scenes and attention maps as HTML: a page that opens from disk and makes no requests, and parts for notebooks.

The page is built from the files in page/. A Content-Security-Policy allows only its own script and style.
"""

import base64
import hashlib
import html
import io
import json
import zlib
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.inspection.bundle_modules import bundle_modules
from regard.inspection.words import replace_unprintable

Floats = npt.NDArray[np.floating]
PAGE = resources.files("regard.inspection") / "page"
VIEW_KEYS = ("name", "group", "layer", "rows", "columns", "entropy", "distance")
FRAME_HEIGHT = 640
MAP_SIZE = 72
"""Size of a map in a notebook in pixels."""
MAX_MAPS = 200
"""Maps that are drawn in a notebook; the others are counted."""
LIGHT, DARK = (247, 249, 252), (8, 40, 100)


def render_page(scene: Any) -> str:
    """Return the HTML page of a `Scene`."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.is_file()}
    script, style = bundle_modules(files, "look.js").decode("utf-8"), files["look.css"].decode("utf-8")
    # An unescaped "<" could close the script element that holds the data.
    data = json.dumps(describe(scene), separators=(",", ":")).replace("<", "\\u003c")
    return Template(files["look.html"].decode("utf-8")).substitute(
        script=script, style=style, script_hash=_hash(script), style_hash=_hash(style), scene=data
    )


def describe(scene: Any) -> dict[str, Any]:
    """Return a `Scene` as JSON with packed maps."""
    initial_view, initial_head = scene.initial_head()
    return {
        "source": replace_unprintable(scene.source),
        "translation": replace_unprintable(scene.translation),
        "about": replace_unprintable(scene.about),
        "warning": scene.warning,
        "explanations": [explanation.to_json() for explanation in scene.explanations],
        "labels": scene.labels,
        "probabilities": [round(probability, 4) for probability in scene.probabilities],
        "alignment": pack(scene.alignment[None]),
        "views": [
            {name: getattr(view, name) for name in VIEW_KEYS} | {"heads": len(view.weights), "data": pack(view.weights)}
            for view in scene.views
        ],
        "initial": {"view": initial_view, "head": initial_head},
    }


def pack(weights_HTS: Floats) -> dict[str, Any]:
    """Quantise maps to 16 bits between their minimum and maximum, deflate them and encode them in base64.

    maps.js unpacks the result.
    """
    H, T, S = weights_HTS.shape
    low, high = min(0.0, float(weights_HTS.min())), max(float(weights_HTS.max()), 1e-9)
    levels = np.rint((weights_HTS - low) / (high - low) * 65535).astype("<u2")
    packed = base64.b64encode(zlib.compress(levels.tobytes(), 6)).decode("ascii")
    return {"heads": H, "rows": T, "columns": S, "low": low, "high": high, "packed": packed}


def render_frame(scene: Any) -> str:
    """Return the page of a `Scene` as a frame; outputs of a notebook share no styles, scripts or names."""
    title = html.escape(f"{scene.source} → {scene.translation}")
    return (
        f'<iframe srcdoc="{html.escape(render_page(scene))}" title="{title}" sandbox="allow-scripts" '
        f'style="width:100%;height:{FRAME_HEIGHT}px;border:0" loading="lazy"></iframe>'
    )


def render_text(text: object) -> str:
    """Return text in a fixed-width font."""
    return f"<pre>{html.escape(str(text))}</pre>"


def render_records(records: Mapping[str, Any]) -> str:
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
            _render_map(map_TS, f"{name}, head {head}") for head, map_TS in zip(record.heads, shown, strict=False)
        )
        shape = f"{len(weights)} × {weights.shape[2]} queries × {weights.shape[3]} keys"
        rows.append(f"<div><code>{html.escape(name)}</code> <small>{shape}</small></div><div>{images}</div>")
    if left_out:
        rows.append(f"<div>{left_out} more maps</div>")
    return f"<div>{''.join(rows)}</div>" if rows else "<div>no calls recorded</div>"


def _render_map(map_TS: Floats, title: str) -> str:
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


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
