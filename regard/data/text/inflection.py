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

_GERMAN = ("e", "en", "er", "es", "em", "n", "s", "ern", "ens", "nen", "t", "st", "te", "ten")
ENDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {"": ("s", "es", "ed", "ing"), "e": ("es", "ed", "ing"), "y": ("ies", "ied", "ying")},
    "de": {"": _GERMAN, "e": _GERMAN, "en": _GERMAN, "n": _GERMAN},
    "fr": {"": ("s", "x", "e", "es"), "al": ("aux",), "er": ("e", "es", "ent", "ee", "ees", "ant", "ez")},
    "es": {"": ("s", "es"), "o": ("a", "os", "as"), "z": ("ces",)},
    "it": {"o": ("a", "i", "e"), "a": ("e",), "e": ("i",), "io": ("i",), "ca": ("che",), "ga": ("ghe",)},
    "pt": {"": ("s", "es"), "o": ("a", "os", "as"), "ao": ("oes", "aes"), "l": ("is",), "m": ("ns",)},
    "nl": {"": ("s", "e", "en", "n")},
}
"""Endings of inflected forms by language and by the ending of the base form, which they replace."""
MIN_STEM, MIN_GENERIC_STEM = 3, 4
GENERIC_ENDING = 3
"""Maximum number of letters of an ending in a language without a list."""


def is_form_of(word: str, term: str, language: str) -> bool:
    """Return whether a word of a text is the given word of a term, or an inflected form of it.

    Both are compared without regard to case, except that a term in capital letters, such as "IT", is compared with it.
    In inflected forms, diacritics are ignored, as in Apfel and Äpfel. The word has the stem of the term, of at least
    three letters and more letters than either ending, and an ending of `ENDINGS`. A term that is inflected itself, such
    as "books", does not match its base form. In languages without a list of endings, any ending of at most three
    letters matches, and a stem has at least four letters and two more than either ending.
    """
    acronym = len(term) > 1 and term.isupper()
    if (word == term) if acronym else (word.casefold() == term.casefold()):
        return True
    if acronym:
        return word == f"{term}s"
    one, other = fold(word), fold(term)
    differing = (length for length, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    longest = next(differing, min(len(one), len(other)))
    endings = ENDINGS.get(language)
    if endings is None:
        ending = max(len(one), len(other)) - longest
        return ending <= GENERIC_ENDING and longest >= max(MIN_GENERIC_STEM, ending + 2) and one.isalpha()
    return one == other or any(
        length > max(len(one), len(other)) - length and one[length:] in endings.get(other[length:], ())
        for length in range(longest, MIN_STEM - 1, -1)
    )


@lru_cache(maxsize=2**14)
def fold(word: str) -> str:
    """Return a word in lower case without diacritics."""
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def is_word_character(character: str) -> bool:
    """Return whether a character continues a word in a script with spaces between words."""
    return re.match(WORD, character) is not None
