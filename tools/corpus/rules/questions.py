"""Yes-no questions, which end with 吗 in Chinese."""

from random import Random

from ..lexicon.adjectives import STATES, TRAITS
from ..lexicon.nouns import list_nouns
from ..lexicon.people import Person
from ..lexicon.places import BUILDINGS, CITIES, COUNTRIES, HOME
from ..lexicon.times import SEASONS
from ..lexicon.verbs import FEELING, HAVE, LIKE, NEED, SKILLS, WANT, Verb
from ..phrases import (
    Phrase,
    any_phrase,
    choose,
    definite_phrase,
    fill,
    generic_phrase,
    person_object,
    possessive_phrase,
    random_person,
    word,
)
from ..verb_phrases import action_at_home, habitual_action, single_action, verb_phrase
from .descriptions import NOBODYS, choose_quality, describe, show_thing
from .scenes import arrange, name_occupation, random_dear_person
from .statements import (
    future_time,
    habit_time,
    past_time,
    plannable_action,
    random_experience,
    random_location,
)


def meet_asked(rng: Random) -> Person:
    """Choose a person to ask about, who is not the speaker or a relative of the speaker."""
    while (person := random_person(rng)).pronoun in ("I", "we") or person.english.startswith("my "):
        pass
    return person


def ask_past(rng: Random) -> Phrase:
    """Did Tom buy any apples yesterday? 汤姆昨天买苹果了吗？"""
    s = meet_asked(rng)
    while (action := single_action(rng, s, "asked")).tail in ("me", "us"):
        pass
    when, at = past_time(rng, action, 0.6), random_location(rng, action, 0.2)
    return fill("did {s} {v} {at} {t}", "{s} {t} {at} {v} 了 吗", s=s, v=action.conjugate("base"), at=at, t=when)


def ask_ongoing(rng: Random) -> Phrase:
    """Is your father watching television? 你爸爸在看电视吗？"""
    s = meet_asked(rng)
    v = action_at_home(rng, doubted=True).conjugate("ing")
    return fill("{be} {s} {v}", "{s} 在 {v} 吗", be=word(s.be), s=s, v=v)


def ask_habit(rng: Random) -> Phrase:
    """Does she drink coffee every day? 她每天喝咖啡吗？"""
    s = meet_asked(rng)
    action = habitual_action(rng)
    when, v = habit_time(rng, action), action.conjugate("base")
    return fill("{do} {s} {v} {t}", "{s} {t} {v} 吗", do=word(s.do), s=s, v=v, t=when)


def ask_plan(rng: Random) -> Phrase:
    """Will you go to Shanghai next month? 你下个月会去上海吗？"""
    s = meet_asked(rng)
    action = plannable_action(rng, s)
    when = future_time(rng, action)
    return fill("will {s} {v} {t}", "{s} {t} 会 {v} 吗", s=s, v=action.conjugate("base"), t=when)


def ask_wish(rng: Random) -> Phrase:
    """Do you want to swim? 你想游泳吗？"""
    s = meet_asked(rng)
    action = plannable_action(rng, s)
    when = future_time(rng, action, 0.3)
    v = action.conjugate("base")
    return fill("{do} {s} want to {v} {t}", "{s} 想 {t} {v} 吗", do=word(s.do), s=s, v=v, t=when)


def ask_skill(rng: Random) -> Phrase:
    """Can your son swim? 你儿子会游泳吗？"""
    v = verb_phrase(choose(rng, SKILLS)).conjugate("base")
    return fill("can {s} {v}", "{s} 会 {v} 吗", s=meet_asked(rng), v=v)


_USE, _BORROW = Verb("use", "用"), Verb("borrow", "借")
_LENT = list_nouns(
    "device writing knife umbrella map bicycle car dictionary"
    if False
    else "device writing knife umbrella map bicycle car"
)


def ask_permission(rng: Random) -> Phrase:
    """Can I use your computer? 我能用你的电脑吗？"""
    noun = choose(rng, _LENT)
    thing = fill("your {n}", "你 的 {n}", n=word(noun.english, noun.chinese))
    action = verb_phrase(choose(rng, (_USE, _BORROW)), noun, thing)
    return fill("can I {v}", "我 能 {v} 吗", v=action.conjugate("base"))


def ask_taste(rng: Random) -> Phrase:
    """Does Mary like strawberries? 玛丽喜欢草莓吗？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.6:
        noun = choose(rng, LIKE[0].nouns)
        v = verb_phrase(LIKE[0], noun, generic_phrase(noun)).conjugate("base")
    elif chance < 0.75:
        season, chinese = choose(rng, SEASONS)
        v = word(f"like {season}", f"喜欢 {chinese}")
    else:
        verb = choose(rng, FEELING)
        person = person_object(random_dear_person(rng, s, verb))
        v = verb_phrase(verb, thing=person).conjugate("base")
    return fill("{do} {s} {v}", "{s} {v} 吗", do=word(s.do), s=s, v=v)


def ask_possession(rng: Random) -> Phrase:
    """Do you have any tickets? 你有票吗？"""
    s = meet_asked(rng)
    verb = choose(rng, (HAVE, HAVE, NEED, WANT))
    noun = choose(rng, verb.nouns)
    v = verb_phrase(verb, noun, any_phrase(noun)).conjugate("base")
    return fill("{do} {s} {v}", "{s} {v} 吗", do=word(s.do), s=s, v=v)


def ask_presence(rng: Random) -> Phrase:
    """Is there any milk in the fridge? 冰箱里有牛奶吗？"""
    noun, at = arrange(rng)
    n = any_phrase(noun)
    return fill("{be} there {n} {at}", "{at} 有 {n} 吗", be=word(n.be), n=n, at=at)


def ask_whether_there(rng: Random) -> Phrase:
    """Is your passport in the bag? 你的护照在包里吗？"""
    if rng.random() < 0.5:
        s = meet_asked(rng)
        place = choose(rng, (HOME, *BUILDINGS, *CITIES))
        return fill("{be} {s} {at}", "{s} 在 {at} 吗", be=word(s.be), s=s, at=word(place.at, place.chinese))
    noun, at = arrange(rng)
    thing = definite_phrase(rng, noun) if noun in NOBODYS or rng.random() < 0.5 else possessive_phrase(rng, noun)
    return fill("{be} {s} {at}", "{s} 在 {at} 吗", be=word(thing.be), s=thing, at=at)


def ask_quality(rng: Random) -> Phrase:
    """Is this watch expensive? 这块手表贵吗？"""
    noun, adjective = choose_quality(rng)
    thing, a = show_thing(rng, noun), describe(adjective, noun)
    return fill("{be} {s} {a}", "{s} {a} 吗", be=word(thing.be), s=thing, a=a)


def ask_trait(rng: Random) -> Phrase:
    """Are you tired? 你累吗？"""
    s = meet_asked(rng)
    adjective = choose(rng, choose(rng, (TRAITS, STATES)))
    return fill("{be} {s} {a}", "{s} {a} 吗", be=word(s.be), s=s, a=word(adjective.english, adjective.chinese))


def ask_occupation(rng: Random) -> Phrase:
    """Is her aunt a lawyer? 她阿姨是律师吗？"""
    s, o = name_occupation(rng, bare=True)
    if s.pronoun in ("I", "we") or s.english.startswith("my "):
        return ask_occupation(rng)
    return fill("{be} {s} {o}", "{s} 是 {o} 吗", be=word(s.be), s=s, o=o)


def ask_experience(rng: Random) -> Phrase:
    """Have you ever been to China? 你去过中国吗？"""
    s = meet_asked(rng)
    have = word(s.have)
    if rng.random() < 0.5:
        place = choose(rng, (*CITIES, *COUNTRIES))
        v = word(f"been {place.to}", f"去 过 {place.chinese}")
        return fill("{have} {s} ever {v}", "{s} {v} 吗", have=have, s=s, v=v)
    v = random_experience(rng).conjugate("participle", "过")
    return fill("{have} {s} ever {v}", "{s} {v} 吗", have=have, s=s, v=v)
