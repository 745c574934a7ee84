import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.inspection.figure import MAX_LABELS, TITLES, draw_figure
from tests.inspection.scenes import EVIL, make_scene


def test_every_head_of_every_layer_is_drawn() -> None:
    scene = make_scene()
    figure = draw_figure(scene)
    drawn = [np.asarray(axes.images[0].get_array()) for part in figure.subfigs for axes in part.axes if axes.images]
    maps = [scene.alignment, *(head for view in scene.views for head in view.weights)]
    assert len(drawn) == len(maps) == 1 + 2 * 6
    for one in maps:
        assert any(one.shape == other.shape and np.allclose(one, other) for other in drawn)


def test_alignment_comes_first_and_then_a_part_for_each_group() -> None:
    scene = make_scene()
    first, *groups = draw_figure(scene).subfigs
    (axes,) = first.axes
    np.testing.assert_allclose(axes.images[0].get_array(), scene.alignment)
    assert first.get_suptitle() == f"{scene.source}\n{scene.translation}"
    assert [label.get_text() for label in axes.get_xticklabels()] == scene.labels["source"]
    assert [label.get_text() for label in axes.get_yticklabels()] == scene.labels["translation"]
    assert {(label.get_rotation(), label.get_ha()) for label in axes.get_xticklabels()} == {(45, "left")}
    assert axes.get_xlabel() == "cross-attention, mean over all heads"
    assert [part.get_suptitle() for part in groups] == list(TITLES.values())
    for part, group in zip(groups, TITLES, strict=True):
        views = [view for view in scene.views if view.group == group]
        wanted = [f"layer {view.layer} · head {head}" for view in views for head in range(2)]
        assert [axes.get_xlabel() for axes in part.axes] == wanted
        corner, right, below, _ = part.axes
        assert [label.get_text() for label in corner.get_xticklabels()] == scene.labels[views[0].columns]
        assert [label.get_text() for label in corner.get_yticklabels()] == scene.labels[views[0].rows]
        assert {label.get_rotation() for label in corner.get_xticklabels()} == {90}
        assert [label.get_text() for label in right.get_yticklabels()] == []
        assert [label.get_text() for label in below.get_xticklabels()] == []


def test_missing_heads_leave_their_place_empty() -> None:
    scene = make_scene()
    view = next(view for view in scene.views if view.name == "cross.1")
    object.__setattr__(view, "weights", view.weights[:1])
    part = draw_figure(scene).subfigs[1]
    assert [axes.get_visible() for axes in part.axes] == [True, True, True, False]
    assert [len(axes.images) for axes in part.axes] == [1, 1, 1, 0]


def test_colours_of_negative_weights_are_symmetric() -> None:
    scene = make_scene()
    view = next(view for view in scene.views if view.name == "cross.0")
    object.__setattr__(view, "weights", view.weights - 0.9)
    signed, unsigned = (draw_figure(scene).subfigs[1].axes[i].images[0] for i in (0, 2))
    assert signed.get_clim() == (-abs(view.weights[0]).max(), abs(view.weights[0]).max())
    assert unsigned.get_clim()[0] == 0
    assert signed.get_cmap().name != unsigned.get_cmap().name


def test_labels_determine_the_height() -> None:
    def height(label: str, number: int = 4) -> float:
        scene = make_scene()
        scene.labels["source"] = [label] * number
        scene.labels["decoder_input"] = ["x"] * 3
        return draw_figure(scene).get_figheight()

    assert height("我喜欢") - height("abc") == pytest.approx(2 * 3 * 0.07)  # two groups have the source as columns
    assert height("abcde") - height("abc") == pytest.approx(2 * 2 * 0.07)
    assert height("a" * 14) == height("a" * 90)  # shortened
    assert height("abc", MAX_LABELS) == height("abc")
    assert height("abc", MAX_LABELS + 1) - height("abc") == pytest.approx(2 * (0.1 - 3 * 0.07))


def test_long_labels_are_shortened_and_long_titles_wrapped() -> None:
    scene = make_scene("a" * 14)
    scene.labels["source"][0] = "b" * 15
    long = type(scene)("word " * 200, "我" * 200, scene.labels, scene.alignment, scene.probabilities, scene.views)
    first = draw_figure(long).subfigs[0]
    labels = [label.get_text() for label in first.axes[0].get_xticklabels()]
    assert (labels[0], labels[2]) == ("b" * 13 + "…", "a" * 14)
    lines = first.get_suptitle().splitlines()
    assert [len(line) for line in lines[:2]] == [69, 69]  # 7 inches hold 70 Latin or 35 East Asian characters
    assert lines[2].endswith("…") and lines[5].endswith("…") and len(lines) == 6
    assert lines[3] == "我" * 35


def test_png_is_large_enough_to_read(tmp_path: Path) -> None:
    make_scene("我喜欢苹果").save(tmp_path / "look.png")
    picture = Image.open(tmp_path / "look.png")
    assert picture.format == "PNG"
    assert min(picture.size) > 800
    assert len(np.unique(picture.convert("L"))) > 50


def test_markup_and_formulas_are_drawn_as_text(tmp_path: Path) -> None:
    for text in (EVIL, r"$\frac{1$ and $x^2$", "100%", "a_b", "\x00\ud800"):
        make_scene(text).save(tmp_path / "look.svg")
        svg = (tmp_path / "look.svg").read_text(encoding="utf-8")
        assert "<script" not in svg
        assert not re.search(r"<b>", svg)


def test_long_sentences_and_negative_weights_are_drawn(tmp_path: Path) -> None:
    scene = make_scene()
    scene.labels["source"] = [f"token {i}" for i in range(120)]
    views = [view for view in scene.views if view.group == "decoder"]
    object.__setattr__(views[0], "weights", views[0].weights - 0.5)
    long = type(scene)("a" * 700, "b", scene.labels, np.full((3, 120), 1 / 120), [1.0] * 3, views)
    long.save(tmp_path / "look.png")
    assert (tmp_path / "look.png").stat().st_size
    assert views[0].entropy is None


@pytest.mark.parametrize("layers", [1, 3])
def test_height_has_a_part_for_the_alignment_and_one_for_each_layer_of_a_group(layers: int) -> None:
    figure = draw_figure(make_scene("abc", layers))
    alignment, labels = 1.5 + 1.6, {"source": 4 * 0.07, "decoder_input": 3 * 0.07}
    heights = [labels[name] + 1.15 * layers + 0.45 for name in ("source", "decoder_input", "source")]
    width, height = figure.get_size_inches()
    assert (width, height) == (7, pytest.approx(alignment + sum(heights)))
    ratios = figure.subfigs[0]._subplotspec.get_gridspec().get_height_ratios()
    assert ratios == pytest.approx([alignment, *heights], abs=0.08)


def test_all_labels_of_the_longest_labelled_axis_are_shown() -> None:
    scene = make_scene()
    for number in (MAX_LABELS, MAX_LABELS + 1):
        scene.labels["source"] = ["x"] * number
        (axes,) = draw_figure(scene).subfigs[0].axes
        assert len(axes.get_xticklabels()) == (number if number == MAX_LABELS else 0)
        for label in axes.get_xticklabels():
            assert (label.get_rotation(), label.get_rotation_mode(), label.get_ha()) == (45, "anchor", "left")
