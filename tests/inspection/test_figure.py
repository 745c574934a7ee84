import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from regard.inspection.figure import draw_figure, render_figure
from tests.inspection.scenes import EVIL, make_scene


def test_every_head_of_every_layer_is_drawn() -> None:
    scene = make_scene()
    figure = draw_figure(scene)
    drawn = [np.asarray(axes.images[0].get_array()) for part in figure.subfigs for axes in part.axes if axes.images]
    maps = [scene.alignment, *(head for view in scene.views for head in view.weights)]
    assert len(drawn) == len(maps) == 1 + 2 * 6
    for one in maps:
        assert any(one.shape == other.shape and np.allclose(one, other) for other in drawn)


def test_png_is_large_enough_to_read() -> None:
    scene = make_scene("我喜欢苹果")
    picture = Image.open(io.BytesIO(render_figure(scene, Path("look.png"))))
    assert picture.format == "PNG"
    assert min(picture.size) > 800
    assert len(np.unique(picture.convert("L"))) > 50


def test_markup_and_formulas_are_drawn_as_text() -> None:
    for text in (EVIL, r"$\frac{1$ and $x^2$", "100%", "a_b", "\x00\ud800"):
        svg = render_figure(make_scene(text), Path("look.svg")).decode("utf-8")
        assert "<script" not in svg
        assert not re.search(r"<b>", svg)


def test_long_sentences_and_negative_weights_are_drawn() -> None:
    scene = make_scene()
    scene.labels["source"] = [f"token {i}" for i in range(120)]
    views = [view for view in scene.views if view.group == "decoder"]
    object.__setattr__(views[0], "weights", views[0].weights - 0.5)
    long = type(scene)("a" * 700, "b", scene.labels, np.full((3, 120), 1 / 120), [1.0] * 3, views)
    assert render_figure(long, Path("look.png"))
    assert views[0].entropy is None
