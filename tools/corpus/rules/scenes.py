"""Statements about places, existence, possession, preferences and identity."""

from random import Random

from ..english import add_article
from ..lexicon.nouns import SEVERAL, Noun, list_nouns
from ..lexicon.people import MINE, OCCUPATIONS, YOUNG_PEOPLE, Person, Role
from ..lexicon.places import (
    BEHIND,
    BUILDINGS,
    CITIES,
    COUNTRIES,
    HOME,
    IN,
    IN_FRIDGE,
    IN_FRONT_OF,
    NEXT_TO,
    ON,
    ROOMS,
    UNDER,
    Spot,
    list_places,
)
from ..lexicon.times import NOW, RECENT, SEASONS
from ..lexicon.verbs import FEELING, HAVE, LIKE, NEED, SORTS, WANT, WEARING, Verb
from ..phrases import (
    NOTHING,
    NUMBERS,
    Bilingual,
    Phrase,
    any_phrase,
    article_phrase,
    choose,
    combination_of,
    counted_phrase,
    definite_phrase,
    demonstrative_phrase,
    fill,
    generic_phrase,
    person_object,
    possessive_phrase,
    random_attribute,
    random_he_or_she,
    random_other_person,
    random_person,
    sometimes,
    word,
)
from ..verb_phrases import Form, verb_phrase
from .descriptions import NOBODYS


def _in_places(names: str) -> tuple[Spot, ...]:
    return tuple(Spot(place.at, f"{place.destination} 里") for place in list_places(names))


_PAPERS = "reading letter picture writing valuable phone camera"

# Things and the spots where they can be.
ARRANGEMENTS: tuple[tuple[tuple[Noun, ...], tuple[Spot, ...]], ...] = (
    (list_nouns(f"{_PAPERS} accessory toy"), (*ON, *IN)),
    (list_nouns(f"{_PAPERS} umbrella bag box"), (*ON, *UNDER, *NEXT_TO[:4])),
    (list_nouns("fruit vegetable dishes knife dish drink"), ON[:1]),
    (list_nouns("fruit vegetable dish drink fish"), IN_FRIDGE),
    (list_nouns("pet"), (*UNDER, *NEXT_TO, *BEHIND, *IN_FRONT_OF, *_in_places("garden"))),
    (list_nouns("bicycle motor"), (*BEHIND[1:], *IN_FRONT_OF[2:])),
    (list_nouns("tree flower"), (*BEHIND[2:], *IN_FRONT_OF[3:], *_in_places("park garden school"))),
    (list_nouns("table chair sofa switched instrument"), _in_places("living-room")),
    (list_nouns("bed lamp chair television"), _in_places("bedroom")),
    (list_nouns("table chair computer piano map"), _in_places("classroom office")),
    (list_nouns("zoo"), _in_places("zoo")),
)


def arrange(rng: Random) -> tuple[Noun, Phrase]:
    """Choose a thing and a plausible spot for it."""
    nouns, spots = choose(rng, ARRANGEMENTS)
    spot = choose(rng, spots)
    return choose(rng, nouns), word(spot.english, spot.chinese)


def place_thing(rng: Random) -> Phrase:
    """My keys are in the drawer. 我的钥匙在抽屉里。"""
    noun, spot = arrange(rng)
    own_it = rng.random() < 0.5 and noun not in NOBODYS
    thing = possessive_phrase(rng, noun, qualified=0.15) if own_it else definite_phrase(rng, noun)
    no = word("not", "不") if rng.random() < 0.2 else NOTHING
    return fill("{s} {be} {no} {at}", "{s} {no} 在 {at}", s=thing, be=word(thing.be), no=no, at=spot)


def count_people(rng: Random, role: Role) -> Phrase:
    """Return a number of people: "a doctor", "six students"."""
    if rng.random() < 0.3:
        return Phrase(add_article(role.english), f"一 {role.measure} {role.chinese}")
    number, chinese = choose(rng, NUMBERS)
    return Phrase(f"{number} {role.plural}", f"{chinese} {role.measure} {role.chinese}", plural=True)


_STUDENTS, _TEACHERS = OCCUPATIONS[-1], OCCUPATIONS[0]
# People and the places where they can be.
CROWDS: tuple[tuple[tuple[Role, ...], tuple[Spot, ...]], ...] = (
    ((_STUDENTS, _TEACHERS, *YOUNG_PEOPLE), _in_places("classroom school library museum")),
    (YOUNG_PEOPLE, _in_places("park zoo garden")),
    (OCCUPATIONS[1:3], _in_places("hospital")),
    (OCCUPATIONS[3:8], _in_places("office")),
    (OCCUPATIONS[3:9], _in_places("restaurant")),
)


def tell_presence(rng: Random) -> Phrase:
    """There are three cats under the bed. 床下面有三只猫。"""
    if rng.random() < 0.25:
        roles, spots = choose(rng, CROWDS)
        spot = choose(rng, spots)
        n, at = count_people(rng, choose(rng, roles)), word(spot.english, spot.chinese)
    else:
        noun, at = arrange(rng)
        n = counted_phrase(rng, noun, many=True)
    return fill("there {be} {n} {at}", "{at} 有 {n}", be=word(n.be), n=n, at=at)


def deny_presence(rng: Random) -> Phrase:
    """There is no milk in the fridge. 冰箱里没有牛奶。"""
    noun, at = arrange(rng)
    n = generic_phrase(noun) if noun in SEVERAL or noun.portion else word(noun.english, noun.chinese)
    return fill("there {be} no {n} {at}", "{at} 没有 {n}", be=word(n.be), n=n, at=at)


def place_person(rng: Random) -> Phrase:
    """Anna was at the airport yesterday morning. 安娜昨天早上在机场。"""
    s = random_person(rng)
    place = choose(rng, (HOME, *BUILDINGS, *ROOMS, *CITIES))
    past = rng.random() < 0.4
    be = word(s.was if past else s.be)
    when: Bilingual = choose(rng, RECENT) if past else sometimes(rng, 0.3, (NOW,))
    no = word("not", "不") if rng.random() < 0.2 else NOTHING
    at = word(place.at, place.chinese)
    return fill("{s} {be} {no} {at} {t}", "{s} {t} {no} 在 {at}", s=s, be=be, no=no, at=at, t=when)


def tell_home(rng: Random) -> Phrase:
    """Jack lives in London. 杰克住在伦敦。"""
    s = random_person(rng)
    if rng.random() < 0.6:
        place = choose(rng, (*CITIES, *COUNTRIES))
        live = word("lives" if s.be == "is" else "live", "住")
        if rng.random() < 0.25:
            live = word(f"{s.do} not live", "不 住")
        return fill("{s} {live} {at}", "{s} {live} 在 {at}", s=s, live=live, at=word(place.at, place.chinese))
    place = choose(rng, COUNTRIES)
    come = word("comes from" if s.be == "is" else "come from", "来自")
    return fill("{s} {come} {p}", "{s} {come} {p}", s=s, come=come, p=word(place.name, place.chinese))


def tell_distance(rng: Random) -> Phrase:
    """The library is not far from the station. 图书馆离车站不远。"""
    here, there = name_place(rng), name_place(rng)
    if here == there:
        return tell_distance(rng)
    how = choose(rng, (word("far from", "很 远"), word("close to", "很 近"), word("not far from", "不 远")))
    return fill("{a} is {how} {b}", "{a} 离 {b} {how}", a=here, b=there, how=how)


def name_place(rng: Random) -> Phrase:
    """Return a place in town: "the bank"."""
    place = choose(rng, tuple(place for place in BUILDINGS if place.name != "office"))
    return word(f"the {place.name}", place.destination)


def tell_possession(rng: Random) -> Phrase:
    """She has two white cats. 她有两只白色的猫。"""
    s = random_person(rng)
    verb = choose(rng, (HAVE, HAVE, NEED, WANT))
    noun = choose(rng, verb.nouns)
    action = verb_phrase(verb, noun, counted_phrase(rng, noun, many=verb is HAVE))
    return fill("{s} {v}", "{s} {v}", s=s, v=action.conjugate("third" if s.be == "is" else "base"))


def deny_possession(rng: Random) -> Phrase:
    """I do not have any pens. 我没有钢笔。"""
    s = random_person(rng)
    verb = choose(rng, (HAVE, NEED, WANT))
    noun = choose(rng, verb.nouns)
    v = verb_phrase(verb, noun, any_phrase(noun)).conjugate("base")
    no = word(f"{s.do} not", "没" if verb is HAVE else "不")
    return fill("{s} {no} {v}", "{s} {no} {v}", s=s, no=no, v=v)


def choose_similar(rng: Random, noun: Noun) -> Noun:
    """Choose a thing of the same sort, if there is one."""
    return choose(rng, next((sort for sort in SORTS if noun in sort), (noun,)))


def tell_taste(rng: Random) -> Phrase:
    """I love apples. 我喜欢苹果。"""
    s = random_person(rng)
    verb = choose(rng, LIKE)
    noun = choose(rng, verb.nouns)
    if rng.random() < 0.2 and verb.english != "hate":
        v = verb_phrase(verb, noun, generic_phrase(noun)).conjugate("base")
        return fill("{s} {do} not {v}", "{s} 不 {v}", s=s, do=word(s.do), v=v)
    form: Form = "third" if s.be == "is" else "base"
    v = verb_phrase(verb, noun, generic_phrase(noun)).conjugate(form)
    chance = rng.random()
    if chance < 0.2 and (other := choose_similar(rng, noun)) != noun and other in verb.nouns:
        also = Phrase(other.plural, other.chinese, (combination_of(verb, other),))
        return fill("{s} {v} and {o}", "{s} {v} 和 {o}", s=s, v=v, o=also)
    if chance > 0.8 and verb.english == "like":
        return fill("{s} {v} very much", "{s} 非常 {v}", s=s, v=v)
    return fill("{s} {v}", "{s} {v}", s=s, v=v)


def tell_season_taste(rng: Random) -> Phrase:
    """Mary likes winter. 玛丽喜欢冬天。"""
    s = random_person(rng)
    season, chinese = choose(rng, SEASONS)
    verb = choose(rng, LIKE)
    v = verb_phrase(verb).conjugate("third" if s.be == "is" else "base")
    return fill("{s} {v} {o}", "{s} {v} {o}", s=s, v=v, o=word(season, chinese))


def random_dear_person(rng: Random, subject: Person, verb: Verb) -> Person:
    """Choose the object of a feeling, who is not described by an occupation alone."""
    while (person := random_other_person(rng, subject, stranger=verb.english == "know")).english.startswith("the "):
        pass
    return person


def tell_feeling(rng: Random) -> Phrase:
    """We miss our teacher. 我们想念我们的老师。"""
    s = random_person(rng)
    verb = choose(rng, FEELING)
    o = person_object(random_dear_person(rng, s, verb))
    if rng.random() < 0.7:
        v = verb_phrase(verb).conjugate("third" if s.be == "is" else "base")
        return fill("{s} {v} {o}", "{s} {v} {o}", s=s, v=v, o=o)
    v = verb_phrase(verb).conjugate("base")
    return fill("{s} {do} not {v} {o}", "{s} 不 {v} {o}", s=s, do=word(s.do), v=v, o=o)


def tell_dress(rng: Random) -> Phrase:
    """Emma is wearing a red hat. 艾玛戴着一顶红色的帽子。"""
    s = random_person(rng)
    while s.be == "are" and s.pronoun != "you":
        s = random_person(rng)
    verb, nouns = choose(rng, WEARING)
    noun = choose(rng, nouns)
    v = Phrase(f"{s.be} wearing", f"{verb} 着")
    return fill("{s} {v} {o}", "{s} {v} {o}", s=s, v=v, o=article_phrase(random_attribute(rng, noun, 0.6), noun))


def name_occupation(rng: Random, bare: bool) -> tuple[Person, Phrase]:
    """Choose a person and an occupation; `bare` omits the Chinese measure word (negations, questions)."""
    s = random_he_or_she(rng)
    role = choose(rng, OCCUPATIONS)
    if s.be == "are" and s.pronoun != "you":
        return s, word(role.plural, role.chinese)
    return s, word(add_article(role.english), role.chinese if bare else f"一 {role.measure} {role.chinese}")


def tell_occupation(rng: Random) -> Phrase:
    """Her mother is not a doctor. 她妈妈不是医生。"""
    denied = rng.random() < 0.3
    s, o = name_occupation(rng, bare=denied)
    no = word("not", "不") if denied else NOTHING
    return fill("{s} {be} {no} {o}", "{s} {no} 是 {o}", s=s, be=word(s.be), no=no, o=o)


def tell_belonging(rng: Random) -> Phrase:
    """These are my books. 这些是我的书。"""
    noun = choose(rng, HAVE.nouns)
    near = rng.random() < 0.5
    thing = possessive_phrase(rng, noun)
    if thing.plural and not noun.pair:
        this = word("these are" if near else "those are", "这些" if near else "那些")
    else:
        singular, plural = ("this is", "these are") if near else ("that is", "those are")
        this = word(plural if thing.plural else singular, "这" if near else "那")
    no = word("not", "不") if rng.random() < 0.25 else NOTHING
    return fill("{this} {no} {o}", "{this} {no} 是 {o}", this=this, no=no, o=thing)


def tell_owner(rng: Random) -> Phrase:
    """This umbrella is mine. 这把雨伞是我的。"""
    noun = choose(rng, HAVE.nouns)
    thing = demonstrative_phrase(rng, noun)
    mine = word(*choose(rng, MINE))
    no = word("not", "不") if rng.random() < 0.25 else NOTHING
    return fill("{s} {be} {no} {o}", "{s} {no} 是 {o}", s=thing, be=word(thing.be), no=no, o=mine)


_EAT, _DRINK = Verb("eat", "吃", "fish meat"), Verb("drink", "喝", "water milk")


def watch_animal(rng: Random) -> Phrase:
    """The cat is sleeping under the chair. 猫正在椅子下面睡觉。"""
    noun = choose(rng, list_nouns("cat dog"))
    chance = rng.random()
    if chance < 0.65:
        s = possessive_phrase(rng, noun, qualified=0.2) if chance < 0.35 else definite_phrase(rng, noun)
    else:
        s = demonstrative_phrase(rng, noun)
    if rng.random() < 0.5:
        verb = choose(rng, (_EAT, _DRINK))
        noun = choose(rng, verb.nouns)
        v = verb_phrase(verb, noun, generic_phrase(noun)).conjugate("ing")
        return fill("{s} {be} {v}", "{s} 正在 {v}", s=s, be=word(s.be), v=v)
    spot = choose(rng, (*ON[1:], *UNDER, *NEXT_TO))
    at = word(spot.english, spot.chinese)
    return fill("{s} {be} sleeping {at}", "{s} 正在 {at} 睡觉", s=s, be=word(s.be), at=at)
