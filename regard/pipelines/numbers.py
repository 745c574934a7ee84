"""Numbers in text: which numbers of a sentence its translation lacks.

Numbers are compared by their digits, without signs, grouping and decimal marks, because languages exchange the two.
Numbers in words are recognised up to twelve, and Chinese numerals in general.
"""

import re
import unicodedata
from collections.abc import Iterator

_NUMBER = re.compile(r"\d+(?:[.,\u00a0\u202f'’]\d+)*")
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千万亿]+")
_CHINESE_DIGITS = {character: str(value) for value, character in enumerate("零一二三四五六七八九")} | {
    "〇": "0",
    "两": "2",
}
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_SECTIONS = {"万": 10**4, "亿": 10**8}
_MULTIPLIER = re.compile(
    r"[\s\u00a0-]{0,2}(?:[百千万亿]|hundred|thousand|million|billion|hundert|tausend|million|milliarde|mille|milliard|"
    r"miles?\b|mil\b|millones|millón|k\b|m\b|mio|mrd)",
    re.IGNORECASE,
)
_AFTERNOON = re.compile(r"\s{0,2}(?::?\d\d)?\s{0,2}(?:p\.?\s?m\b|o'clock|o’clock|点|uhr)", re.IGNORECASE)
_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve
    null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf
    zéro un deux trois quatre cinq six sept huit neuf dix onze douze
    cero un dos tres cuatro cinco seis siete ocho nueve diez once doce
    zero un due tre quattro cinque sei sette otto nove dieci undici dodici
    zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
    nullt erst zweit dritt viert fünft sechst siebt acht neunt zehnt elft zwölft
"""
_SPELLED: dict[str, list[str]] = {}
for _line in _WORDS.split("\n"):
    for _value, _word in enumerate(_line.split()):
        _SPELLED.setdefault(str(_value), []).append(_word)


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the numbers of the source, as written there, that do not occur in the translation.

    Example:
        >>> missing_numbers("1,000 people in 3 cities", "1.000 Menschen in drei Städten")
        []
        >>> missing_numbers("Call 555 now.", "Ruf jetzt an.")
        ['555']
    """
    source = _to_ascii_digits(source)
    matches = list(_NUMBER.finditer(source))
    if not matches:
        return []
    translation = _to_ascii_digits(translation)
    found = {_digits(match[0]) for match in _NUMBER.finditer(translation)}
    found |= {value for match in _CHINESE.finditer(translation) for value in _chinese_values(match[0])}
    scaled = any(_MULTIPLIER.match(translation, match.end()) for match in _NUMBER.finditer(translation))
    mantissas = {value.rstrip("0") for value in found}
    missing: list[str] = []
    for match in matches:
        digits = _digits(match[0])
        is_scaled = scaled or _MULTIPLIER.match(source, match.end()) is not None
        known = (
            digits in found
            or (is_scaled and digits.rstrip("0") in mantissas)
            or _is_spelled(digits, translation)
            or (_AFTERNOON.match(source, match.end()) is not None and _other_clock(digits) in found)
        )
        if not known and match[0] not in missing:
            missing.append(match[0])
    return missing


def _to_ascii_digits(text: str) -> str:
    """Replace the digits of other scripts and full-width ones."""
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(character)) if not character.isascii() and character.isdecimal() else character
        for character in text
    )


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number).lstrip("0") or "0"


def _other_clock(digits: str) -> str:
    """Return an hour of the other half of the day."""
    return str((int(digits) + 12) % 24) if len(digits) <= 2 else ""


def _is_spelled(digits: str, text: str) -> bool:
    words = _SPELLED.get(digits)
    return words is not None and re.search(rf"\b(?:{'|'.join(words)})", text, re.IGNORECASE) is not None


def _chinese_values(numeral: str) -> Iterator[str]:
    """Yield the digits that a Chinese numeral may stand for: digit by digit, and as a value such as 三百二十."""
    if all(character in _CHINESE_DIGITS for character in numeral):
        yield "".join(_CHINESE_DIGITS[character] for character in numeral).lstrip("0") or "0"
        return
    total = section = digit = 0
    for character in numeral[:40]:
        if character in _CHINESE_DIGITS:
            digit = int(_CHINESE_DIGITS[character])
        elif character in _CHINESE_UNITS:
            section += (digit or 1) * _CHINESE_UNITS[character]
            digit = 0
        else:
            total = (total + section + digit) * _CHINESE_SECTIONS[character]
            section = digit = 0
    yield str(total + section + digit)
