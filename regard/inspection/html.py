"""A scene as a page: one HTML file that needs nothing else, works from disk, and asks no other host for anything.

The page is put together from the files in page/: its modules, which a server could serve as they are, become one script
by taking their imports and exports away. A policy in the page's head forbids every script and style but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from regard.inspection.scene import Floats, Scene, replace_unprintable

PAGE = resources.files("regard.inspection") / "page"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (?=async function|function|class|const)", re.M)


def render_page(scene: Scene) -> str:
    """The page of a scene."""
    script, style = bundle("look.js"), _read("look.css")
    # A "<" could begin the end of the script element that holds the data.
    data = json.dumps(describe(scene), separators=(",", ":")).replace("<", "\\u003c")
    return Template(_read("look.html")).substitute(
        script=script, style=style, script_hash=_hash(script), style_hash=_hash(style), scene=data
    )


def describe(scene: Scene) -> dict[str, Any]:
    """A scene as JSON, its maps packed."""
    view, head = scene.first()
    return {
        "source": replace_unprintable(scene.source),
        "translation": replace_unprintable(scene.translation),
        "about": replace_unprintable(scene.about),
        "labels": scene.labels,
        "probabilities": [round(probability, 4) for probability in scene.probabilities],
        "alignment": pack(scene.alignment[None]),
        "views": [
            {
                "name": view.name,
                "group": view.group,
                "layer": view.layer,
                "heads": len(view.weights),
                "rows": view.rows,
                "columns": view.columns,
                "entropy": view.entropy,
                "distance": view.distance,
                "data": pack(view.weights),
            }
            for view in scene.views
        ],
        "first": {"view": view, "head": head},
    }


def pack(weights_HTS: Floats) -> dict[str, Any]:
    """Maps as 16-bit numbers between the lowest and the highest, deflated, in base64: what maps.js unpacks."""
    H, T, S = weights_HTS.shape
    low, high = min(0.0, float(weights_HTS.min())), max(float(weights_HTS.max()), 1e-9)
    steps = np.rint((weights_HTS - low) / (high - low) * 65535).astype("<u2")
    packed = base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode("ascii")
    return {"heads": H, "rows": T, "columns": S, "low": low, "high": high, "packed": packed}


def bundle(entry: str) -> str:
    """One script of a module and all that it imports, each once, what is imported first."""
    done: list[str] = []
    parts: list[str] = []

    def add(name: str) -> None:
        if name in done:
            return
        done.append(name)
        text = _read(name)
        for needed in _IMPORT.findall(text):
            add(needed)
        parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))

    add(entry)
    return "\n".join(parts)


def _read(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
