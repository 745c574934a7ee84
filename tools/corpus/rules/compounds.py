"""Sentences with two clauses: because, so, but, if, when and that."""

from random import Random

from ..lexicon.adjectives import PREDICATES
from ..lexicon.people import PRONOUN_BY_NAME
from ..lexicon.places import list_places
from ..lexicon.times import SOON
from ..lexicon.verbs import DUTIES, GO, LEISURE, LIKE, SKILLS, Verb
from ..phrases import (
    Phrase,
    choose,
    counted_phrase,
    fill,
    generic_phrase,
    random_he_or_she,
    random_other_person,
    random_person,
    word,
)
from ..verb_phrases import VerbPhrase, action_at_home, single_action, travel_away, verb_phrase
from .descriptions import DESCRIBED, compare_subjects, describe, judge_subject, show_thing, tell_quality, tell_trait
from .scenes import choose_similar
from .statements import present_tense

_EAT = Verb("eat", "吃", "fruit vegetable dish")
_DRINK = Verb("drink", "喝", "tea coffee milk juice water")
_REST, _SLEEP, _GO_HOME = Verb("rest", "休息"), Verb("sleep", "睡觉"), Verb("go home", "回家")
_SEE_DOCTOR = VerbPhrase(GO, "to the hospital", "", "医院")
_OUTINGS = list_places("school library park shop supermarket market restaurant museum cinema zoo beach gym")

# Feelings in English and Chinese.
_FEELINGS = (
    ("hungry", "很 饿"),
    ("thirsty", "很 渴"),
    ("tired", "很 累"),
    ("busy", "很 忙"),
    ("sick", "生病 了"),
)
_WEATHERS = (
    ("it rained yesterday", "昨天 下雨 了"),
    ("it snowed yesterday", "昨天 下雪 了"),
    ("it was very cold yesterday", "昨天 非常 冷"),
    ("it was very hot yesterday", "昨天 非常 热"),
)
# {c} is the cause and {e} the effect.
_CAUSALS = (
    ("because {c}, {e}", "因为 {c} ， 所以 {e}"),
    ("{c}, so {e}", "{c} ， 所以 {e}"),
)


def _take_some(rng: Random, verb: Verb) -> VerbPhrase:
    noun = choose(rng, verb.nouns)
    return verb_phrase(verb, noun, counted_phrase(rng, noun))


def _give_up(rng: Random) -> Phrase:
    """Return a pleasant action that was not done."""
    place = choose(rng, _OUTINGS)
    outing = VerbPhrase(GO, place.to, "", place.destination)
    v = (verb_phrase(choose(rng, LEISURE)) if rng.random() < 0.5 else outing).conjugate("base")
    return fill("did not {v}", "没 {v}", v=v)


def _react(rng: Random, feeling: str) -> Phrase:
    """Return what a person did, or did not do, because of a feeling."""
    if feeling == "hungry":
        return _take_some(rng, _EAT).conjugate("past", "了")
    if feeling == "thirsty":
        return _take_some(rng, _DRINK).conjugate("past", "了")
    if feeling == "tired" and rng.random() < 0.5:
        return verb_phrase(choose(rng, (_REST, _GO_HOME))).conjugate("past", "了")
    if feeling == "sick" and rng.random() < 0.3:
        return _SEE_DOCTOR.conjugate("past", "了")
    return _give_up(rng)


def tell_cause(rng: Random) -> Phrase:
    """Because Tom was hungry, he ate two apples. 因为汤姆很饿，所以他吃了两个苹果。"""
    s = random_he_or_she(rng)
    again = PRONOUN_BY_NAME[s.pronoun]
    feeling, chinese = choose(rng, _FEELINGS)
    reaction = _react(rng, feeling)
    felt = word(f"{s.was} {feeling}", chinese)
    if rng.random() < 0.3:
        return fill("{s} {e} because {p} {c}", "{s} {e} ， 因为 {p} {c}", s=s, e=reaction, p=again, c=felt)
    english, chinese = choose(rng, _CAUSALS)
    cause = fill("{s} {c}", "{s} {c}", s=s, c=felt)
    return fill(english, chinese, c=cause, e=fill("{p} {e}", "{p} {e}", p=again, e=reaction))


def blame_weather(rng: Random) -> Phrase:
    """It rained yesterday, so we did not go to the park. 昨天下雨了，所以我们没去公园。"""
    s = random_person(rng)
    if rng.random() < 0.6:
        weather, reaction = word(*choose(rng, _WEATHERS)), _give_up(rng)
    else:
        weather = choose(rng, (word("it is raining", "正在 下雨"), word("it is snowing", "正在 下雪")))
        place = choose(rng, _OUTINGS)
        reaction = word(f"cannot go {place.to}", f"不 能 去 {place.destination}")
    effect = fill("{s} {e}", "{s} {e}", s=s, e=reaction)
    if rng.random() < 0.3:
        return fill("{e} because {c}", "{e} ， 因为 {c}", c=weather, e=effect)
    english, chinese = choose(rng, _CAUSALS)
    return fill(english, chinese, c=weather, e=effect)


def contrast_tastes(rng: Random) -> Phrase:
    """Anna likes tea, but she does not like coffee. 安娜喜欢茶，但是她不喜欢咖啡。"""
    s = random_he_or_she(rng)
    again = PRONOUN_BY_NAME[s.pronoun]
    verb = LIKE[0]
    one = choose(rng, verb.nouns)
    other = choose_similar(rng, one)
    if one == other:
        return contrast_tastes(rng)
    return fill(
        "{s} {v}, but {p} {do} not {w}",
        "{s} {v} ， 但是 {p} 不 {w}",
        s=s,
        v=present_tense(verb_phrase(verb, one, generic_phrase(one)), s),
        p=again,
        do=word(again.do),
        w=verb_phrase(verb, other, generic_phrase(other)).conjugate("base"),
    )


def contrast_skills(rng: Random) -> Phrase:
    """Tom can swim, but Mary cannot. 汤姆会游泳，但是玛丽不会。"""
    s = random_person(rng)
    other = random_other_person(rng, s)
    v = verb_phrase(choose(rng, SKILLS)).conjugate("base")
    return fill("{s} can {v}, but {o} cannot", "{s} 会 {v} ， 但是 {o} 不 会", s=s, v=v, o=other)


_VIRTUES = ("beautiful", "comfortable", "useful", "interesting", "new", "clean", "cheap", "fast", "delicious")
_FAULTS = ("old", "expensive", "long", "heavy", "dirty", "slow")
_CONTRARIES = frozenset((("new", "old"), ("cheap", "expensive"), ("clean", "dirty"), ("fast", "slow")))
_MIXED = tuple(
    (noun, virtue, fault)
    for noun in DESCRIBED
    for virtue in PREDICATES[noun.english]
    for fault in PREDICATES[noun.english]
    if virtue.english in _VIRTUES and fault.english in _FAULTS and (virtue.english, fault.english) not in _CONTRARIES
)


def contrast_qualities(rng: Random) -> Phrase:
    """This coat is beautiful, but it is too expensive. 这件大衣很漂亮，但是太贵了。"""
    noun, virtue, fault = choose(rng, _MIXED)
    thing = show_thing(rng, noun)
    return fill(
        "{s} {be} {a}, but {it} too {b}",
        "{s} 很 {a} ， 但是 太 {b} 了",
        s=thing,
        be=word(thing.be),
        a=describe(virtue, noun),
        it=word("they are" if thing.plural else "it is"),
        b=describe(fault, noun),
    )


def regret(rng: Random) -> Phrase:
    """Lucy wants to go to Paris, but she is too busy. 露西想去巴黎，但是她太忙了。"""
    s = random_he_or_she(rng)
    again = PRONOUN_BY_NAME[s.pronoun]
    action = travel_away(rng) if rng.random() < 0.5 else verb_phrase(choose(rng, LEISURE))
    excuse = choose(rng, (word("busy", "忙"), word("tired", "累"), word("nervous", "紧张")))
    return fill(
        "{s} {want} to {v}, but {p} {be} too {a}",
        "{s} 想 {v} ， 但是 {p} 太 {a} 了",
        s=s,
        want=word("wants" if s.be == "is" else "want"),
        v=action.conjugate("base"),
        p=again,
        be=word(again.be),
        a=excuse,
    )


def suppose_weather(rng: Random) -> Phrase:
    """If it rains tomorrow, I will watch television at home. 如果明天下雨，我就会在家看电视。"""
    s = random_person(rng)
    weather = choose(
        rng, (word("rains", "下雨"), word("snows", "下雪"), word("is cold", "很 冷"), word("is hot", "很 热"))
    )
    if rng.random() < 0.5:
        verb = choose(rng, tuple(verb for verb in (*LEISURE, *DUTIES) if "home" in verb.where))
        effect = fill("will {v} at home", "就 会 在 家 {v}", v=verb_phrase(verb).conjugate("base"))
    else:
        place = choose(rng, _OUTINGS)
        effect = word(f"will not go {place.to}", f"就 不 会 去 {place.destination}")
    when = choose(rng, SOON)
    return fill("if it {w} {t}, {s} {e}", "如果 {t} {w} ， {s} {e}", w=weather, t=when, s=s, e=effect)


def suppose_state(rng: Random) -> Phrase:
    """If you are tired, you should rest. 如果你累了，你就应该休息。"""
    s = random_he_or_she(rng)
    again = PRONOUN_BY_NAME[s.pronoun]
    chance = rng.random()
    if chance < 0.35:
        state, effect = word("hungry", "饿"), fill("can {v}", "可以 {v}", v=_take_some(rng, _EAT).conjugate("base"))
    elif chance < 0.7:
        state, effect = word("thirsty", "渴"), fill("can {v}", "可以 {v}", v=_take_some(rng, _DRINK).conjugate("base"))
    else:
        state = word("tired", "累")
        effect = fill("should {v}", "应该 {v}", v=verb_phrase(choose(rng, (_REST, _SLEEP, _GO_HOME))).conjugate("base"))
    return fill(
        "if {s} {be} {a}, {p} {e}", "如果 {s} {a} 了 ， {p} 就 {e}", s=s, be=word(s.be), a=state, p=again, e=effect
    )


def suppose_time(rng: Random) -> Phrase:
    """If Jack has time tomorrow, he will help us. 如果杰克明天有时间，他就会帮助我们。"""
    s = random_he_or_she(rng)
    again = PRONOUN_BY_NAME[s.pronoun]
    v = single_action(rng, s, "planned").conjugate("base")
    return fill(
        "if {s} {have} time {t}, {p} will {v}",
        "如果 {s} {t} 有 时间 ， {p} 就 会 {v}",
        s=s,
        have=word(s.have),
        t=choose(rng, SOON),
        p=again,
        v=v,
    )


def tell_meanwhile(rng: Random) -> Phrase:
    """When I came home, my mother was cooking dinner. 我回家的时候，我妈妈正在做晚饭。"""
    s = random_person(rng)
    other = random_other_person(rng, s)
    v = action_at_home(rng).conjugate("ing")
    return fill(
        "when {s} came home, {o} {was} {v}",
        "{s} 回家 的 时候 ， {o} 正在 {v}",
        s=s,
        o=other,
        was=word(other.was),
        v=v,
    )


_OPINIONS = (Verb("think that", "觉得"), Verb("know that", "知道"), Verb("say that", "说"))


def tell_opinion(rng: Random) -> Phrase:
    """She thinks that this book is boring. 她觉得这本书很无聊。"""
    s = random_person(rng)
    opinion = choose(rng, _OPINIONS)
    chance = rng.random()
    if chance < 0.5:
        clause = tell_quality(rng)
    elif chance < 0.8:
        clause = tell_trait(rng, random_other_person(rng, s))
    else:
        clause = judge_subject(rng) if chance < 0.9 else compare_subjects(rng)
    return fill("{s} {v} {c}", "{s} {v} {c}", s=s, v=present_tense(verb_phrase(opinion), s), c=clause)
