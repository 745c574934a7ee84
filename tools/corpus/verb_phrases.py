"""Bilingual verb phrases: actions, their objects and beneficiaries."""

from random import Random
from typing import Literal, NamedTuple

from .lexicon.nouns import FOOD, PLENTIFUL, Noun
from .lexicon.people import Person
from .lexicon.places import BUILDINGS, CITIES, COUNTRIES, Place
from .lexicon.verbs import (
    AT_HOME,
    ATTENDING,
    BY_VEHICLE,
    CALL,
    COME_BACK,
    DISPOSAL,
    GIVE,
    GIVING,
    GO,
    GO_ABROAD,
    HABITUAL,
    MEETING,
    NEEDS,
    PASTIMES,
    SHOW,
    TRANSITIVE,
    WAIT,
    Verb,
)
from .phrases import (
    NOTHING,
    Phrase,
    any_phrase,
    choose,
    combination_of,
    counted_phrase,
    definite_object_phrase,
    definite_phrase,
    demonstrative_phrase,
    generic_phrase,
    person_object,
    possessive_phrase,
    random_other_person,
)

# Whether an action is done, planned or ongoing; "asked" is for negations and questions.
Style = Literal["done", "planned", "ongoing", "asked"]
Form = Literal["base", "third", "past", "participle", "ing"]


class VerbPhrase(NamedTuple):
    """A verb, the English words after it, and the Chinese words before and after it."""

    verb: Verb
    tail: str = ""
    before: str = ""
    after: str = ""
    combinations: tuple[str, ...] = ()

    def conjugate(self, form: Form, particle: str = "") -> Phrase:
        """Return the phrase in an English verb form and with a Chinese particle after the verb."""
        english = f"{getattr(self.verb.forms, form)} {self.tail}".rstrip()
        return Phrase(english, f"{self.before} {self.verb.chinese} {particle} {self.after}", self.combinations)


def verb_phrase(verb: Verb, noun: Noun | None = None, thing: Phrase = NOTHING) -> VerbPhrase:
    """Combine a verb with its object, if any."""
    met = (combination_of(verb, noun),) if noun else ()
    return VerbPhrase(verb, thing.english, "", thing.chinese, thing.combinations + met)


def _object_phrase(rng: Random, verb: Verb, noun: Noun, style: Style, subject: Person) -> Phrase:
    chance = rng.random()
    if verb.particular:
        return possessive_phrase(rng, noun, subject) if verb.owned and chance < 0.6 else demonstrative_phrase(rng, noun)
    if style == "asked" and (verb.creates or noun in FOOD or (chance < 0.5 and not verb.owned)):
        return any_phrase(noun)
    if verb.creates or (verb.english == "buy" and noun in FOOD):
        return counted_phrase(rng, noun, verb.many)
    if style == "ongoing" and chance < 0.3 and noun in FOOD:
        return generic_phrase(noun)
    if verb.owned and chance < 0.6:
        return possessive_phrase(rng, noun, subject)
    if style == "asked" or chance < 0.6:
        return demonstrative_phrase(rng, noun)
    return definite_object_phrase(rng, noun) if chance < 0.7 else counted_phrase(rng, noun, verb.many)


def _choose_verb(rng: Random, verbs: tuple[Verb, ...], style: Style) -> Verb:
    while True:
        verb = choose(rng, verbs)
        if style == "ongoing" and verb.english in ("borrow", "bring"):
            continue
        if not (verb.momentary and style in ("planned", "ongoing")):
            return verb


def act_on_thing(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Return an action on a thing: "buy two books"."""
    verb = _choose_verb(rng, TRANSITIVE, style)
    noun = choose(rng, verb.nouns)
    return verb_phrase(verb, noun, _object_phrase(rng, verb, noun, style, subject))


def dispose_of_thing(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Return an action with a result on a definite thing: "close the door" is 把门关上."""
    verb = _choose_verb(rng, DISPOSAL, style)
    noun = choose(rng, verb.nouns)
    chance = rng.random()
    if verb.owned or chance < 0.2:
        thing = possessive_phrase(rng, noun, subject)
    else:
        thing = demonstrative_phrase(rng, noun) if chance < 0.4 else definite_phrase(rng, noun)
    return VerbPhrase(verb, thing.english, f"把 {thing.chinese}", "", (*thing.combinations, combination_of(verb, noun)))


def act_on_person(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Return an action on a person: "help Mary"."""
    if rng.random() < 0.25:
        person = person_object(random_other_person(rng, subject))
        return VerbPhrase(CALL, person.english, f"给 {person.chinese}", "电话")
    if style == "ongoing":
        verb = choose(rng, (*ATTENDING, WAIT))
    else:
        verb = choose(rng, ATTENDING if style == "planned" else MEETING)
    return verb_phrase(verb, thing=person_object(random_other_person(rng, subject, stranger=verb.english == "meet")))


def act_for_person(rng: Random, subject: Person) -> VerbPhrase:
    """Return an action for a person: "give Mary a book", "tell me a story"."""
    person = person_object(random_other_person(rng, subject))
    verb = choose(rng, (GIVE, SHOW, *GIVING))
    noun = choose(rng, verb.nouns)
    thing = counted_phrase(rng, noun)
    met = (*thing.combinations, combination_of(verb, noun))
    tail = f"{person.english} {thing.english}"
    if verb is GIVE:
        return VerbPhrase(verb, tail, "", f"{person.chinese} {thing.chinese}", met)
    return VerbPhrase(verb, tail, f"给 {person.chinese}", thing.chinese, met)


def travel(rng: Random) -> VerbPhrase:
    """Return a journey, there or back: "go to Beijing by train"."""
    place = choose(rng, choose(rng, (BUILDINGS, CITIES, COUNTRIES)))
    chance = rng.random()
    if chance < 0.15:
        origin = choose(rng, (*CITIES, *COUNTRIES))
        return VerbPhrase(COME_BACK, origin.name, f"从 {origin.chinese}")
    english, chinese = choose_vehicle(rng, place) if chance < 0.5 else ("", "")
    go = GO if place in BUILDINGS else GO_ABROAD
    return VerbPhrase(go, f"{place.to} {english}", chinese, place.destination)


def travel_away(rng: Random) -> VerbPhrase:
    """Return a journey that is not a return."""
    while (action := travel(rng)).verb is COME_BACK:
        pass
    return action


def choose_vehicle(rng: Random, place: Place) -> tuple[str, str]:
    """Choose a vehicle that is plausible for the distance."""
    if place in BUILDINGS:
        return choose(rng, BY_VEHICLE[2:])
    return BY_VEHICLE[1] if place in COUNTRIES else choose(rng, BY_VEHICLE[:2])


def random_pastime(rng: Random) -> VerbPhrase:
    """Return an action without an object: "swim", "study math"."""
    return verb_phrase(choose(rng, choose(rng, PASTIMES)))


def habitual_action(rng: Random) -> VerbPhrase:
    """Return a habitual action: "drink coffee", "play tennis"."""
    if rng.random() < 0.45:
        return random_pastime(rng)
    verb = choose(rng, HABITUAL)
    noun = choose(rng, verb.nouns)
    return verb_phrase(verb, noun, generic_phrase(noun))


def action_at_home(rng: Random, doubted: bool = False) -> VerbPhrase:
    """Return an action at home: "cook dinner", "eat noodles"."""
    chance = rng.random()
    if chance < 0.3:
        return verb_phrase(choose(rng, NEEDS))
    if chance < 0.6:
        return verb_phrase(choose(rng, AT_HOME))
    verb = choose(rng, HABITUAL[:4])
    noun = choose(rng, verb.nouns)
    return verb_phrase(
        verb, noun, any_phrase(noun) if doubted and noun not in PLENTIFUL and not noun.portion else generic_phrase(noun)
    )


def single_action(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Return any action that is done once."""
    chance = rng.random()
    if chance < 0.48:
        return act_on_thing(rng, subject, style)
    if style == "ongoing" and chance < 0.9:
        return random_pastime(rng) if chance < 0.7 else verb_phrase(choose(rng, NEEDS))
    if chance < 0.62:
        return random_pastime(rng)
    if chance < 0.76 and style != "ongoing":
        return dispose_of_thing(rng, subject, style)
    if chance < 0.84 or style == "ongoing":
        return act_on_person(rng, subject, style)
    return act_for_person(rng, subject) if chance < 0.92 and style != "asked" else travel(rng)
