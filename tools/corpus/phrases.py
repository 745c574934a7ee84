"""Phrases in both languages at once: how they are put together, and how people and things are spoken of."""

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

# Before a measure word two is 两, never 二.
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
    """Anything with an English and a Chinese side."""

    @property
    def english(self) -> str: ...
    @property
    def chinese(self) -> str: ...
    @property
    def combinations(self) -> tuple[str, ...]: ...


class Phrase(NamedTuple):
    """A stretch of text in both languages, its Chinese words set apart by spaces.

    `combinations` names the pairs of words that met in it, such as "eat apple" or "new book".
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
    """Pair a word with its counterpart, if it has one."""
    return Phrase(english, chinese)


def sometimes(rng: Random, chance: float, items: Sequence[Bilingual]) -> Bilingual:
    """Pick an item now and then, and otherwise nothing."""
    return pick(rng, items) if rng.random() < chance else NOTHING


def pick(rng: Random, items: Sequence[Item]) -> Item:
    """Pick one of the items; unlike `Random.choice`, alike in every version of Python."""
    return items[int(rng.random() * len(items))]


def fill(english: str, chinese: str, **slots: Bilingual) -> Phrase:
    """Fill the slots of an English and a Chinese template with the same phrases."""
    combinations = tuple(combination for slot in slots.values() for combination in slot.combinations)
    source = english.format(**{name: slot.english for name, slot in slots.items()})
    target = chinese.format(**{name: slot.chinese for name, slot in slots.items()})
    return Phrase(" ".join(source.split()), target, combinations)


# People


def meet_person(rng: Random) -> Person:
    """Choose somebody to speak of."""
    chance = rng.random()
    if chance < 0.36:
        return pick(rng, PRONOUNS)
    if chance < 0.60:
        return pick(rng, NAMES)
    if chance < 0.78:
        return pick(rng, FAMILY)
    if chance < 0.83:
        return pick(rng, OTHERS_FAMILY)
    if chance < 0.88:
        return pick(rng, ACQUAINTED)
    if chance < 0.93:
        return pick(rng, AT_HAND)
    return pick(rng, STRANGERS) if chance < 0.96 else pick(rng, COUPLES)


def meet_he_or_she(rng: Random) -> Person:
    """Choose somebody whom a pronoun can take up again."""
    while not (person := meet_person(rng)).pronoun:
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


def clash(one: Person, other: Person) -> bool:
    """Tell whether two people may be taken for one, or the sentence would need "myself" or repeat a name."""
    if {one.pronoun, other.pronoun} <= {"I", "we"}:
        return True
    if other.english in ("he", "she", "they") and one.pronoun not in ("I", "you"):
        # "Tom can swim, but he cannot" reads as if Tom were meant.
        return one.pronoun in ("", "we", "they", other.pronoun)
    words = set(one.english.replace("'s", "").split()) - {"and", "the", "this", "that", "younger", "older"}
    return not words.isdisjoint(other.english.replace("'s", "").split())


def are_related(one: Person, other: Person) -> bool:
    """Tell whether one of the two belongs to the other, as I and my mother do."""
    return other.english.split()[0] in _POSSESSIVES.get(one.pronoun, ()) or (
        one.english.split()[0] in _POSSESSIVES.get(other.pronoun, ())
    )


def meet_other(rng: Random, subject: Person, stranger: bool = False) -> Person:
    """Choose somebody else than the subject, and no relative where the verb makes that absurd."""
    while clash(subject, other := meet_person(rng)) or (stranger and are_related(subject, other)):
        pass
    return other


def name_object(person: Person) -> Phrase:
    """Put a person where an object stands."""
    return Phrase(person.objective, person.chinese)


# Things


class Attribute(NamedTuple):
    """An adjective before its noun, or nothing."""

    english: str
    chinese: str
    combinations: tuple[str, ...]


_PLAIN = Attribute("", "", ())


def combine(first: Verb | Adjective, noun: Noun) -> str:
    """Name the meeting of a verb or an adjective with a noun."""
    return f"{first.english} {noun.english}"


def qualify(rng: Random, noun: Noun, chance: float = 0.3, without_de: bool = False) -> Attribute:
    """Choose an adjective to go before the noun, now and then, and `without_de` where a 的 precedes already."""
    fitting = ATTRIBUTES[noun.english]
    if without_de:
        fitting = tuple(adjective for adjective in fitting if not adjective.before_noun.endswith("的"))
    if (noun.portion and not noun.pair) or not fitting or rng.random() >= chance:
        return _PLAIN
    adjective = pick(rng, fitting)
    return Attribute(adjective.english + " ", adjective.before_noun, (combine(adjective, noun),))


def use_article(attribute: Attribute, noun: Noun) -> Phrase:
    """Speak of one of a kind: "a new book", "a cup of tea"."""
    if noun.portion:
        english = f"a {noun.portion} of {attribute.english}{noun.english}"
    else:
        english = add_article(attribute.english + noun.english)
    return Phrase(english, f"一 {noun.measure} {attribute.chinese} {noun.chinese}", attribute.combinations)


def use_number(number: tuple[str, str], attribute: Attribute, noun: Noun) -> Phrase:
    """Speak of several of a kind: "two new books", "two cups of tea"."""
    english, chinese = number
    unit = f"{form_plural(noun.portion)} of " if noun.portion else ""
    return Phrase(
        f"{english} {unit}{attribute.english}{noun.plural}",
        f"{chinese} {noun.measure} {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=True,
    )


def count(rng: Random, noun: Noun, many: bool = False) -> Phrase:
    """Count the noun: "a new book", "two cups of tea", "some apples"; up to ten where there may be so many."""
    most = 10 if many and noun in PLENTIFUL else 3
    attribute = qualify(rng, noun)
    chance = rng.random()
    if chance < 0.5 or not (noun in SEVERAL or noun.portion):
        return use_article(attribute, noun)
    if chance < 0.85 or noun.pair:
        return use_number(pick(rng, NUMBERS[: most - 1]), attribute, noun)
    return Phrase(
        f"some {attribute.english}{noun.plural}",
        f"一些 {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=noun.plural_only or not noun.portion,
    )


def point_at(rng: Random, noun: Noun, qualified: float = 0.3) -> Phrase:
    """Point at the noun: "this book", "those apples", "that cup of tea", "these shoes"."""
    near = rng.random() < 0.5
    attribute = qualify(rng, noun, qualified)
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


def define(rng: Random, noun: Noun) -> Phrase:
    """Speak of a definite thing as an object, where Chinese points at it: "the book" is 那本书."""
    if noun.portion and not noun.pair:
        return point_at(rng, noun)
    attribute = qualify(rng, noun)
    one = f"那 {noun.measure} {attribute.chinese} {noun.chinese}"
    if noun.pair or noun not in SEVERAL or noun.plural == noun.english or rng.random() < 0.7:
        return Phrase(f"the {attribute.english}{noun.english}", one, attribute.combinations, plural=noun.pair)
    several = f"那些 {attribute.chinese} {noun.chinese}"
    return Phrase(f"the {attribute.english}{noun.plural}", several, attribute.combinations, plural=True)


def present(rng: Random, noun: Noun) -> Phrase:
    """Speak of a definite thing as a subject or after 把, where Chinese needs no article: "the book" is 书."""
    if noun.portion or noun not in SEVERAL or rng.random() < 0.7:
        return Phrase(f"the {noun.english}", noun.chinese, plural=noun.plural_only)
    return Phrase(f"the {noun.plural}", noun.chinese, plural=True)


def own(rng: Random, noun: Noun, owner: Person | None = None, qualified: float = 0.3) -> Phrase:
    """Say whose the thing is: "my new bicycle", "Tom's keys"; never in the owner's own name."""
    # The girls' "their" would be 她们的.
    shared = noun in SHARED and not (owner and owner.english.endswith("girls"))
    group = GROUP_POSSESSORS if shared else POSSESSORS
    english, chinese = pick(rng, pick(rng, (POSSESSORS, group, NAMED_POSSESSORS)))
    if owner is not None and f" {english} ".replace("'s", "") in f" {owner.english} ".replace("'s", ""):
        return own(rng, noun, owner, qualified)
    attribute = qualify(rng, noun, qualified, without_de=True)
    plural = noun.plural_only or (noun in SEVERAL and rng.random() < 0.3)
    return Phrase(
        f"{english} {attribute.english}{noun.plural if plural else noun.english}",
        f"{chinese} 的 {attribute.chinese} {noun.chinese}",
        attribute.combinations,
        plural=plural,
    )


def name_kind(noun: Noun) -> Phrase:
    """Speak of the kind as a whole: "apples", "tea"."""
    return Phrase(noun.plural, noun.chinese, plural=noun.plural_only or not noun.portion)


def doubt(noun: Noun) -> Phrase:
    """Deny or ask about there being one ("a car", "any milk"), where Chinese counts nothing."""
    if noun.portion or noun in PLENTIFUL:
        return Phrase(f"any {noun.plural}", noun.chinese, plural=noun.plural_only or not noun.portion)
    return Phrase(add_article(noun.english), noun.chinese)
