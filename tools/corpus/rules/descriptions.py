"""Descriptions and comparisons of people and things."""

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
    choose,
    combination_of,
    definite_phrase,
    demonstrative_phrase,
    fill,
    generic_phrase,
    person_object,
    possessive_phrase,
    random_other_person,
    random_person,
    sometimes,
    word,
)
from ..verb_phrases import verb_phrase

DESCRIBED = tuple(noun for nouns in NOUNS.values() for noun in nouns if PREDICATES[noun.english])
NOBODYS = frozenset(list_nouns("zoo tree movie song story")) | FOOD
COLORED = tuple({noun.english: noun for color in COLORS for noun in color.nouns}.values())


def describe(adjective: Adjective, noun: Noun) -> Phrase:
    """Return the adjective as a predicate of the noun."""
    return Phrase(adjective.english, adjective.chinese, (combination_of(adjective, noun),))


def show_thing(rng: Random, noun: Noun) -> Phrase:
    """Return a thing as the subject of a sentence: "the book", "this book", "my books"."""
    chance = rng.random()
    if chance < 0.3 and noun not in NOBODYS:
        return possessive_phrase(rng, noun, qualified=0.0)
    return demonstrative_phrase(rng, noun, qualified=0.0) if chance < 0.7 else definite_phrase(rng, noun)


def grade(rng: Random, adjective: Adjective) -> Phrase:
    """Choose a degree: "very" is 非常; without a degree in English, Chinese uses 很."""
    chance = rng.random()
    if chance < 0.5:
        return word("", "很")
    return word("very", "非常") if chance < 0.75 else word("not", adjective.denial)


def choose_quality(rng: Random) -> tuple[Noun, Adjective]:
    """Choose a thing and an adjective that describes it."""
    if rng.random() < 0.4:
        noun = choose(rng, DESCRIBED)
        return noun, choose(rng, PREDICATES[noun.english])
    adjective = choose(rng, QUALITIES)
    return choose(rng, adjective.nouns), adjective


def tell_quality(rng: Random) -> Phrase:
    """This coat is too expensive. 这件大衣太贵了。"""
    noun, adjective = choose_quality(rng)
    thing = show_thing(rng, noun)
    be, a = word(thing.be), describe(adjective, noun)
    if adjective.english in EXCESSES and rng.random() < 0.3:
        return fill("{s} {be} too {a}", "{s} 太 {a} 了", s=thing, be=be, a=a)
    return fill("{s} {be} {d} {a}", "{s} {d} {a}", s=thing, be=be, d=grade(rng, adjective), a=a)


def tell_color(rng: Random) -> Phrase:
    """My new car is red. 我的新汽车是红色的。"""
    noun = choose(rng, COLORED)
    color = choose(rng, tuple(color for color in COLORS if noun in color.nouns))
    thing = show_thing(rng, noun)
    no = word("not", "不") if rng.random() < 0.25 else NOTHING
    return fill("{s} {be} {no} {a}", "{s} {no} 是 {a} 的", s=thing, be=word(thing.be), no=no, a=describe(color, noun))


def tell_trait(rng: Random, subject: Person | None = None) -> Phrase:
    """His younger sister is very smart. 他妹妹非常聪明。"""
    s = subject or random_person(rng)
    trait = choose(rng, TRAITS)
    a = word(trait.english, trait.chinese)
    return fill("{s} {be} {d} {a}", "{s} {d} {a}", s=s, be=word(s.be), d=grade(rng, trait), a=a)


def tell_state(rng: Random) -> Phrase:
    """Lucy was tired yesterday. 露西昨天很累。"""
    s = random_person(rng)
    state = choose(rng, STATES)
    a = word(state.english, state.chinese)
    past = rng.random() < 0.4
    be = word(s.was if past else s.be)
    when = choose(rng, RECENT) if past else sometimes(rng, 0.4, (NOW, TODAY))
    return fill("{s} {be} {d} {a} {t}", "{s} {t} {d} {a}", s=s, be=be, d=grade(rng, state), a=a, t=when)


# English and Chinese comparison; {m} is the comparative, {a} the positive form.
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
    english, chinese = choose(rng, _COMPARISONS)
    a = describe(adjective, noun) if noun else word(adjective.english, adjective.chinese)
    return fill(english, chinese, s=subject, be=word(be), m=word(adjective.comparative), o=other, a=a)


def compare_people(rng: Random) -> Phrase:
    """Tom is taller than me. 汤姆比我高。"""
    s = random_person(rng)
    return compare(rng, choose(rng, TRAITS), s.be, s, person_object(random_other_person(rng, s)), None)


_COMPARED = tuple(
    (quality, tuple(noun for noun in quality.nouns if not noun.portion)) for quality in QUALITIES if quality.comparative
)
_CONTRASTS = ((("this", "这"), ("that", "那")), (("that", "那"), ("this", "这")))


def compare_things(rng: Random) -> Phrase:
    """This car is faster than that one. 这辆汽车比那辆快。"""
    adjective, nouns = choose(rng, _COMPARED)
    noun = choose(rng, nouns)
    chance = rng.random()
    if chance < 0.4 or noun in NOBODYS:
        (near, near_chinese), (far, far_chinese) = choose(rng, _CONTRASTS)
        s = word(f"{near} {noun.english}", f"{near_chinese} {noun.measure} {noun.chinese}")
        o = word(f"{far} one", f"{far_chinese} {noun.measure}")
    else:
        name = choose(rng, NAMES)
        mine, mine_chinese = choose(rng, MINE)
        while mine == {"he": "his", "she": "hers"}[name.pronoun]:
            mine, mine_chinese = choose(rng, MINE)
        s = word(f"{name.english}'s {noun.english}", f"{name.chinese} 的 {noun.chinese}")
        o = word(mine, mine_chinese)
    return compare(rng, adjective, "is", s, o, noun)


_FOODS = (list_nouns("fruit"), list_nouns("dish"))
_FOOD_QUALITIES = tuple(quality for quality in QUALITIES if quality.english in ("expensive", "delicious"))


def compare_foods(rng: Random) -> Phrase:
    """Apples are more delicious than pears. 苹果比梨好吃。"""
    one, other = choose(rng, foods := choose(rng, _FOODS)), choose(rng, foods)
    if one == other:
        return compare_foods(rng)
    s = generic_phrase(one)
    return compare(rng, choose(rng, _FOOD_QUALITIES), s.be, s, generic_phrase(other), one)


def compare_subjects(rng: Random) -> Phrase:
    """Math is more difficult than history. 数学比历史难。"""
    one, other = choose(rng, SUBJECTS_OF_STUDY), choose(rng, SUBJECTS_OF_STUDY)
    if one == other:
        return compare_subjects(rng)
    s, o = word(one.english, one.chinese), word(other.english, other.chinese)
    return compare(rng, choose(rng, DIFFICULTIES), "is", s, o, None)


def judge_subject(rng: Random) -> Phrase:
    """French is not easy. 法语不容易。"""
    study, adjective = choose(rng, SUBJECTS_OF_STUDY), choose(rng, DIFFICULTIES)
    s, a = word(study.english, study.chinese), word(adjective.english, adjective.chinese)
    return fill("{s} is {d} {a}", "{s} {d} {a}", s=s, d=grade(rng, adjective), a=a)


_BEST = tuple(trait for trait in TRAITS if trait.english in ("tall", "friendly", "smart", "strong", "brave", "kind"))
_PUPILS = (*PRONOUNS[:4], *NAMES)


def single_out_person(rng: Random) -> Phrase:
    """Peter is the tallest student in our class. 彼得是我们班最高的学生。"""
    s = choose(rng, _PUPILS)
    trait = choose(rng, _BEST)
    a = word(trait.superlative, trait.chinese)
    whose = choose(rng, (word("our", "我们"), word("their", "他们")))
    where = choose(rng, (word("class", "班"), word("school", "学校")))
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
    adjective, nouns = choose(rng, _PRIZED)
    noun = choose(rng, nouns)
    a = Phrase(adjective.superlative, adjective.chinese, (combination_of(adjective, noun),))
    n = word(noun.english, noun.chinese)
    if rng.random() < 0.4:
        return fill("this {n} is the {a}", f"这 {noun.measure} {{n}} 最 {{a}}", n=n, a=a)
    p = choose(rng, (word("shop", "商店"), word("market", "市场"), word("supermarket", "超市")))
    return fill("this is the {a} {n} in the {p}", "这 是 {p} 里 最 {a} 的 {n}", n=n, a=a, p=p)


def tell_weather(rng: Random) -> Phrase:
    """It will be very cold in Beijing tomorrow. 北京明天会非常冷。"""
    weather = choose(rng, WEATHER)
    a = word(weather.english, weather.chinese)
    d = grade(rng, weather)
    city = choose(rng, CITIES)
    p = word(city.at, city.chinese) if rng.random() < 0.5 else NOTHING
    chance = rng.random()
    if chance < 0.3:
        return fill("it was {d} {a} {p} {t}", "{p} {t} {d} {a}", a=a, d=d, p=p, t=choose(rng, RECENT))
    if chance < 0.5:
        return fill("it is {d} {a} {p} today", "{p} 今天 {d} {a}", a=a, d=d, p=p)
    if chance < 0.75:
        season, season_chinese = choose(rng, SEASONS)
        t, p = word(f"in {season}", season_chinese), word(city.at, city.chinese)
        return fill("it is {d} {a} {p} {t}", "{p} {t} {d} {a}", a=a, d=d, p=p, t=t)
    d = choose(rng, (word("be", "很"), word("be very", "非常")))
    return fill("it will {d} {a} {p} {t}", "{p} {t} 会 {d} {a}", a=a, d=d, p=p, t=choose(rng, SOON))


def tell_rain(rng: Random) -> Phrase:
    """It snowed in Beijing last night. 北京昨天晚上下雪了。"""
    city = choose(rng, CITIES)
    p = word(city.at, city.chinese) if rng.random() < 0.6 else NOTHING
    verb = choose(rng, (Verb("rain", "下雨"), Verb("snow", "下雪")))
    v = verb_phrase(verb)
    chance = rng.random()
    if chance < 0.3:
        return fill("it {v} {p} {t}", "{p} {t} {v}", v=v.conjugate("past", "了"), p=p, t=choose(rng, RECENT))
    if chance < 0.45:
        return fill("it did not {v} {p} {t}", "{p} {t} 没 {v}", v=v.conjugate("base"), p=p, t=choose(rng, RECENT))
    if chance < 0.75:
        now = sometimes(rng, 0.3, (NOW,))
        return fill("it is {v} {p} {t}", "{p} {t} 正在 {v}", v=v.conjugate("ing"), p=p, t=now)
    will = word("will", "会") if rng.random() < 0.7 else word("will not", "不 会")
    return fill("it {w} {v} {p} {t}", "{p} {t} {w} {v}", w=will, v=v.conjugate("base"), p=p, t=choose(rng, SOON))
