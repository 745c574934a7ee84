"""Numbers written as words: cardinal numbers in English and German, small and round ones in other languages."""

from collections.abc import Iterator
from functools import lru_cache

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
