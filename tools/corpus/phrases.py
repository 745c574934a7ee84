"""Bilingual phrases: composition, people and things."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from .english import add_article, form_plural
from .lexicon.adjectives import ATTRIBUTES, Adjective
from .lexicon.nouns import PLENTIFUL, SEVERAL, SHARED, Noun
from .lexicon.people import (
    ACQUAINTED,
    AT_HAND,
    COUPLES,
    FAMILY,
    GROUP_POSSESSORS,
    NAMED_POSSESSORS,
    NAMES,
    OTHERS_FAMILY,
    POSSESSORS,
    PRONOUNS,
    STRANGERS,
    Person,
)
from .lexicon.verbs import Verb

Item = TypeVar("Item")

# Before a measure word, two is 两, not 二.
NUMBERS = (
    ("two", "两"),
    ("three", "三"),
    ("four", "四"),
    ("five", "五"),
    ("six", "六"),
    ("seven", "七"),
    ("eight", "八"),
    ("nine", "九"),
    ("ten", "十"),
)
NUMERALS = dict(NUMBERS)


class Bilingual(Protocol):
    """An object with an English and a Chinese side."""

    @property
    def english(self) -> str: ...
    @property
    def chinese(self) -> str: ...
    @property
    def combinations(self) -> tuple[str, ...]: ...


class Phrase(NamedTuple):
    """A phrase in both languages, with spaces between Chinese words.

    `combinations` lists the pairs of words that occur together in it, such as "eat apple" or "new book".
    """

    english: str
    chinese: str
    combinations: tuple[str, ...] = ()
    plural: bool = False

    @property
    def be(self) -> str:
        return "are" if self.plural else "is"

    @property
    def do(self) -> str:
        return "do" if self.plural else "does"


NOTHING = Phrase("", "")


def word(english: str, chinese: str = "") -> Phrase:
    """Return a word with its translation, if any."""
    return Phrase(english, chinese)


def sometimes(rng: Random, chance: float, items: Sequence[Bilingual]) -> Bilingual:
    """Choose an item with the given probability, otherwise NOTHING."""
    return choose(rng, items) if rng.random() < chance else NOTHING


def choose(rng: Random, items: Sequence[Item]) -> Item:
    """Choose an item; unlike `Random.choice`, the result is the same in every version of Python."""
    return items[int(rng.random() * len(items))]


def fill(english: str, chinese: str, **slots: Bilingual) -> Phrase:
    """Fill the slots of an English and a Chinese template with the same phrases."""
    combinations = tuple(combination for slot in slots.values() for combination in slot.combinations)
    source = english.format(**{name: slot.english for name, slot in slots.items()})
    target = chinese.format(**{name: slot.chinese for name, slot in slots.items()})
    return Phrase(" ".join(source.split()), target, combinations)


# People


def random_person(rng: Random) -> Person:
    """Choose a person."""
    chance = rng.random()
    if chance < 0.36:
        return choose(rng, PRONOUNS)
    if chance < 0.60:
        return choose(rng, NAMES)
    if chance < 0.78:
        return choose(rng, FAMILY)
    if chance < 0.83:
        return choose(rng, OTHERS_FAMILY)
    if chance < 0.88:
        return choose(rng, ACQUAINTED)
    if chance < 0.93:
        return choose(rng, AT_HAND)
    return choose(rng, STRANGERS) if chance < 0.96 else choose(rng, COUPLES)


def random_he_or_she(rng: Random) -> Person:
    """Choose a person that a pronoun can refer to."""
    while not (person := random_person(rng)).pronoun:
        pass
    return person


_POSSESSIVES = {
    "I": {"my", "our"},
    "we": {"my", "our"},
    "you": {"your"},
    "he": {"his"},
    "she": {"her"},
    "they": {"their"},
}


def are_confusable(one: Person, other: Person) -> bool:
    """Return whether two people may be confused, or would need "myself" or a repeated name."""
    if {one.pronoun, other.pronoun} <= {"I", "we"}:
        return True
    if other.english in ("he", "she", "they") and one.pronoun not in ("I", "you"):
        # In "Tom can swim, but he cannot", the pronoun seems to refer to Tom.
        return one.pronoun in ("", "we", "they", other.pronoun)
    words = set(one.english.replace("'s", "").split()) - {"and", "the", "this", "that", "younger", "older"}
    return not words.isdisjoint(other.english.replace("'s", "").split())


def are_related(one: Person, other: Person) -> bool:
    """Return whether one person is described by their relation to the other: I and my mother."""
    return other.english.split()[0] in _POSSESSIVES.get(one.pronoun, ()) or (
        one.english.split()[0] in _POSSESSIVES.get(other.pronoun, ())
    )


def random_other_person(rng: Random, subject: Person, stranger: bool = False) -> Person:
    """Choose a person other than the subject, who is not related to it if `stranger` is set."""
    while are_confusable(subject, other := random_person(rng)) or (stranger and are_related(subject, other)):
        pass
    return other


def person_object(person: Person) -> Phrase:
    """Return a person as the object of a sentence."""
    return Phrase(person.objective, person.chinese)


# Things


class Attribute(NamedTuple):
    """An adjective before a noun, or nothing."""

    english: str
    chinese: str
    combinations: tuple[str, ...]


_PLAIN = Attribute("", "", ())


def combination_of(first: Verb | Adjective, noun: Noun) -> str:
    """Return the name of the combination of a verb or an adjective with a noun."""
    return f"{first.english} {noun.english}"


def random_attribute(rng: Random, noun: Noun, chance: float = 0.3, without_de: bool = False) -> Attribute:
    """Choose an adjective with the given probability; `without_de` excludes those with 的."""
    fitting = ATTRIBUTES[noun.english]
    if without_de:
        fitting = tuple(adjective for adjective in fitting if not adjective.before_noun.endswith("的"))
    if (noun.portion and not noun.pair) or not fitting or rng.random() >= chance:
        return _PLAIN
    adjective = choose(rng, fitting)
    return Attribute(adjective.english + " ", adjective.before_noun, (combination_of(adjective, noun),))


def article_phrase(attribute: Attribute, noun: Noun) -> Phrase:
    """Return a phrase with an indefinite article: "a new book", "a cup of tea"."""
    if noun.portion:
        english = f"a {noun.portion} of {attribute.english}{noun.english}"
    else:
        english = add_article(attribute.english + noun.english)
    return Phrase(english, f"一 {noun.measure} {attribute.chinese} {noun.chinese}", attribute.combinations)


def number_phrase(number: tuple[str, str], attribute: Attribute, noun: Noun) -> Phrase:
    """Return a phrase with a number: "two new books", "two cups of tea"."""
    english, chinese = number
    unit = f"{form_plural(noun.portion)} of " if noun.portion else ""
    return Phrase(
        f"{english} {unit}{attribute.english}{noun.plural}",
        f"{chinese} {noun.measure} {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=True,
    )


def counted_phrase(rng: Random, noun: Noun, many: bool = False) -> Phrase:
    """Return a phrase with a random quantity: "a new book", "two cups of tea", "some apples"."""
    most = 10 if many and noun in PLENTIFUL else 3
    attribute = random_attribute(rng, noun)
    chance = rng.random()
    if chance < 0.5 or not (noun in SEVERAL or noun.portion):
        return article_phrase(attribute, noun)
    if chance < 0.85 or noun.pair:
        return number_phrase(choose(rng, NUMBERS[: most - 1]), attribute, noun)
    return Phrase(
        f"some {attribute.english}{noun.plural}",
        f"一些 {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=noun.plural_only or not noun.portion,
    )


def demonstrative_phrase(rng: Random, noun: Noun, qualified: float = 0.3) -> Phrase:
    """Return a demonstrative phrase: "this book", "those apples", "that cup of tea", "these shoes"."""
    near = rng.random() < 0.5
    attribute = random_attribute(rng, noun, qualified)
    measured = f"{'这' if near else '那'} {noun.measure} {attribute.chinese} {noun.chinese}"
    these = "these" if near else "those"
    if noun.pair:
        return Phrase(f"{these} {attribute.english}{noun.english}", measured, attribute.combinations, plural=True)
    if noun.portion:
        return Phrase(f"{'this' if near else 'that'} {noun.portion} of {noun.english}", measured)
    if noun in SEVERAL and rng.random() < 0.35:
        some = f"{'这些' if near else '那些'} {attribute.chinese} {noun.chinese}"
        return Phrase(f"{these} {attribute.english}{noun.plural}", some, attribute.combinations, plural=True)
    return Phrase(f"{'this' if near else 'that'} {attribute.english}{noun.english}", measured, attribute.combinations)


def definite_object_phrase(rng: Random, noun: Noun) -> Phrase:
    """Return a definite object, which is demonstrative in Chinese: "the book" is 那本书."""
    if noun.portion and not noun.pair:
        return demonstrative_phrase(rng, noun)
    attribute = random_attribute(rng, noun)
    one = f"那 {noun.measure} {attribute.chinese} {noun.chinese}"
    if noun.pair or noun not in SEVERAL or noun.plural == noun.english or rng.random() < 0.7:
        return Phrase(f"the {attribute.english}{noun.english}", one, attribute.combinations, plural=noun.pair)
    several = f"那些 {attribute.chinese} {noun.chinese}"
    return Phrase(f"the {attribute.english}{noun.plural}", several, attribute.combinations, plural=True)


def definite_phrase(rng: Random, noun: Noun) -> Phrase:
    """Return a definite subject or object of 把, without a determiner in Chinese: "the book" is 书."""
    if noun.portion or noun not in SEVERAL or rng.random() < 0.7:
        return Phrase(f"the {noun.english}", noun.chinese, plural=noun.plural_only)
    return Phrase(f"the {noun.plural}", noun.chinese, plural=True)


def possessive_phrase(rng: Random, noun: Noun, owner: Person | None = None, qualified: float = 0.3) -> Phrase:
    """Return a possessive phrase: "my new bicycle", "Tom's keys"; the name of the owner is not repeated."""
    # For several women, "their" would be 她们的.
    shared = noun in SHARED and not (owner and owner.english.endswith("girls"))
    group = GROUP_POSSESSORS if shared else POSSESSORS
    english, chinese = choose(rng, choose(rng, (POSSESSORS, group, NAMED_POSSESSORS)))
    if owner is not None and f" {english} ".replace("'s", "") in f" {owner.english} ".replace("'s", ""):
        return possessive_phrase(rng, noun, owner, qualified)
    attribute = random_attribute(rng, noun, qualified, without_de=True)
    plural = noun.plural_only or (noun in SEVERAL and rng.random() < 0.3)
    return Phrase(
        f"{english} {attribute.english}{noun.plural if plural else noun.english}",
        f"{chinese} 的 {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=plural,
    )


def generic_phrase(noun: Noun) -> Phrase:
    """Return the generic phrase: "apples", "tea"."""
    return Phrase(noun.plural, noun.chinese, plural=noun.plural_only or not noun.portion)


def any_phrase(noun: Noun) -> Phrase:
    """Return the phrase used in negations and questions ("a car", "any milk"), without a quantity in Chinese."""
    if noun.portion or noun in PLENTIFUL:
        return Phrase(f"any {noun.plural}", noun.chinese, plural=noun.plural_only or not noun.portion)
    return Phrase(add_article(noun.english), noun.chinese)
