"""Colours of the page in a real browser: contrast, and differences with normal vision and colour blindness."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from regard.serving.page_api import read_page_files
from tests.browser import Visit
from tests.colours import VISIONS, Colours, colour_difference, contrast_ratio, to_lab

URL = "http://page.test"
COLOUR_VISIONS = [vision for vision in VISIONS if vision != "achromatopsia"]
MIN_DIFFERENCE = 20.0
"""ΔE between colours with different meanings: ten times a barely visible difference."""
READ_PALETTE = """async () => {
  const { makeScale, textColourOn } = await import("/page/colours.js");
  const canvas = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const bytes = (name) => {
    canvas.fillStyle = style.getPropertyValue(name);
    return [1, 3, 5].map((start) => parseInt(canvas.fillStyle.slice(start, start + 2), 16));
  };
  const names = ["page", "card", "text", "faint", "line", "accent", "selected"];
  const scale = (dark, signed) => Array.from(makeScale(dark, signed));
  const { isDark } = await import("/page/theme.js");
  return {
    colours: Object.fromEntries(names.map((name) => [name, bytes(`--${name}`)])),
    unsigned: scale(isDark(), false),
    signed: scale(isDark(), true),
    texts: Array.from({ length: 256 }, (_, i) => textColourOn(scale(isDark(), false), i / 255) === "#fff" ? 255 : 0),
  };
}"""


class Palette:
    """Colours of one theme: CSS variables by name, and the scales for unsigned and signed values, (256, 3)."""

    def __init__(self, palette: dict[str, Any]) -> None:
        self.colours = {name: np.array(colour, float) for name, colour in palette["colours"].items()}
        self.texts = np.array(palette["texts"], float)
        self.unsigned, self.signed = (
            np.array(palette[name], float).reshape(256, 4)[:, :3] for name in ("unsigned", "signed")
        )


@pytest.fixture(scope="module", params=["light", "dark"])
def palette(browser: Any, request: pytest.FixtureRequest) -> Iterator[Palette]:
    files = {f"/page/{name}": content for name, content in read_page_files().items()}
    files["/"] = files["/page/index.html"]
    media_types = {"js": "text/javascript", "css": "text/css"}

    def respond(route: Any) -> None:
        path = route.request.url.removeprefix(URL)
        route.fulfill(body=files.get(path, b"{}"), content_type=media_types.get(path.rpartition(".")[2], "text/html"))

    with Visit(browser, color_scheme=request.param) as visit:
        visit.page.route("**/*", respond)
        visit.page.goto(URL)
        yield Palette(visit.page.evaluate(READ_PALETTE))


@pytest.mark.parametrize("vision", COLOUR_VISIONS)
def test_colours_with_different_meanings_are_distinguishable(palette: Palette, vision: str) -> None:
    colours = palette.colours
    for first, second in combinations(("accent", "selected", "text", "faint"), 2):
        assert colour_difference(colours[first], colours[second], vision) > MIN_DIFFERENCE, (first, second)
    for name in ("accent", "selected"):
        assert colour_difference(colours[name], colours["line"], vision) > MIN_DIFFERENCE, name


def test_text_has_sufficient_contrast(palette: Palette) -> None:
    for text in ("text", "faint", "accent", "selected"):
        for background in ("page", "card"):
            ratio = contrast_ratio(palette.colours[text], palette.colours[background])
            assert ratio >= 4.5, (text, background)


def test_text_on_every_colour_of_the_scale_has_sufficient_contrast(palette: Palette) -> None:
    for background, text in zip(palette.unsigned, palette.texts, strict=True):
        assert contrast_ratio(np.full(3, text), background) >= 4.5


@pytest.mark.parametrize("vision", VISIONS)
def test_lightness_is_monotonic_in_the_weight(palette: Palette, vision: str) -> None:
    assert _is_monotonic(to_lab(palette.unsigned, vision)[:, 0], 60)


@pytest.mark.parametrize("vision", VISIONS)
def test_signed_scale_is_monotonic_on_both_sides_and_distinguishes_them(palette: Palette, vision: str) -> None:
    lightness = to_lab(palette.signed, vision)[:, 0]
    assert _is_monotonic(lightness[127::-1], 40)
    assert _is_monotonic(lightness[128:], 40)
    if vision in COLOUR_VISIONS:
        for distance in (32, 64, 127):  # equal distances above and below zero
            negative, positive = palette.signed[127 - distance], palette.signed[128 + distance]
            assert colour_difference(negative, positive, vision) > MIN_DIFFERENCE


def _is_monotonic(lightness: Colours, min_range: float) -> bool:
    """Whether the lightness rises or falls by at least `min_range`, up to the rounding of colours to bytes."""
    direction = np.sign(lightness[-1] - lightness[0])
    return bool((direction * np.diff(lightness) > -0.05).all() and abs(lightness[-1] - lightness[0]) > min_range)
