"""Fonts of matplotlib figures: each character is drawn with an installed font that contains it."""

import logging
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure

from regard.files import replace_file

DEFAULT = "DejaVu Sans"
"""The font that comes with matplotlib."""
# Fonts with Chinese, Japanese and Korean characters on Linux, macOS and Windows; they are preferred to others.
CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)
SHOWN = 5
"""Number of missing characters that are listed in a warning."""


def save_figure(draw: Callable[[], Figure], texts: Iterable[str], path: Path, dpi: int = 140) -> None:
    """Draw a figure with fonts that contain its texts, and write it atomically; equal figures give equal files."""
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with replace_file(path) as temporary, use_fonts(texts, path):
        draw().savefig(temporary, dpi=dpi, facecolor="white", metadata=metadata)


@contextmanager
def use_fonts(texts: Iterable[str], out: Path) -> Iterator[None]:
    """Create and save a figure as `out`, with fonts that contain the characters of the given texts.

    Text is never parsed as a formula. An SVG file contains text as text, and its viewer chooses the fonts. If another
    file shows boxes because no installed font contains a character, one sentence about it is logged.
    """
    families, missing = _find_fonts(frozenset("".join(texts)))
    # An SVG file also names fonts that are not installed here: they may be where it is viewed.
    names = list(dict.fromkeys([*families, *CJK_FONTS, "sans-serif"]))
    style: dict[Any, Any] = {"font.family": names, "font.sans-serif": [DEFAULT], "text.parse_math": False}
    style |= {"svg.fonttype": "none", "svg.hashsalt": "regard"}
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it reports every font that is not installed
    try:
        with mpl.rc_context(style), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            yield
    finally:
        logger.setLevel(level)
    if missing and out.suffix.lower() != ".svg":
        shown = "".join(sorted(missing)[:SHOWN]) + ("…" if len(missing) > SHOWN else "")
        is_wide = any(unicodedata.east_asian_width(character) in "WF" for character in missing)
        logging.getLogger("regard").warning(
            f"{out}: no installed font contains {shown}, so boxes are drawn instead; install one, such as the Debian "
            f"package {'fonts-noto-cjk' if is_wide else 'fonts-noto-core'}, or write an .svg file"
        )


@lru_cache(16)
def _find_fonts(characters: frozenset[str]) -> tuple[list[str], set[str]]:
    """Return fonts that contain the characters, the default one first, and the characters that no font contains."""
    families, missing = [DEFAULT], {one for one in characters if one.isprintable() and not one.isspace()}
    missing -= _find_characters(font_manager.findfont(DEFAULT), missing)
    for name, path in _list_fonts() if missing else ():
        if not missing:
            break
        if found := _find_characters(path, missing):
            families.append(name)
            missing -= found
    return families, missing


def _list_fonts() -> Iterator[tuple[str, str]]:
    """Yield the names and paths of the installed fonts: preferred ones first, and those new to matplotlib last."""
    manager = font_manager.fontManager
    known = {font.fname for font in manager.ttflist}
    ranks = {name: rank for rank, name in enumerate(CJK_FONTS)}
    for font in sorted(manager.ttflist, key=lambda font: (ranks.get(font.name, len(ranks)), font.weight != 400)):
        if "lastresort" not in font.name.lower().replace(" ", ""):  # its characters are boxes
            yield font.name, font.fname
    for path in font_manager.findSystemFonts():  # matplotlib lists the fonts once and stores the list
        if path not in known:
            try:
                manager.addfont(path)
            except (OSError, RuntimeError):
                continue
            yield manager.ttflist[-1].name, path


def _find_characters(path: str, characters: set[str]) -> set[str]:
    """Return the characters that a font contains."""
    try:
        font = font_manager.get_font(path)
    except (OSError, RuntimeError):  # removed, or a format that matplotlib cannot read
        return set()
    return {one for one in characters if font.get_char_index(ord(one))}
