"""Statements about what people and things are like, and how they compare."""

from random import Random

from ..lexicon.adjectives import (
    COLORS,
    DIFFICULTIES,
    EXCESSES,
    PREDICATES,
    QUALITIES,
    STATES,
    SUBJECTS_OF_STUDY,
    TRAITS,
    WEATHER,
    Adjective,
)
from ..lexicon.nouns import FOOD, NOUNS, Noun, list_nouns
from ..lexicon.people import MINE, NAMES, PRONOUNS, Person
from ..lexicon.places import CITIES
from ..lexicon.times import NOW, RECENT, SEASONS, SOON, TODAY
from ..lexicon.verbs import Verb
from ..phrases import (
    NOTHING,
    Bilingual,
    Phrase,
    combine,
    fill,
    meet_other,
    meet_person,
    name_kind,
    name_object,
    own,
    pick,
    point_at,
    present,
    sometimes,
    word,
)
from ..verb_phrases import act

DESCRIBED = tuple(noun for nouns in NOUNS.values() for noun in nouns if PREDICATES[noun.english])
NOBODYS = frozenset(list_nouns("zoo tree movie song story")) | FOOD
COLORED = tuple({noun.english: noun for color in COLORS for noun in color.nouns}.values())


def describe(adjective: Adjective, noun: Noun) -> Phrase:
    """Let the adjective be said of the noun."""
    return Phrase(adjective.english, adjective.chinese, (combine(adjective, noun),))


def show_thing(rng: Random, noun: Noun) -> Phrase:
    """Make a thing the subject of the sentence: "the book", "this book", "my books"."""
    chance = rng.random()
    if chance < 0.3 and noun not in NOBODYS:
        return own(rng, noun, qualified=0.0)
    return point_at(rng, noun, qualified=0.0) if chance < 0.7 else present(rng, noun)


def grade(rng: Random, adjective: Adjective) -> Phrase:
    """Choose a degree: "very" is 非常, and where English has nothing Chinese says 很."""
    chance = rng.random()
    if chance < 0.5:
        return word("", "很")
    return word("very", "非常") if chance < 0.75 else word("not", adjective.denial)


def pick_quality(rng: Random) -> tuple[Noun, Adjective]:
    """Choose a thing and something to say of it."""
    if rng.random() < 0.4:
        noun = pick(rng, DESCRIBED)
        return noun, pick(rng, PREDICATES[noun.english])
    adjective = pick(rng, QUALITIES)
    return pick(rng, adjective.nouns), adjective


def tell_quality(rng: Random) -> Phrase:
    """This coat is too expensive. 这件大衣太贵了。"""
    noun, adjective = pick_quality(rng)
    thing = show_thing(rng, noun)
    be, a = word(thing.be), describe(adjective, noun)
    if adjective.english in EXCESSES and rng.random() < 0.3:
        return fill("{s} {be} too {a}", "{s} 太 {a} 了", s=thing, be=be, a=a)
    return fill("{s} {be} {d} {a}", "{s} {d} {a}", s=thing, be=be, d=grade(rng, adjective), a=a)


def tell_color(rng: Random) -> Phrase:
    """My new car is red. 我的新汽车是红色的。"""
    noun = pick(rng, COLORED)
    color = pick(rng, tuple(color for color in COLORS if noun in color.nouns))
    thing = show_thing(rng, noun)
    no = word("not", "不") if rng.random() < 0.25 else NOTHING
    return fill("{s} {be} {no} {a}", "{s} {no} 是 {a} 的", s=thing, be=word(thing.be), no=no, a=describe(color, noun))


def tell_trait(rng: Random, subject: Person | None = None) -> Phrase:
    """His younger sister is very smart. 他妹妹非常聪明。"""
    s = subject or meet_person(rng)
    trait = pick(rng, TRAITS)
    a = word(trait.english, trait.chinese)
    return fill("{s} {be} {d} {a}", "{s} {d} {a}", s=s, be=word(s.be), d=grade(rng, trait), a=a)


def tell_state(rng: Random) -> Phrase:
    """Lucy was tired yesterday. 露西昨天很累。"""
    s = meet_person(rng)
    state = pick(rng, STATES)
    a = word(state.english, state.chinese)
    past = rng.random() < 0.4
    be = word(s.was if past else s.be)
    when = pick(rng, RECENT) if past else sometimes(rng, 0.4, (NOW, TODAY))
    return fill("{s} {be} {d} {a} {t}", "{s} {t} {d} {a}", s=s, be=be, d=grade(rng, state), a=a, t=when)


# English of the comparison, its Chinese; {m} is the comparative, {a} the plain adjective
_COMPARISONS = (
    ("{s} {be} {m} than {o}", "{s} 比 {o} {a}"),
    ("{s} {be} {m} than {o}", "{s} 比 {o} {a}"),
    ("{s} {be} much {m} than {o}", "{s} 比 {o} {a} 得多"),
    ("{s} {be} a little {m} than {o}", "{s} 比 {o} {a} 一点儿"),
    ("{s} {be} not as {a} as {o}", "{s} 没有 {o} {a}"),
    ("{s} {be} as {a} as {o}", "{s} 跟 {o} 一样 {a}"),
)


def compare(
    rng: Random, adjective: Adjective, be: str, subject: Bilingual, other: Bilingual, noun: Noun | None
) -> Phrase:
    """Compare two people or things in one of six ways."""
    english, chinese = pick(rng, _COMPARISONS)
    a = describe(adjective, noun) if noun else word(adjective.english, adjective.chinese)
    return fill(english, chinese, s=subject, be=word(be), m=word(adjective.comparative), o=other, a=a)


def compare_people(rng: Random) -> Phrase:
    """Tom is taller than me. 汤姆比我高。"""
    s = meet_person(rng)
    return compare(rng, pick(rng, TRAITS), s.be, s, name_object(meet_other(rng, s)), None)


_COMPARED = tuple(
    (quality, tuple(noun for noun in quality.nouns if not noun.portion)) for quality in QUALITIES if quality.comparative
)
_CONTRASTS = ((("this", "这"), ("that", "那")), (("that", "那"), ("this", "这")))


def compare_things(rng: Random) -> Phrase:
    """This car is faster than that one. 这辆汽车比那辆快。"""
    adjective, nouns = pick(rng, _COMPARED)
    noun = pick(rng, nouns)
    chance = rng.random()
    if chance < 0.4 or noun in NOBODYS:
        (near, near_chinese), (far, far_chinese) = pick(rng, _CONTRASTS)
        s = word(f"{near} {noun.english}", f"{near_chinese} {noun.measure} {noun.chinese}")
        o = word(f"{far} one", f"{far_chinese} {noun.measure}")
    else:
        name = pick(rng, NAMES)
        mine, mine_chinese = pick(rng, MINE)
        while mine == {"he": "his", "she": "hers"}[name.pronoun]:
            mine, mine_chinese = pick(rng, MINE)
        s = word(f"{name.english}'s {noun.english}", f"{name.chinese} 的 {noun.chinese}")
        o = word(mine, mine_chinese)
    return compare(rng, adjective, "is", s, o, noun)


_FOODS = (list_nouns("fruit"), list_nouns("dish"))
_FOOD_QUALITIES = tuple(quality for quality in QUALITIES if quality.english in ("expensive", "delicious"))


def compare_foods(rng: Random) -> Phrase:
    """Apples are more delicious than pears. 苹果比梨好吃。"""
    one, other = pick(rng, foods := pick(rng, _FOODS)), pick(rng, foods)
    if one == other:
        return compare_foods(rng)
    s = name_kind(one)
    return compare(rng, pick(rng, _FOOD_QUALITIES), s.be, s, name_kind(other), one)


def compare_subjects(rng: Random) -> Phrase:
    """Math is more difficult than history. 数学比历史难。"""
    one, other = pick(rng, SUBJECTS_OF_STUDY), pick(rng, SUBJECTS_OF_STUDY)
    if one == other:
        return compare_subjects(rng)
    s, o = word(one.english, one.chinese), word(other.english, other.chinese)
    return compare(rng, pick(rng, DIFFICULTIES), "is", s, o, None)


def judge_subject(rng: Random) -> Phrase:
    """French is not easy. 法语不容易。"""
    study, adjective = pick(rng, SUBJECTS_OF_STUDY), pick(rng, DIFFICULTIES)
    s, a = word(study.english, study.chinese), word(adjective.english, adjective.chinese)
    return fill("{s} is {d} {a}", "{s} {d} {a}", s=s, d=grade(rng, adjective), a=a)


_BEST = tuple(trait for trait in TRAITS if trait.english in ("tall", "friendly", "smart", "strong", "brave", "kind"))
_PUPILS = (*PRONOUNS[:4], *NAMES)


def single_out_person(rng: Random) -> Phrase:
    """Peter is the tallest student in our class. 彼得是我们班最高的学生。"""
    s = pick(rng, _PUPILS)
    trait = pick(rng, _BEST)
    a = word(trait.superlative, trait.chinese)
    whose = pick(rng, (word("our", "我们"), word("their", "他们")))
    where = pick(rng, (word("class", "班"), word("school", "学校")))
    return fill(
        "{s} {be} the {a} student in {whose} {where}",
        "{s} 是 {whose} {where} 最 {a} 的 学生",
        s=s,
        be=word(s.be),
        a=a,
        whose=whose,
        where=where,
    )


_WARES = list_nouns("clothes accessory bag umbrella furniture device bicycle")
_PRIZED = tuple(
    (quality, tuple(noun for noun in nouns if noun in _WARES))
    for quality, nouns in _COMPARED
    if quality.english in ("expensive", "cheap", "beautiful", "comfortable", "useful")
)


def single_out_thing(rng: Random) -> Phrase:
    """This is the most expensive coat in the shop. 这是商店里最贵的大衣。"""
    adjective, nouns = pick(rng, _PRIZED)
    noun = pick(rng, nouns)
    a = Phrase(adjective.superlative, adjective.chinese, (combine(adjective, noun),))
    n = word(noun.english, noun.chinese)
    if rng.random() < 0.4:
        return fill("this {n} is the {a}", f"这 {noun.measure} {{n}} 最 {{a}}", n=n, a=a)
    p = pick(rng, (word("shop", "商店"), word("market", "市场"), word("supermarket", "超市")))
    return fill("this is the {a} {n} in the {p}", "这 是 {p} 里 最 {a} 的 {n}", n=n, a=a, p=p)


def tell_weather(rng: Random) -> Phrase:
    """It will be very cold in Beijing tomorrow. 北京明天会非常冷。"""
    weather = pick(rng, WEATHER)
    a = word(weather.english, weather.chinese)
    d = grade(rng, weather)
    city = pick(rng, CITIES)
    p = word(city.at, city.chinese) if rng.random() < 0.5 else NOTHING
    chance = rng.random()
    if chance < 0.3:
        return fill("it was {d} {a} {p} {t}", "{p} {t} {d} {a}", a=a, d=d, p=p, t=pick(rng, RECENT))
    if chance < 0.5:
        return fill("it is {d} {a} {p} today", "{p} 今天 {d} {a}", a=a, d=d, p=p)
    if chance < 0.75:
        season, season_chinese = pick(rng, SEASONS)
        t, p = word(f"in {season}", season_chinese), word(city.at, city.chinese)
        return fill("it is {d} {a} {p} {t}", "{p} {t} {d} {a}", a=a, d=d, p=p, t=t)
    d = pick(rng, (word("be", "很"), word("be very", "非常")))
    return fill("it will {d} {a} {p} {t}", "{p} {t} 会 {d} {a}", a=a, d=d, p=p, t=pick(rng, SOON))


def tell_rain(rng: Random) -> Phrase:
    """It snowed in Beijing last night. 北京昨天晚上下雪了。"""
    city = pick(rng, CITIES)
    p = word(city.at, city.chinese) if rng.random() < 0.6 else NOTHING
    verb = pick(rng, (Verb("rain", "下雨"), Verb("snow", "下雪")))
    v = act(verb)
    chance = rng.random()
    if chance < 0.3:
        return fill("it {v} {p} {t}", "{p} {t} {v}", v=v.conjugate("past", "了"), p=p, t=pick(rng, RECENT))
    if chance < 0.45:
        return fill("it did not {v} {p} {t}", "{p} {t} 没 {v}", v=v.conjugate("base"), p=p, t=pick(rng, RECENT))
    if chance < 0.75:
        now = sometimes(rng, 0.3, (NOW,))
        return fill("it is {v} {p} {t}", "{p} {t} 正在 {v}", v=v.conjugate("ing"), p=p, t=now)
    will = word("will", "会") if rng.random() < 0.7 else word("will not", "不 会")
    return fill("it {w} {v} {p} {t}", "{p} {t} {w} {v}", w=will, v=v.conjugate("base"), p=p, t=pick(rng, SOON))
