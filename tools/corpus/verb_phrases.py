"""Verb phrases in both languages at once: what people do, to what and for whom."""

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
    combine,
    count,
    define,
    doubt,
    meet_other,
    name_kind,
    name_object,
    own,
    pick,
    point_at,
    present,
)

# How a deed is spoken of: as done, as planned, as under way, or as denied or asked about.
Style = Literal["done", "planned", "ongoing", "asked"]
Form = Literal["base", "third", "past", "participle", "ing"]


class VerbPhrase(NamedTuple):
    """What somebody does: a verb, what follows it in English, and what stands around it in Chinese."""

    verb: Verb
    tail: str = ""
    before: str = ""
    after: str = ""
    combinations: tuple[str, ...] = ()

    def conjugate(self, form: Form, particle: str = "") -> Phrase:
        """Say it in an English form, and with a Chinese particle after the verb."""
        english = f"{getattr(self.verb.forms, form)} {self.tail}".rstrip()
        return Phrase(english, f"{self.before} {self.verb.chinese} {particle} {self.after}", self.combinations)


def act(verb: Verb, noun: Noun | None = None, thing: Phrase = NOTHING) -> VerbPhrase:
    """Let the verb take its object, if any."""
    met = (combine(verb, noun),) if noun else ()
    return VerbPhrase(verb, thing.english, "", thing.chinese, thing.combinations + met)


def _speak_of(rng: Random, verb: Verb, noun: Noun, style: Style, subject: Person) -> Phrase:
    chance = rng.random()
    if verb.particular:
        return own(rng, noun, subject) if verb.owned and chance < 0.6 else point_at(rng, noun)
    if style == "asked" and (verb.creates or noun in FOOD or (chance < 0.5 and not verb.owned)):
        return doubt(noun)
    if verb.creates or (verb.english == "buy" and noun in FOOD):
        return count(rng, noun, verb.many)
    if style == "ongoing" and chance < 0.3 and noun in FOOD:
        return name_kind(noun)
    if verb.owned and chance < 0.6:
        return own(rng, noun, subject)
    if style == "asked" or chance < 0.6:
        return point_at(rng, noun)
    return define(rng, noun) if chance < 0.7 else count(rng, noun, verb.many)


def _choose_verb(rng: Random, verbs: tuple[Verb, ...], style: Style) -> Verb:
    while True:
        verb = pick(rng, verbs)
        if style == "ongoing" and verb.english in ("borrow", "bring"):
            continue
        if not (verb.momentary and style in ("planned", "ongoing")):
            return verb


def handle(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Do something to a thing: "buy two books"."""
    verb = _choose_verb(rng, TRANSITIVE, style)
    noun = pick(rng, verb.nouns)
    return act(verb, noun, _speak_of(rng, verb, noun, style, subject))


def dispose(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Do something with a result to a definite thing: "close the door" is 把门关上."""
    verb = _choose_verb(rng, DISPOSAL, style)
    noun = pick(rng, verb.nouns)
    chance = rng.random()
    if verb.owned or chance < 0.2:
        thing = own(rng, noun, subject)
    else:
        thing = point_at(rng, noun) if chance < 0.4 else present(rng, noun)
    return VerbPhrase(verb, thing.english, f"把 {thing.chinese}", "", (*thing.combinations, combine(verb, noun)))


def treat(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Do something to a person: "help Mary"."""
    if rng.random() < 0.25:
        person = name_object(meet_other(rng, subject))
        return VerbPhrase(CALL, person.english, f"给 {person.chinese}", "电话")
    if style == "ongoing":
        verb = pick(rng, (*ATTENDING, WAIT))
    else:
        verb = pick(rng, ATTENDING if style == "planned" else MEETING)
    return act(verb, thing=name_object(meet_other(rng, subject, stranger=verb.english == "meet")))


def serve(rng: Random, subject: Person) -> VerbPhrase:
    """Do something for a person: "give Mary a book", "tell me a story"."""
    person = name_object(meet_other(rng, subject))
    verb = pick(rng, (GIVE, SHOW, *GIVING))
    noun = pick(rng, verb.nouns)
    thing = count(rng, noun)
    met = (*thing.combinations, combine(verb, noun))
    tail = f"{person.english} {thing.english}"
    if verb is GIVE:
        return VerbPhrase(verb, tail, "", f"{person.chinese} {thing.chinese}", met)
    return VerbPhrase(verb, tail, f"给 {person.chinese}", thing.chinese, met)


def travel(rng: Random) -> VerbPhrase:
    """Go somewhere, or come back: "go to Beijing by train"."""
    place = pick(rng, pick(rng, (BUILDINGS, CITIES, COUNTRIES)))
    chance = rng.random()
    if chance < 0.15:
        origin = pick(rng, (*CITIES, *COUNTRIES))
        return VerbPhrase(COME_BACK, origin.name, f"从 {origin.chinese}")
    english, chinese = pick_vehicle(rng, place) if chance < 0.5 else ("", "")
    go = GO if place in BUILDINGS else GO_ABROAD
    return VerbPhrase(go, f"{place.to} {english}", chinese, place.destination)


def travel_out(rng: Random) -> VerbPhrase:
    """Go somewhere, as opposed to coming back."""
    while (deed := travel(rng)).verb is COME_BACK:
        pass
    return deed


def pick_vehicle(rng: Random, place: Place) -> tuple[str, str]:
    """Choose a way to get there; nobody takes the train to America or flies to the bank."""
    if place in BUILDINGS:
        return pick(rng, BY_VEHICLE[2:])
    return BY_VEHICLE[1] if place in COUNTRIES else pick(rng, BY_VEHICLE[:2])


def pass_time(rng: Random) -> VerbPhrase:
    """Do something that needs no further object: "swim", "study math"."""
    return act(pick(rng, pick(rng, PASTIMES)))


def do_usual_thing(rng: Random) -> VerbPhrase:
    """Do something people do again and again: "drink coffee", "play tennis"."""
    if rng.random() < 0.45:
        return pass_time(rng)
    verb = pick(rng, HABITUAL)
    noun = pick(rng, verb.nouns)
    return act(verb, noun, name_kind(noun))


def do_at_home(rng: Random, doubted: bool = False) -> VerbPhrase:
    """Do something that one may be found doing at home: "cook dinner", "eat noodles"."""
    chance = rng.random()
    if chance < 0.3:
        return act(pick(rng, NEEDS))
    if chance < 0.6:
        return act(pick(rng, AT_HOME))
    verb = pick(rng, HABITUAL[:4])
    noun = pick(rng, verb.nouns)
    return act(verb, noun, doubt(noun) if doubted and noun not in PLENTIFUL and not noun.portion else name_kind(noun))


def do_something(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Do any one thing, once."""
    chance = rng.random()
    if chance < 0.48:
        return handle(rng, subject, style)
    if style == "ongoing" and chance < 0.9:
        return pass_time(rng) if chance < 0.7 else act(pick(rng, NEEDS))
    if chance < 0.62:
        return pass_time(rng)
    if chance < 0.76 and style != "ongoing":
        return dispose(rng, subject, style)
    if chance < 0.84 or style == "ongoing":
        return treat(rng, subject, style)
    return serve(rng, subject) if chance < 0.92 and style != "asked" else travel(rng)
