import re
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.inspection.drawing import draw_heads

SVG = "{http://www.w3.org/2000/svg}"
SOURCES, TARGETS = ["I", "love", "apples"], ["我", "喜欢"]


def weights(H: int = 4, T: int = 2, S: int = 3) -> np.ndarray:
    raw = np.random.default_rng(0).random((H, T, S))
    return raw / raw.sum(-1, keepdims=True)


def cells(svg: str) -> list[ElementTree.Element]:
    """Return the rectangles with a tooltip, one per weight."""
    return [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_svg_has_a_cell_for_every_weight() -> None:
    given = weights()
    found = cells(draw_heads(given, SOURCES, TARGETS, "title"))
    assert len(found) == given.size
    values = [float(cell.findtext(f"{SVG}title").rpartition(": ")[2]) for cell in found]
    assert values == pytest.approx(given.flatten().tolist(), abs=5e-4)


def test_tooltips_name_target_and_source() -> None:
    first = cells(draw_heads(weights(), SOURCES, TARGETS, "title"))[4]
    assert first.findtext(f"{SVG}title").startswith("喜欢 → love: ")


def test_every_head_has_labels_and_the_drawing_a_title() -> None:
    shown = texts(draw_heads(weights(H=3), SOURCES, TARGETS, "I love apples → 我喜欢苹果"))
    assert shown[0] == "I love apples → 我喜欢苹果"
    for head in ("head 0", "head 1", "head 2"):
        assert shown.count(head) == 1
    for label in (*SOURCES, *TARGETS):
        assert shown.count(label) == 3


def test_markup_in_labels_is_escaped() -> None:
    evil = '<script>alert("1")</script>&amp;'
    svg = draw_heads(weights(), [evil, "b", "c"], [evil, "d"], evil)
    assert "<script" not in svg
    assert texts(svg).count(evil) == 1 + 4 * 2
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    svg = draw_heads(weights(), ["\x00", "\x0b", "\ud800"], ["\ufffe", "好"], "a\x1bb")
    assert texts(svg)[0] == "a\ufffdb"
    assert "好" in texts(svg)
    svg.encode("utf-8")


def test_larger_weights_are_darker() -> None:
    ramp = np.array([[[0.0, 0.25, 0.5, 0.75, 1.0, 2.0, -1.0]]])
    fills = [cell.attrib["fill"] for cell in cells(draw_heads(ramp, list("abcdefg"), ["x"], ""))]
    assert all(re.fullmatch("#[0-9a-f]{6}", fill) for fill in fills)
    brightness = [sum(bytes.fromhex(fill[1:])) for fill in fills]
    assert brightness[:5] == sorted(set(brightness[:5]), reverse=True)
    assert fills[5] == fills[4]  # values outside 0 to 1 are clamped
    assert fills[6] == fills[0]


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_all_cells_lie_within_the_drawing(heads: int) -> None:
    root = ElementTree.fromstring(draw_heads(weights(H=heads), SOURCES, TARGETS, "title"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for group in root.iter(f"{SVG}g"):
        x, y = map(float, re.findall(r"[\d.]+", group.attrib["transform"]))
        for cell in group.iter(f"{SVG}rect"):
            assert 0 <= x + float(cell.attrib["x"]) + float(cell.attrib["width"]) <= width
            assert 0 <= y + float(cell.attrib["y"]) + float(cell.attrib["height"]) <= height


def test_panels_do_not_overlap() -> None:
    root = ElementTree.fromstring(draw_heads(weights(H=5), SOURCES, TARGETS, "title", columns=2))
    origins = [tuple(map(float, re.findall(r"[\d.]+", g.attrib["transform"]))) for g in root.iter(f"{SVG}g")]
    assert len(set(origins)) == 5
    assert len({x for x, _ in origins}) == 2
    assert len({y for _, y in origins}) == 3


def test_labels_have_room_beside_above_and_after_the_cells() -> None:
    wide, narrow = ["我们喜欢苹果", "a"], ["a", "b"]

    def sizes(sources: list[str], targets: list[str]) -> tuple[float, float, float, float]:
        svg = draw_heads(weights(H=2, T=2, S=2), sources, targets, "title", columns=1)
        left, above = (float(cells(svg)[0].attrib[key]) for key in ("x", "y"))
        _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
        return left, above, width, height

    left, above, width, height = sizes(narrow, narrow)
    assert (left, above) == (16 + 8, 40 + 6)
    assert (width, height) == (left + 2 * 22 + 5 + 16 + 16, 2 * (above + 2 * 22 + 16) + 48)
    assert sizes(narrow, wide)[:2] == (16 + 6 * 14, above)
    assert sizes(wide, narrow)[:3] == (left, 40 + 67, width)
    assert sizes(wide[::-1], narrow)[2] == width - 5 + 58  # the last label extends beyond the map


@pytest.mark.parametrize(("sources", "targets"), [(SOURCES[:2], TARGETS), (SOURCES, [*TARGETS, "苹果"]), ([], [])])
def test_wrong_number_of_labels_is_rejected(sources: list[str], targets: list[str]) -> None:
    with pytest.raises(ValueError, match=f"2 × 3 do not fit {len(targets)} × {len(sources)}"):
        draw_heads(weights(), sources, targets, "title")
