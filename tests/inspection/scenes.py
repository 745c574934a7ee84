"""Scenes to draw, of random weights."""

import numpy as np

from regard.inspection.scene import Scene, View

EVIL = "</script><script>alert(1)</script><!--<b>&amp;"


def make_scene(text: str = "I love apples", layers: int = 2) -> Scene:
    random = np.random.default_rng(0)
    shapes = {"encoder": (4, 4), "decoder": (3, 3), "cross": (3, 4)}
    sides = {"encoder": ("source", "source"), "decoder": ("written", "read"), "cross": ("written", "source")}
    views = [
        View(f"{group}.{layer}", group, layer, random.dirichlet(np.ones(shape[1]), (2, shape[0])), *sides[group])
        for group, shape in shapes.items()
        for layer in range(layers)
    ]
    labels = {
        "source": ["I", "love", text, "END"],
        "translation": ["我", text, "END"],
        "written": ["我", text, "END"],
        "read": ["BOS", "我", text],
    }
    return Scene(text, text, labels, random.dirichlet(np.ones(4), 3), [0.9, 0.8, 0.99], views, text)
