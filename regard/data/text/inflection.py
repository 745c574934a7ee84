"""Inflected forms of a word, recognised by their endings, without a dictionary and without lemmas."""

import re
import unicodedata
from functools import lru_cache

UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words, as ranges of a regular expression."""
WORD = rf"(?:[^\W{UNSPACED}]|[\u0300-\u036f\u0900-\u0963\u0966-\u0dff])"
"""A character of a word in a script with spaces, as a regular expression; combining marks belong to words."""

ENDINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "en": (("", "s", "es", "ed", "ing"), ("e", "es", "ed", "ing"), ("y", "ies", "ied", "ying")),
    "de": (("", "e", "en", "er", "es", "em", "n", "s", "ern", "ens", "nen", "t", "st", "te", "ten"),),
    "fr": (("", "s", "x", "e", "es"), ("al", "aux"), ("er", "e", "es", "ent", "ee", "ees", "ant", "ez")),
    "es": (("", "s", "es"), ("o", "a", "os", "as"), ("z", "ces")),
    "it": (("o", "a", "i", "e"), ("io", "i"), ("ca", "che"), ("ga", "ghe")),
    "pt": (("", "s", "es"), ("o", "a", "os", "as"), ("ao", "oes", "aes"), ("l", "is"), ("m", "ns")),
    "nl": (("", "s", "e", "en", "n"),),
}
"""Endings by language: two words are forms of one word if they have a stem and two endings of one group."""
MIN_STEM, MIN_GENERIC_STEM = 3, 4
GENERIC_ENDING = 3
"""Maximum number of letters of an ending in a language without a list."""


def is_form_of(word: str, term: str, language: str) -> bool:
    """Return whether a word of a text is the given word of a term, or an inflected form of it.

    Both are compared without regard to case, except that a term in capital letters, such as "IT", is compared with it.
    In inflected forms, diacritics are ignored, as in Apfel and Äpfel. A stem has at least three letters and more
    letters than either ending. In languages without a list of endings, an ending has at most three letters, and a stem
    at least four and two more than either ending.
    """
    acronym = len(term) > 1 and term.isupper()
    if (word == term) if acronym else (word.casefold() == term.casefold()):
        return True
    if acronym:
        return word == f"{term}s"
    one, other = fold(word), fold(term)
    longest = _common_prefix(one, other)
    groups = ENDINGS.get(language)
    if groups is None:
        ending = max(len(one), len(other)) - longest
        return ending <= GENERIC_ENDING and longest >= max(MIN_GENERIC_STEM, ending + 2) and one.isalpha()
    for length in range(longest, MIN_STEM - 1, -1):
        endings = one[length:], other[length:]
        if length > max(map(len, endings)) and any(all(one in group for one in endings) for group in groups):
            return True
    return False


@lru_cache(maxsize=2**14)
def fold(word: str) -> str:
    """Return a word in lower case without diacritics."""
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def is_word_character(character: str) -> bool:
    """Return whether a character continues a word in a script with spaces between words."""
    return re.match(WORD, character) is not None


def _common_prefix(one: str, other: str) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
