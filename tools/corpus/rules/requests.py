"""Requests and proposals."""

from random import Random

from ..lexicon.nouns import list_nouns
from ..lexicon.people import NAMES, PRONOUN_BY_NAME
from ..lexicon.places import IN, ON
from ..lexicon.times import SOON
from ..lexicon.verbs import GIVE, HABITUAL, LEISURE, NEEDS, WAIT, Verb
from ..phrases import (
    Phrase,
    choose,
    combination_of,
    counted_phrase,
    definite_phrase,
    demonstrative_phrase,
    fill,
    generic_phrase,
    person_object,
    sometimes,
    word,
)
from ..verb_phrases import dispose_of_thing, travel_away, verb_phrase

_YOU = PRONOUN_BY_NAME["you"]
_RECIPIENTS = (
    PRONOUN_BY_NAME["I"],
    PRONOUN_BY_NAME["I"],
    *(PRONOUN_BY_NAME[p] for p in ("he", "she", "we", "they")),
    *NAMES,
)


def request_disposal(rng: Random) -> Phrase:
    """Please close the window. 请把窗户关上。"""
    return fill("please {v}", "请 {v}", v=dispose_of_thing(rng, _YOU, "planned").conjugate("base"))


def request_gift(rng: Random) -> Phrase:
    """Please give me a cup of tea. 请给我一杯茶。"""
    person = person_object(choose(rng, _RECIPIENTS))
    noun = choose(rng, GIVE.nouns)
    thing = counted_phrase(rng, noun)
    o = Phrase(thing.english, thing.chinese, (*thing.combinations, combination_of(GIVE, noun)))
    return fill("please give {p} {o}", "请 给 {p} {o}", p=person, o=o)


_PUT = Verb("put", "放")
_PLACED = (
    (list_nouns("reading letter picture writing valuable phone camera accessory toy"), (*ON[:3], *IN)),
    (list_nouns("dishes knife fruit vegetable"), ON[:1]),
)


def request_placing(rng: Random) -> Phrase:
    """Please put the key on the table. 请把钥匙放在桌子上。"""
    nouns, spots = choose(rng, _PLACED)
    noun, spot = choose(rng, nouns), choose(rng, spots)
    thing = definite_phrase(rng, noun) if rng.random() < 0.6 else demonstrative_phrase(rng, noun)
    o = Phrase(thing.english, thing.chinese, (*thing.combinations, combination_of(_PUT, noun)))
    return fill("please put {o} {at}", "请 把 {o} 放 在 {at}", o=o, at=word(spot.english, spot.chinese))


def request_help(rng: Random) -> Phrase:
    """Please call me tomorrow. 请明天给我打电话。"""
    person = person_object(choose(rng, _RECIPIENTS))
    if rng.random() < 0.4:
        place = choose(rng, WAIT.places)
        at = word(place.at, place.chinese)
        return fill("please wait for {p} {at}", "请 在 {at} 等 {p}", p=person, at=at)
    when = sometimes(rng, 0.7, SOON)
    if rng.random() < 0.5:
        return fill("please call {p} {t}", "请 {t} 给 {p} 打 电话", p=person, t=when)
    return fill("please help {p} {t}", "请 {t} 帮助 {p}", p=person, t=when)


_FORBIDDEN = (*(verb for verb in LEISURE if verb.english != "run"), NEEDS[0])


def forbid(rng: Random) -> Phrase:
    """Please do not sing in the library. 请不要在图书馆唱歌。"""
    action = verb_phrase(choose(rng, _FORBIDDEN))
    if rng.random() < 0.3:
        verb = choose(rng, HABITUAL[:2])
        noun = choose(rng, verb.nouns)
        action = verb_phrase(verb, noun, generic_phrase(noun))
    v = action.conjugate("base")
    please = word("please do", "请") if rng.random() < 0.5 else word("do")
    if rng.random() < 0.4:
        return fill("{please} not {v} here", "{please} 不要 在 这里 {v}", please=please, v=v)
    if action.verb.where and rng.random() < 0.6:
        place = choose(rng, action.verb.places)
        at = word(place.at, place.chinese)
        return fill("{please} not {v} {at}", "{please} 不要 在 {at} {v}", please=please, v=v, at=at)
    return fill("{please} not {v}", "{please} 不要 {v}", please=please, v=v)


def propose(rng: Random) -> Phrase:
    """Let's go to the zoo tomorrow. 我们明天去动物园吧。"""
    action = verb_phrase(choose(rng, LEISURE)) if rng.random() < 0.5 else travel_away(rng)
    when = sometimes(rng, 0.6, SOON)
    return fill("let's {v} {t}", "我们 {t} {v} 吧", v=action.conjugate("base"), t=when)
