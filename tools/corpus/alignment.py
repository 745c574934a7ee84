"""Word alignment of the corpus by the lexicon of its grammar: content words and their translations.

Content words are the nouns, verbs, adjectives, places and names that the lexicon translates by one Chinese word.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from .english import form_plural
from .lexicon import adjectives, nouns, people, places, verbs
from .lexicon.adjectives import Adjective
from .lexicon.nouns import Noun
from .lexicon.people import NAMES, RELATIVES, Role
from .lexicon.places import Place
from .lexicon.verbs import Verb

FUNCTION_WORDS = frozenset(["a", "an", "the", "of", "to", "for", "on", "off", "in", "at", "from", "more"])
"""Words of English entries with several words, such as "look for", that are not aligned."""


def align_content_words(source: str, words: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Return the Chinese content words of a sentence pair with the English words that they translate.

    Args:
        source: The English sentence.
        words: The Chinese words.

    Returns:
        For each content word whose translation occurs in the sentence, its index and the indices of the English words,
        which are separated by spaces.
    """
    english = split_words(source)
    links = []
    for index, word in enumerate(words):
        forms = dictionary().get(word, frozenset())
        aligned = [i for i, each in enumerate(english) if each in forms]
        if aligned:
            links.append((index, aligned))
    return links


def split_words(source: str) -> list[str]:
    """Split a sentence at spaces, lower its case, and remove punctuation and possessive endings."""
    return [word.strip(".,?").lower().removesuffix("'s") for word in source.split()]


@cache
def dictionary() -> dict[str, frozenset[str]]:
    """Return all forms of the English words that each Chinese content word translates."""
    forms = defaultdict(set)
    for chinese, english in _entries():
        if chinese and " " not in chinese:
            forms[chinese] |= {word for phrase in english for word in split_words(phrase)} - FUNCTION_WORDS
    return {chinese: frozenset(words) for chinese, words in forms.items()}


def _entries() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every entry of the lexicon: the Chinese word, and all forms of the English one."""
    for module in (adjectives, nouns, people, places, verbs):
        for entry in _walk(vars(module)):
            if isinstance(entry, Noun):
                yield entry.chinese, (entry.english, entry.plural, form_plural(entry.english))
            elif isinstance(entry, Role):
                yield entry.chinese, (entry.english, entry.plural)
            elif isinstance(entry, Place):
                yield entry.destination, (entry.name,)
            elif isinstance(entry, Adjective):
                yield entry.chinese, (entry.english, entry.comparative)
            elif isinstance(entry, Verb):
                yield entry.chinese, tuple(entry.forms)
    for person in NAMES:
        yield person.chinese, (person.english,)
    for relative in RELATIVES:
        yield relative[1], (relative[0],)


def _walk(value: Any) -> Iterator[Any]:
    """Yield all objects in nested collections."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Noun | Role | Place | Adjective | Verb):
        yield value
    elif isinstance(value, tuple | frozenset | type({}.values())):
        for item in value:
            yield from _walk(item)
