"""Questions to be answered with yes or no, which Chinese ends with 吗."""

from random import Random

from ..lexicon.adjectives import STATES, TRAITS
from ..lexicon.nouns import list_nouns
from ..lexicon.people import Person
from ..lexicon.places import BUILDINGS, CITIES, COUNTRIES, HOME
from ..lexicon.times import SEASONS
from ..lexicon.verbs import FEELING, HAVE, LIKE, NEED, SKILLS, WANT, Verb
from ..phrases import (
    Phrase,
    doubt,
    fill,
    meet_person,
    name_kind,
    name_object,
    own,
    pick,
    present,
    word,
)
from ..verb_phrases import act, do_at_home, do_something, do_usual_thing
from .descriptions import NOBODYS, describe, pick_quality, show_thing
from .scenes import arrange, meet_dear, name_occupation
from .statements import (
    do_memorable_thing,
    do_planned_or_asked,
    locate,
    say_how_regularly,
    say_when_done,
    say_when_planned,
)


def meet_asked(rng: Random) -> Person:
    """Choose somebody to ask about; nobody asks what they did themselves, or who their mother is."""
    while (person := meet_person(rng)).pronoun in ("I", "we") or person.english.startswith("my "):
        pass
    return person


def ask_past(rng: Random) -> Phrase:
    """Did Tom buy any apples yesterday? 汤姆昨天买苹果了吗？"""
    s = meet_asked(rng)
    while (deed := do_something(rng, s, "asked")).tail in ("me", "us"):
        pass
    when, at = say_when_done(rng, deed, 0.6), locate(rng, deed, 0.2)
    return fill("did {s} {v} {at} {t}", "{s} {t} {at} {v} 了 吗", s=s, v=deed.conjugate("base"), at=at, t=when)


def ask_ongoing(rng: Random) -> Phrase:
    """Is your father watching television? 你爸爸在看电视吗？"""
    s = meet_asked(rng)
    v = do_at_home(rng, doubted=True).conjugate("ing")
    return fill("{be} {s} {v}", "{s} 在 {v} 吗", be=word(s.be), s=s, v=v)


def ask_habit(rng: Random) -> Phrase:
    """Does she drink coffee every day? 她每天喝咖啡吗？"""
    s = meet_asked(rng)
    deed = do_usual_thing(rng)
    when, v = say_how_regularly(rng, deed), deed.conjugate("base")
    return fill("{do} {s} {v} {t}", "{s} {t} {v} 吗", do=word(s.do), s=s, v=v, t=when)


def ask_plan(rng: Random) -> Phrase:
    """Will you go to Shanghai next month? 你下个月会去上海吗？"""
    s = meet_asked(rng)
    deed = do_planned_or_asked(rng, s)
    when = say_when_planned(rng, deed)
    return fill("will {s} {v} {t}", "{s} {t} 会 {v} 吗", s=s, v=deed.conjugate("base"), t=when)


def ask_wish(rng: Random) -> Phrase:
    """Do you want to swim? 你想游泳吗？"""
    s = meet_asked(rng)
    deed = do_planned_or_asked(rng, s)
    when = say_when_planned(rng, deed, 0.3)
    v = deed.conjugate("base")
    return fill("{do} {s} want to {v} {t}", "{s} 想 {t} {v} 吗", do=word(s.do), s=s, v=v, t=when)


def ask_skill(rng: Random) -> Phrase:
    """Can your son swim? 你儿子会游泳吗？"""
    v = act(pick(rng, SKILLS)).conjugate("base")
    return fill("can {s} {v}", "{s} 会 {v} 吗", s=meet_asked(rng), v=v)


_USE, _BORROW = Verb("use", "用"), Verb("borrow", "借")
_LENT = list_nouns(
    "device writing knife umbrella map bicycle car dictionary"
    if False
    else "device writing knife umbrella map bicycle car"
)


def ask_permission(rng: Random) -> Phrase:
    """Can I use your computer? 我能用你的电脑吗？"""
    noun = pick(rng, _LENT)
    thing = fill("your {n}", "你 的 {n}", n=word(noun.english, noun.chinese))
    deed = act(pick(rng, (_USE, _BORROW)), noun, thing)
    return fill("can I {v}", "我 能 {v} 吗", v=deed.conjugate("base"))


def ask_taste(rng: Random) -> Phrase:
    """Does Mary like strawberries? 玛丽喜欢草莓吗？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.6:
        noun = pick(rng, LIKE[0].nouns)
        v = act(LIKE[0], noun, name_kind(noun)).conjugate("base")
    elif chance < 0.75:
        season, chinese = pick(rng, SEASONS)
        v = word(f"like {season}", f"喜欢 {chinese}")
    else:
        verb = pick(rng, FEELING)
        person = name_object(meet_dear(rng, s, verb))
        v = act(verb, thing=person).conjugate("base")
    return fill("{do} {s} {v}", "{s} {v} 吗", do=word(s.do), s=s, v=v)


def ask_possession(rng: Random) -> Phrase:
    """Do you have any tickets? 你有票吗？"""
    s = meet_asked(rng)
    verb = pick(rng, (HAVE, HAVE, NEED, WANT))
    noun = pick(rng, verb.nouns)
    v = act(verb, noun, doubt(noun)).conjugate("base")
    return fill("{do} {s} {v}", "{s} {v} 吗", do=word(s.do), s=s, v=v)


def ask_presence(rng: Random) -> Phrase:
    """Is there any milk in the fridge? 冰箱里有牛奶吗？"""
    noun, at = arrange(rng)
    n = doubt(noun)
    return fill("{be} there {n} {at}", "{at} 有 {n} 吗", be=word(n.be), n=n, at=at)


def ask_whether_there(rng: Random) -> Phrase:
    """Is your passport in the bag? 你的护照在包里吗？"""
    if rng.random() < 0.5:
        s = meet_asked(rng)
        place = pick(rng, (HOME, *BUILDINGS, *CITIES))
        return fill("{be} {s} {at}", "{s} 在 {at} 吗", be=word(s.be), s=s, at=word(place.at, place.chinese))
    noun, at = arrange(rng)
    thing = present(rng, noun) if noun in NOBODYS or rng.random() < 0.5 else own(rng, noun)
    return fill("{be} {s} {at}", "{s} 在 {at} 吗", be=word(thing.be), s=thing, at=at)


def ask_quality(rng: Random) -> Phrase:
    """Is this watch expensive? 这块手表贵吗？"""
    noun, adjective = pick_quality(rng)
    thing, a = show_thing(rng, noun), describe(adjective, noun)
    return fill("{be} {s} {a}", "{s} {a} 吗", be=word(thing.be), s=thing, a=a)


def ask_trait(rng: Random) -> Phrase:
    """Are you tired? 你累吗？"""
    s = meet_asked(rng)
    adjective = pick(rng, pick(rng, (TRAITS, STATES)))
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
        place = pick(rng, (*CITIES, *COUNTRIES))
        v = word(f"been {place.to}", f"去 过 {place.chinese}")
        return fill("{have} {s} ever {v}", "{s} {v} 吗", have=have, s=s, v=v)
    v = do_memorable_thing(rng).conjugate("participle", "过")
    return fill("{have} {s} ever {v}", "{s} {v} 吗", have=have, s=s, v=v)
