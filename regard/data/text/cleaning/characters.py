"""Tables of Unicode characters: classes, scripts, and the forms by which texts are compared.

Every table is indexed by code points, so that the characters of thousands of texts are classified by one indexing.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LETTER, DIGIT, SPACE, DAMAGE, SINGLE, INVISIBLE, LEAD, CONTINUATION = (1 << bit for bit in range(8))
"""Classes of characters. SINGLE: of a script without spaces, so that each character counts as a word. LEAD and
CONTINUATION: the bytes of a UTF-8 character that was decoded as Windows-1252."""
SIMPLIFIED, TRADITIONAL = 1, 2
"""Variants of Chinese characters."""
CODE_POINTS = 0x110000
TABLED = 0x20000
"""Code points that are looked up in the Unicode database; above are ideographs and unassigned ones."""

# fmt: off
RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x41, 0x24F), (0x250, 0x2AF), (0x1D00, 0x1DBF), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF),
              (0xFB00, 0xFB06), (0xFF21, 0xFF5A)),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Armenian": ((0x530, 0x58F),),
    "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE)),
    "Devanagari": ((0x900, 0x97F),),
    "Bengali": ((0x980, 0x9FF),),
    "Gurmukhi": ((0xA00, 0xA7F),),
    "Gujarati": ((0xA80, 0xAFF),),
    "Tamil": ((0xB80, 0xBFF),),
    "Telugu": ((0xC00, 0xC7F),),
    "Kannada": ((0xC80, 0xCFF),),
    "Malayalam": ((0xD00, 0xD7F),),
    "Sinhala": ((0xD80, 0xDFF),),
    "Thai": ((0xE00, 0xE7F),),
    "Lao": ((0xE80, 0xEFF),),
    "Tibetan": ((0xF00, 0xFFF),),
    "Myanmar": ((0x1000, 0x109F),),
    "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF)),
    "Hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF)),
    "Ethiopic": ((0x1200, 0x139F),),
    "Khmer": ((0x1780, 0x17FF),),
    "Mongolian": ((0x1800, 0x18AF),),
    "Kana": ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "Han": ((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
            (0x20000, 0x323AF)),
}
LANGUAGE_SCRIPTS = {
    **dict.fromkeys(("ru", "uk", "bg", "be", "mk", "kk"), ("Cyrillic",)),
    **dict.fromkeys(("sr", "mn", "az", "uz"), ("Cyrillic", "Latin")),
    **dict.fromkeys(("ar", "fa", "ur"), ("Arabic",)),
    **dict.fromkeys(("zh", "zt"), ("Han",)),
    "ja": ("Han", "Kana"), "ko": ("Hangul", "Han"), "el": ("Greek",), "he": ("Hebrew",), "hi": ("Devanagari",),
    "bn": ("Bengali",), "ta": ("Tamil",), "th": ("Thai",), "ka": ("Georgian",), "hy": ("Armenian",),
}
"""Scripts of the languages of `LANGUAGE_NAMES` that are not written in the Latin script."""
# fmt: on
SCRIPTS = ("", *RANGES)
UNSPACED_SCRIPTS = ("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Kana", "Han")
DENSE_SCRIPTS = ("Hangul", "Kana", "Han")
DENSE_WEIGHT = 3
"""How many letters of an alphabet a character of a dense script counts for, where scripts are compared."""
WINDOWS_1252_CONTINUATION = "".join(
    bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(0x80, 0xC0)
) + "".join(map(chr, range(0x80, 0xA0)))
"""The characters that bytes 0x80 to 0xBF become in Windows-1252 and Latin-1."""


class Tables(NamedTuple):
    """Tables by code point."""

    flags: npt.NDArray[np.uint8]  # classes, combined
    script: npt.NDArray[np.uint8]  # index in SCRIPTS
    folded: npt.NDArray[np.uint32]  # lower case, compatibility forms replaced, digits as 0
    random: npt.NDArray[np.uint64]  # a random number for every folded character
    random_raw: npt.NDArray[np.uint64]  # a random number for every character


@cache
def tables() -> Tables:
    """Build the tables, once."""
    flags, script = np.zeros(CODE_POINTS, np.uint8), np.zeros(CODE_POINTS, np.uint8)
    folded = np.arange(CODE_POINTS, dtype=np.uint32)
    for code in range(TABLED):
        character = chr(code)
        flags[code] = _flags_of(unicodedata.category(character), character)
        if flags[code] & (LETTER | DIGIT):
            folded[code] = _fold(character)
    for index, name in enumerate(SCRIPTS):
        for first, last in RANGES.get(name, ()):
            if first >= TABLED:
                flags[first : last + 1] = LETTER
            letters = (flags[first : last + 1] & LETTER) > 0
            script[first : last + 1][letters] = index
            if name in UNSPACED_SCRIPTS:
                flags[first : last + 1][letters] |= SINGLE
    flags[0xF0000:] |= DAMAGE  # private use
    flags[0xC2:0xF5] |= LEAD
    flags[[ord(character) for character in WINDOWS_1252_CONTINUATION]] |= CONTINUATION
    random = mix(np.arange(CODE_POINTS, dtype=np.uint64))
    return Tables(flags, script, folded, random[folded], random)


@cache
def variants() -> npt.NDArray[np.uint8]:
    """Return the variant of every code point, 0 for those of both and of neither.

    The character sets of mainland China (GB 2312) and Taiwan (Big5) contain the common characters of one variant each.
    """
    result = np.zeros(CODE_POINTS, np.uint8)
    for first, last in RANGES["Han"][2:4]:
        for code in range(first, last + 1):
            in_gb, in_big5 = (_encodes(chr(code), charset) for charset in ("gb2312", "big5"))
            result[code] = SIMPLIFIED if in_gb and not in_big5 else TRADITIONAL if in_big5 and not in_gb else 0
    return result


def _encodes(character: str, charset: str) -> bool:
    try:
        return bool(character.encode(charset))
    except UnicodeEncodeError:
        return False


def _flags_of(category: str, character: str) -> int:
    if character == "\ufffd" or category == "Co":
        return DAMAGE
    if category == "Cc":
        return SPACE if character in "\t\n\r" else DAMAGE
    if category == "Cf":
        return INVISIBLE
    if category.startswith("Z"):
        return SPACE
    return LETTER if category[0] in "LM" else DIGIT if category == "Nd" else 0


def _fold(character: str) -> int:
    if unicodedata.category(character) == "Nd":
        return ord("0")
    plain = unicodedata.normalize("NFKC", character).lower()
    return ord(plain) if len(plain) == 1 else ord(character)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64-bit hashes of numbers (the finaliser of SplitMix64), none of which is 0."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    values[values == 0] = 1
    return values
