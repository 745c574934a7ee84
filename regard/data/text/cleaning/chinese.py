"""Simplified and traditional Chinese characters."""

from functools import cache

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.analysis import Texts
from regard.data.text.cleaning.characters import CODE_POINTS, RANGES
from regard.data.text.languages import match_language

SIMPLIFIED, TRADITIONAL = 1, 2
MIN_SHARE, MIN_CHARACTERS = 0.2, 2
"""A text is mixed if at least this share and number of its distinguishing characters are of the rarer variant."""


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


def count_variants(texts: Texts) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of simplified-only and of traditional-only characters of each text."""
    found = variants()[texts.codes]
    return texts.count(found == SIMPLIFIED), texts.count(found == TRADITIONAL)


def expected_variant(code: str) -> int:
    """Return the variant that a language code names, such as zh-Hant; 0 for another language or plain "zh"."""
    if match_language(code, ["zt"]):
        return TRADITIONAL
    return SIMPLIFIED if "-" in code.replace("_", "-") and match_language(code, ["zh"]) else 0


def wrong_variant(texts: Texts, expected: int) -> npt.NDArray[np.bool_]:
    """Return which texts mix the variants or are in the one that is not expected."""
    simplified, traditional = count_variants(texts)
    rarer, total = np.minimum(simplified, traditional), simplified + traditional
    mixed = (rarer >= MIN_CHARACTERS) & (rarer >= MIN_SHARE * total)
    own, other = (simplified, traditional) if expected == SIMPLIFIED else (traditional, simplified)
    return mixed | ((other > own) & (other >= MIN_CHARACTERS))
