"""The HTML page of a scene: its data, its script, and its Content-Security-Policy."""

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.inspection.attention_scene import Scene
from regard.inspection.html import PAGE, pack, render_page
from regard.inspection.words import readable_labels
from tests.inspection.scenes import EVIL, make_scene


def data_of(page: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="scene">(.*?)</script>', page, re.S)
    return json.loads(found)


def test_page_contains_the_scene() -> None:
    scene = make_scene()
    data = data_of(render_page(scene))
    assert (data["source"], data["labels"]) == (scene.source, scene.labels)
    assert [view["name"] for view in data["views"]] == [view.name for view in scene.views]
    for data_of_view, view in zip(data["views"], scene.views, strict=True):
        assert np.abs(unpack(data_of_view["data"]) - view.weights).max() < 1e-4
    assert data["views"][data["initial"]["view"]]["group"] == "cross"


def test_markup_in_texts_is_escaped() -> None:
    page = render_page(make_scene(EVIL))
    assert data_of(page)["source"] == EVIL
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page


def test_policy_allows_only_the_own_script_and_style() -> None:
    page = render_page(make_scene())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.S)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    assert policy == (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert not re.findall(r"https?:|//[a-z]+\.|\bstyle=|\bon[a-z]+=", page.replace(script, ""))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_page_contains_every_module() -> None:
    page = render_page(make_scene())
    modules = [path.name.removesuffix(".js") for path in PAGE.iterdir() if path.name.endswith(".js")]
    assert all(page.count(f"const $${name} = ") == 1 for name in modules)


def test_modules_do_not_use_html_strings() -> None:
    for path in PAGE.iterdir():
        if path.name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text())


def unpack(packed: dict) -> np.ndarray:
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), "<u2")
    shape = packed["heads"], packed["rows"], packed["columns"]
    return (packed["low"] + numbers / 65535 * (packed["high"] - packed["low"])).reshape(shape)


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.booleans())
def test_packing_preserves_values_within_16_bits(seed: int, size: float, signed: bool) -> None:
    given = np.random.default_rng(seed).random((2, 3, 4)) * size - signed * size / 2
    packed = pack(given)
    assert np.abs(unpack(packed) - given).max() <= (packed["high"] - packed["low"]) / 65535
    if not signed:
        assert packed["low"] == 0


def test_tokens_become_readable_labels() -> None:
    assert readable_labels(["▁love", "s", "▁", "a\x00", "\ud800"]) == ["love", "s", "␣", "a\ufffd", "\ufffd"]
    assert readable_labels(["<0x3C>", "<0x7E>", "<0x0A>", "<0xE6>"]) == ["<", "~", "<0x0A>", "<0xE6>"]


def test_scene_rejects_maps_that_do_not_fit_their_labels() -> None:
    scene = make_scene()
    with pytest.raises(ValueError, match=r"encoder\.0: maps of shape \(4, 4\) do not fit the labels source and source"):
        Scene("a", "b", scene.labels | {"source": ["x"]}, scene.alignment, [], scene.views)
    with pytest.raises(ValueError, match="at least one attention module"):
        Scene("a", "b", scene.labels, scene.alignment, [], [])


def test_page_of_a_scene_without_cross_attention_shows_the_first_head() -> None:
    scene = make_scene()
    assert replace(scene, views=[view for view in scene.views if view.group != "cross"]).initial_head() == (0, 0)
