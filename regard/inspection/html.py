"""Render a scene as one self-contained HTML file that opens from disk and makes no requests.

The page is built from the files in page/. Its ES modules, which a server can serve unchanged, are bundled into one
script by removing their imports and exports. A Content-Security-Policy allows only the page's own script and style.
"""

import base64
import hashlib
import json
import re
import zlib
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.inspection.labels import replace_unprintable

Floats = npt.NDArray[np.floating]
PAGE = resources.files("regard.inspection") / "page"
VIEW_KEYS = ("name", "group", "layer", "rows", "columns", "entropy", "distance")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (?=async function|function|class|const)", re.M)


def render_page(scene: Any) -> str:
    """Return the HTML page of a `Scene`."""
    script, style = bundle("look.js"), _read("look.css")
    # An unescaped "<" could close the script element that holds the data.
    data = json.dumps(describe(scene), separators=(",", ":")).replace("<", "\\u003c")
    return Template(_read("look.html")).substitute(
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
        "explanations": scene.explanations,
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


def bundle(entry: str) -> str:
    """Return a module and everything it imports as one script, dependencies first, each once."""
    added: list[str] = []
    parts: list[str] = []

    def add(name: str) -> None:
        if name in added:
            return
        added.append(name)
        text = _read(name)
        for dependency in _IMPORT.findall(text):
            add(dependency)
        parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))

    add(entry)
    return "\n".join(parts)


def _read(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
