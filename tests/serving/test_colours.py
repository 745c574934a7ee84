"""The page's colours, taken from a real browser, as people with and without colour blindness see them."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from regard.serving.static import read_files
from tests.browser import Visit
from tests.colours import SIGHTS, Colours, contrast, distance, lab

ADDRESS = "http://page.test"
LIMITED = [sight for sight in SIGHTS if sight != "none of colour"]
TOLD_APART = 20.0
"""ΔE between colours that mean different things: ten times what is barely seen."""
READ = """async () => {
  const { makeScale } = await import("/page/colours.js");
  const canvas = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const bytes = (name) => {
    canvas.fillStyle = style.getPropertyValue(name);
    return [1, 3, 5].map((at) => parseInt(canvas.fillStyle.slice(at, at + 2), 16));
  };
  const names = ["page", "card", "text", "faint", "line", "accent", "chosen"];
  const scale = (dark, signed) => Array.from(makeScale(dark, signed));
  const { isDark } = await import("/page/theme.js");
  return {
    inks: Object.fromEntries(names.map((name) => [name, bytes(`--${name}`)])),
    weights: scale(isDark(), false),
    signed: scale(isDark(), true),
  };
}"""


class Palette:
    """What one theme draws with: inks by name, and two scales of 256 colours."""

    def __init__(self, read: dict[str, Any]) -> None:
        self.inks = {name: np.array(colour, float) for name, colour in read["inks"].items()}
        self.weights, self.signed = (_scale(read[name]) for name in ("weights", "signed"))


def _scale(numbers: list[int]) -> Colours:
    return np.array(numbers, float).reshape(256, 4)[:, :3]


@pytest.fixture(scope="module", params=["light", "dark"])
def palette(browser: Any, request: pytest.FixtureRequest) -> Iterator[Palette]:
    files = {f"/page/{name}": content for name, content in read_files().items()}
    files["/"] = files["/page/index.html"]
    kinds = {"js": "text/javascript", "css": "text/css"}

    def answer(route: Any) -> None:
        path = route.request.url.removeprefix(ADDRESS)
        route.fulfill(body=files.get(path, b"{}"), content_type=kinds.get(path.rpartition(".")[2], "text/html"))

    with Visit(browser, color_scheme=request.param) as visit:
        visit.page.route("**/*", answer)
        visit.page.goto(ADDRESS)
        yield Palette(visit.page.evaluate(READ))


@pytest.mark.parametrize("sight", LIMITED)
def test_marks_that_mean_different_things_are_told_apart(palette: Palette, sight: str) -> None:
    for one, other in combinations(("accent", "chosen", "text", "faint"), 2):
        assert distance(palette.inks[one], palette.inks[other], sight) > TOLD_APART, (one, other)
    for name in ("accent", "chosen"):
        assert distance(palette.inks[name], palette.inks["line"], sight) > TOLD_APART, name


def test_writing_can_be_read(palette: Palette) -> None:
    for ink in ("text", "faint", "accent", "chosen"):
        for ground in ("page", "card"):
            assert contrast(palette.inks[ink], palette.inks[ground]) >= 4.5, (ink, ground)


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_larger_weight_is_always_further_from_the_ground(palette: Palette, sight: str) -> None:
    assert _is_ordered(lab(palette.weights, sight)[:, 0], 60)


@pytest.mark.parametrize("sight", SIGHTS)
def test_each_sign_is_ordered_too_and_is_not_mistaken_for_the_other(palette: Palette, sight: str) -> None:
    lightness = lab(palette.signed, sight)[:, 0]
    assert _is_ordered(lightness[127::-1], 40)
    assert _is_ordered(lightness[128:], 40)
    if sight in LIMITED:
        for size in (32, 64, 127):  # as strong above zero as below
            assert distance(palette.signed[127 - size], palette.signed[128 + size], sight) > TOLD_APART


def _is_ordered(lightness: Colours, least: float) -> bool:
    """Whether it goes one way, by so much in all; colours are whole numbers, so that steps may be a little uneven."""
    way = np.sign(lightness[-1] - lightness[0])
    return bool((way * np.diff(lightness) > -0.05).all() and abs(lightness[-1] - lightness[0]) > least)
