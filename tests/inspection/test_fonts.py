"""Figures with characters that the default font lacks."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.figure import Figure
from PIL import Image

from regard.inspection import fonts
from regard.inspection.fonts import DEFAULT, SHOWN, _find_characters, use_fonts
from tests.inspection.scenes import make_scene

TEXT = "我喜欢苹果"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths of the fonts that are installed besides the default one; empty at first."""
    paths: list[str] = []
    manager = font_manager.fontManager
    default = [font for font in manager.ttflist if font.name == DEFAULT]
    monkeypatch.setattr(manager, "ttflist", default)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: paths)
    fonts._find_fonts.cache_clear()
    yield paths
    fonts._find_fonts.cache_clear()


def make_font(path: Path, characters: str) -> str:
    """Write a font in which every character is a black square."""
    builder = FontBuilder(1000, isTTF=True)
    names = [".notdef", *(f"uni{ord(character):04X}" for character in characters)]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(character): name for character, name in zip(characters, names[1:], strict=True)})
    pen = TTGlyphPen(None)
    for move, corner in zip("mlll", [(0, 0), (0, 800), (900, 800), (900, 0)], strict=True):
        (pen.moveTo if move == "m" else pen.lineTo)(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def draw(text: str, out: Path) -> None:
    with use_fonts([text], out):
        figure = Figure((3, 1))
        figure.text(0.1, 0.4, text, fontsize=20)
        figure.savefig(out)


def count_black(path: Path) -> int:
    with Image.open(path) as picture:
        return int((np.asarray(picture.convert("L")) < 40).sum())


def test_png_without_a_font_gives_one_sentence_with_a_package(
    installed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        draw(TEXT, tmp_path / "a.png")
    assert caplog.messages == [
        f"{tmp_path / 'a.png'}: no installed font contains 喜我果欢苹, so boxes are drawn instead; install one, "
        f"such as the Debian package fonts-noto-cjk, or write an .svg file"
    ]
    draw("ทดสอบ", tmp_path / "b.png")
    assert "fonts-noto-core" in caplog.messages[1]
    draw("I love apples: naïve, привет", tmp_path / "c.png")
    assert len(caplog.messages) == 2


def test_png_is_drawn_with_a_font_that_was_installed_later(
    installed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw(TEXT, tmp_path / "boxes.png")
    fonts._find_fonts.cache_clear()
    caplog.clear()
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    installed += [str(tmp_path / "broken.ttf"), make_font(tmp_path / "squares.ttf", TEXT)]
    draw(TEXT, tmp_path / "squares.png")
    assert caplog.messages == []
    assert count_black(tmp_path / "squares.png") > 2 * count_black(tmp_path / "boxes.png")


def test_svg_contains_text_as_text(installed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_scene(TEXT).save(tmp_path / "look.svg")
    svg = (tmp_path / "look.svg").read_text(encoding="utf-8")
    assert f">{TEXT}</text>" in svg
    assert "Noto Sans CJK SC" in svg
    assert "DejaVuSans-" not in svg  # outlines of characters
    assert caplog.messages == []
    make_scene(TEXT).save(tmp_path / "look.png")
    assert Image.open(tmp_path / "look.png").format == "PNG"
    assert len(caplog.messages) == 1


def test_level_of_the_font_logger_is_restored(installed: list[str], tmp_path: Path) -> None:
    logger = logging.getLogger("matplotlib.font_manager")
    before = logger.level
    draw(TEXT, tmp_path / "a.png")
    assert logger.level == before


def test_only_the_first_missing_characters_are_shown(
    installed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    characters = "".join(map(chr, range(0x4E00, 0x4E00 + SHOWN + 1)))
    with caplog.at_level(logging.WARNING):
        draw(characters, tmp_path / "a.png")
        draw(characters[:-1], tmp_path / "b.png")
    assert f"contains {characters[:SHOWN]}…, so" in caplog.messages[0]
    assert f"contains {characters[:SHOWN]}, so" in caplog.messages[1]


def test_files_that_are_no_fonts_contain_no_characters(tmp_path: Path) -> None:
    (tmp_path / "a.ttf").write_bytes(b"no font")
    assert _find_characters(str(tmp_path / "a.ttf"), {"a"}) == set()
    assert _find_characters(str(tmp_path / "missing.ttf"), {"a"}) == set()


def test_no_further_font_is_listed_when_no_character_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make_font(tmp_path / f"{name}.ttf", "喜欢") for name in ("first", "second"))
    listed: list[str] = []

    def list_fonts() -> Iterator[tuple[str, str]]:
        for path in (first, second):
            listed.append(path)
            yield Path(path).stem, path

    monkeypatch.setattr(fonts, "_list_fonts", list_fonts)
    fonts._find_fonts.cache_clear()
    families, missing = fonts._find_fonts(frozenset("a 喜欢"))
    fonts._find_fonts.cache_clear()
    assert (families, missing) == ([fonts.DEFAULT, "first"], set())
