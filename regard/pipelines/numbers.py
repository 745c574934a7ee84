"""Numbers in text: which numbers of a sentence its translation lacks.

Numbers are compared by their digits, without signs, grouping and decimal marks, because languages exchange the two.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_NUMBER = re.compile(r"\d+(?:[.,，\u00a0\u202f'’]\d+)*")
_GROUP_SPACE = re.compile(r"(?<=\d) (?=\d{3}(?!\d))")
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千万亿]+")
_CHINESE_DIGITS = dict(zip("零一二三四五六七八九〇两", "012345678902", strict=True))
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_SECTIONS = {"万": 10**4, "亿": 10**8}
_MULTIPLIER = re.compile(
    r"[\s\u00a0-]{0,2}(?:[百千万亿]|hundred|thousand|million|billion|hundert|tausend|milliarde|mille|milliard|"
    r"mil\b|miles\b|millones|millón|mio|mrd)",
    re.IGNORECASE,
)
_ONE_MULTIPLE = re.compile(
    r"\b(?:an?|one|eine?|une?|un[ao])\s+(?:hundred|thousand|\w+illi[oa]rd|\w+illi[oó]n)", re.IGNORECASE
)
_MONTHS = [re.compile(rf"\b(?:{names})", re.IGNORECASE) for names in (
    "jan|jän|ener|genn", "feb|fév|fev", "mar|mär", "apr|avr|abr", "may|mai|mag", "jun|juin|giu",
    "jul|juil|lug", "aug|août|ago", "sep|set", "oct|okt|ott|out", "nov", "dec|dez|déc|dic",
)]  # fmt: skip
"""Starts of the names of the months, which Chinese and Japanese number."""
_DECADE = re.compile(r"年代|s\b|er\b")
_AFTERNOON = re.compile(r"\s{0,2}(?::?\d\d)?\s{0,2}(?:p\.?\s?m\b|o'clock|o’clock|点|uhr)", re.IGNORECASE)
_HALF = re.compile(r"\bhal[bf]|半|\bdemi|\bmedi[ao]|\bmezz[ao]", re.IGNORECASE)
_QUARTER = re.compile(r"viertel|\bquarter|刻|\bquart|\bcuarto", re.IGNORECASE)
_FRACTIONS = {"30": _HALF, "15": _QUARTER, "45": _QUARTER}
"""Minutes that are often written as parts of an hour."""


MAX_NUMBER = 999_999
"""Largest number that is written in words."""
_ENGLISH_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
_GERMAN_WORDS = """null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn
    sechzehn siebzehn achtzehn neunzehn"""
_ENGLISH_TENS_WORDS = "_ ten twenty thirty forty fifty sixty seventy eighty ninety"
_GERMAN_TENS_WORDS = "_ zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
_SMALL_WORDS = """zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize
    cero un dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince
    zero un due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici
    zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
    nullt erst zweit dritt viert fünft sechst siebt acht neunt zehnt elft zwölft"""
_ENGLISH, _GERMAN = _ENGLISH_WORDS.split(), _GERMAN_WORDS.split()
_ENGLISH_TENS, _GERMAN_TENS = _ENGLISH_TENS_WORDS.split(), _GERMAN_TENS_WORDS.split()
_SMALL = [line.split() for line in _SMALL_WORDS.split("\n")]
_ROUND = {
    20: ("vingt", "veinte", "venti", "twentieth"), 30: ("trente", "treinta", "trenta", "thirtieth"),
    40: ("quarante", "cuarenta", "quaranta"), 50: ("cinquante", "cincuenta", "cinquanta"),
    60: ("soixante", "sesenta", "sessanta"), 70: ("soixante-dix", "setenta", "settanta"),
    80: ("quatre-vingt", "ochenta", "ottanta"), 90: ("quatre-vingt-dix", "noventa", "novanta"),
    100: ("cent", "cien", "cento"), 1000: ("mille", "mil"),
}  # fmt: skip


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the numbers of the source, as written there, that do not occur in the translation.

    Examples:
        >>> missing_numbers("1,000 people in 3 cities", "1.000 Menschen in drei Städten")
        []
        >>> missing_numbers("Call 555 now.", "Ruf jetzt an.")
        ['555']
    """
    source = _to_ascii_digits(source)
    matches = list(_NUMBER.finditer(source))
    if not matches:
        return []
    target = _Target(_to_ascii_digits(translation))
    missing = (match[0] for match in matches if not target.contains(match, source))
    return list(dict.fromkeys(missing))


class _Target:
    """The numbers of a translation."""

    def __init__(self, text: str) -> None:
        self.text = text
        written = [match[0] for one in (text, _GROUP_SPACE.sub("", text)) for match in _NUMBER.finditer(one)]
        self.digits = {_digits(number) for number in written}
        self.digits |= {_digits(part) for number in written for part in re.findall(r"\d+", number)}
        self.digits |= {value for match in _CHINESE.finditer(text) for value in _chinese_values(match[0])}
        self.is_scaled = any(_MULTIPLIER.match(text, match.end()) for match in _NUMBER.finditer(text))
        if _ONE_MULTIPLE.search(text):
            self.digits.add("1")

    def contains(self, match: re.Match[str], source: str) -> bool:
        """Return whether a number of the source occurs, in digits, in words or as a part of a date or an hour."""
        digits = _digits(match[0])
        if digits in self.digits or self._is_spelled(digits) or self._has_parts(match[0]):
            return True
        if self.is_scaled or _MULTIPLIER.match(source, match.end()):
            return digits.rstrip("0") in {value.rstrip("0") for value in self.digits}
        return self._has_date(digits, match.end(), source) or self._has_hour(digits, match, source)

    def _has_parts(self, number: str) -> bool:
        """Return whether the parts of a number such as 6.30 or 3,4 occur in a row, as in 6:30 or "3 and 4"."""
        parts = re.findall(r"\d+", number)
        in_a_row = r"\D{1,5}".join(parts)
        return len(parts) > 1 and re.search(rf"(?<!\d){in_a_row}(?!\d)", self.text) is not None

    def _has_date(self, digits: str, end: int, source: str) -> bool:
        if source.startswith("月", end) and 1 <= int(digits) <= 12:
            return _MONTHS[int(digits) - 1].search(self.text) is not None
        if source.startswith("世纪", end):
            return any(value[:-2] == str(int(digits) - 1) for value in self.digits)
        return _DECADE.match(source, end) is not None and digits[-2:] in {value[-2:] for value in self.digits}

    def _has_hour(self, digits: str, match: re.Match[str], source: str) -> bool:
        is_minute = source[: match.start()].endswith(":")
        if (is_minute and digits == "0") or (digits in _FRACTIONS and _FRACTIONS[digits].search(self.text)):
            return True
        if source.startswith(":30", match.end()) and _HALF.search(self.text):  # 2:30 is "halb drei" in German
            return True
        return _AFTERNOON.match(source, match.end()) is not None and _other_clock(digits) in self.digits

    def _is_spelled(self, digits: str) -> bool:
        words = spellings(int(digits)) if len(digits) <= 6 else ()
        return any(re.search(rf"\b{re.escape(word)}", self.text, re.IGNORECASE) for word in words)


def _to_ascii_digits(text: str) -> str:
    """Replace the digits of other scripts and full-width ones."""
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(character)) if not character.isascii() and character.isdecimal() else character
        for character in text
    )


def _digits(number: str) -> str:
    return re.sub(r"\D", "", re.sub(r"[.,]00$", "", number)).lstrip("0") or "0"


def _other_clock(digits: str) -> str:
    """Return an hour of the other half of the day."""
    return str((int(digits) + 12) % 24) if len(digits) <= 2 else ""


def _chinese_values(numeral: str) -> Iterator[str]:
    """Yield the digits that a Chinese numeral may stand for: digit by digit, and as a value such as 三百二十."""
    if all(character in _CHINESE_DIGITS for character in numeral):
        digits = "".join(_CHINESE_DIGITS[character] for character in numeral)
        yield digits.lstrip("0") or "0"
        if len(digits) == 2:  # 两三年, two or three years
            yield from digits
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


# Numbers in words


@lru_cache(1024)
def spellings(number: int) -> tuple[str, ...]:
    """Return how a number is written in words, without inflection; empty for large numbers.

    Examples:
        >>> spellings(25)
        ('twenty-five', 'twenty five', 'fünfundzwanzig')
    """
    if not 0 <= number <= MAX_NUMBER:
        return ()
    return tuple(dict.fromkeys(_spell(number)))


def _spell(number: int) -> Iterator[str]:
    english = _english(number)
    german = _german(number)
    yield from (english, english.replace("-", " "), english.replace(" and ", " "), german)
    if 1100 <= number < 2000:  # years
        first, rest = divmod(number, 100)
        yield _german(first) + "hundert" + (_german(rest) if rest else "")
        yield f"{_english(first)} {_english(rest) if rest else 'hundred'}"
    if number >= 100:  # "a hundred", "hundertzwanzig"
        yield from (english.removeprefix("one "), german.removeprefix("ein"))
    yield from (words[number] for words in _SMALL if number < len(words))
    yield from _ROUND.get(number, ())


def _english(number: int) -> str:
    if number < 20:
        return _ENGLISH[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return _ENGLISH_TENS[tens] + (f"-{_ENGLISH[rest]}" if rest else "")
    base, name, joint = (100, "hundred", " and ") if number < 1000 else (1000, "thousand", " ")
    count, rest = divmod(number, base)
    return f"{_english(count)} {name}" + (f"{joint}{_english(rest)}" if rest else "")


def _german(number: int) -> str:
    if number < 20:
        return _GERMAN[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return (f"{_GERMAN[rest]}und" if rest else "") + _GERMAN_TENS[tens]
    base, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, rest = divmod(number, base)
    return _german(count) + name + (_german(rest) if rest else "")
