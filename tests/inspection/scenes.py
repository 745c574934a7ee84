"""Scenes with random attention weights."""

import numpy as np

from regard.inspection.attention_scene import Scene, View
from regard.inspection.translation import MAP_AXES

EVIL = "</script><script>alert(1)</script><!--<b>&amp;"


def make_scene(text: str = "I love apples", layers: int = 2) -> Scene:
    random = np.random.default_rng(0)
    shapes = {"encoder": (4, 4), "decoder": (3, 3), "cross": (3, 4)}
    views = [
        View(f"{group}.{layer}", group, layer, random.dirichlet(np.ones(shape[1]), (2, shape[0])), *MAP_AXES[group])
        for group, shape in shapes.items()
        for layer in range(layers)
    ]
    labels = {
        "source": ["I", "love", text, "END"],
        "translation": ["我", text, "END"],
        "decoder_output": ["我", text, "END"],
        "decoder_input": ["BOS", "我", text],
    }
    return Scene(text, text, labels, random.dirichlet(np.ones(4), 3), [0.9, 0.8, 0.99], views, text)
