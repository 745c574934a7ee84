"""Questions with what, who, where, when, why and how. In Chinese, the question word has the position of the answer."""

from random import Random

from ..english import form_plural
from ..lexicon.adjectives import STATES, TRAITS
from ..lexicon.nouns import SEVERAL, Noun, list_nouns
from ..lexicon.people import ACQUAINTED, FAMILY, NAMES, OTHERS_FAMILY, PRONOUNS
from ..lexicon.places import BUILDINGS, CITIES, COUNTRIES, list_places
from ..lexicon.times import RECENT, SEASONS, SOON
from ..lexicon.verbs import (
    ARTS,
    DUTIES,
    ENDURING,
    GAMES,
    HAVE,
    LIKE,
    MEETING,
    NEED,
    ROUTINES,
    SKILLS,
    TRANSITIVE,
    WANT,
    Verb,
)
from ..phrases import (
    Phrase,
    choose,
    combination_of,
    definite_phrase,
    demonstrative_phrase,
    fill,
    generic_phrase,
    possessive_phrase,
    random_other_person,
    sometimes,
    word,
)
from ..verb_phrases import single_action, verb_phrase
from .descriptions import COLORED, show_thing
from .questions import meet_asked
from .scenes import CROWDS, arrange
from .statements import past_action, past_time, random_location

_WHATS = tuple(verb for verb in TRANSITIVE if verb.english not in ("watch", "listen to", "plant", "use", "bring"))
_COMMUTES = list_places("school office library park market supermarket hospital gym")
_LOST = list_nouns("valuable umbrella phone camera glasses hat gloves scarf watch pen bag bicycle cat dog")
_FOUND = (
    Verb("buy", "买", "reading clothes accessory device bicycle umbrella bag present furniture instrument"),
    Verb("find", "找到", "valuable accessory umbrella phone pet"),
)
_COUNTED = (
    Verb("buy", "买", "fruit vegetable dish drink reading clothes writing dishes chair flower ticket"),
    Verb("eat", "吃", "fruit dish"),
    Verb("drink", "喝", "drink"),
    Verb("write", "写", "message"),
    Verb("plant", "种", "tree flower"),
    Verb("see", "看见", "zoo farm pet"),
)
_SOLD = list_nouns("reading clothes accessory device bicycle umbrella bag furniture instrument car toy ticket")
_SINGLE = tuple(noun for noun in _SOLD if not noun.portion)
_OTHERS_PEOPLE = tuple(person for person in (*ACQUAINTED, *FAMILY) if not person.english.startswith(("my ", "our ")))
_YOUNG = (
    *PRONOUNS[1:4],
    *NAMES,
    *(
        person
        for person in (*_OTHERS_PEOPLE, *OTHERS_FAMILY)
        if person.english.endswith((" brother", " sister", " son", " daughter"))
    ),
)


def ask_what_done(rng: Random) -> Phrase:
    """What did Mary buy at the market yesterday? 玛丽昨天在市场买了什么？"""
    s = meet_asked(rng)
    action = verb_phrase(choose(rng, _WHATS))
    when, at = past_time(rng, action, 0.5), random_location(rng, action, 0.3)
    v = action.conjugate("base", "了")
    return fill("what did {s} {v} {at} {t}", "{s} {t} {at} {v} 什么", s=s, v=v, at=at, t=when)


def ask_what_now(rng: Random) -> Phrase:
    """What are you looking for? 你在找什么？"""
    s = meet_asked(rng)
    verb = choose(rng, tuple(verb for verb in _WHATS if not verb.momentary and verb.english != "borrow"))
    return fill("what {be} {s} {v}", "{s} 在 {v} 什么", be=word(s.be), s=s, v=verb_phrase(verb).conjugate("ing"))


def ask_what_wanted(rng: Random) -> Phrase:
    """What does he want to eat? 他想吃什么？"""
    s = meet_asked(rng)
    do = word(s.do)
    if rng.random() < 0.4:
        verb = choose(rng, (WANT, NEED, LIKE[0]))
        return fill("what {do} {s} {v}", "{s} {v} 什么", do=do, s=s, v=verb_phrase(verb).conjugate("base"))
    verb = choose(rng, tuple(verb for verb in _WHATS if not verb.momentary and verb.english != "look for"))
    return fill("what {do} {s} want to {v}", "{s} 想 {v} 什么", do=do, s=s, v=verb_phrase(verb).conjugate("base"))


def ask_who_did(rng: Random) -> Phrase:
    """Who broke the cup? 谁把杯子打破了？"""
    nobody = choose(rng, PRONOUNS[2:4])
    chance = rng.random()
    if chance < 0.5:
        action = past_action(rng, nobody)
        return fill("who {v} {t}", "{t} 谁 {v}", v=action.conjugate("past", "了"), t=past_time(rng, action, 0.3))
    if chance < 0.75:
        return fill("who can {v}", "谁 会 {v}", v=verb_phrase(choose(rng, SKILLS)).conjugate("base"))
    v = single_action(rng, nobody, "planned").conjugate("base")
    return fill("who wants to {v}", "谁 想 {v}", v=v)


def ask_who_met(rng: Random) -> Phrase:
    """Who did you see at the station? 你在车站看见了谁？"""
    s = meet_asked(rng)
    action = verb_phrase(choose(rng, MEETING))
    when, at = past_time(rng, action, 0.5), random_location(rng, action, 0.3)
    v = action.conjugate("base", "了")
    return fill("who did {s} {v} {at} {t}", "{s} {t} {at} {v} 谁", s=s, v=v, at=at, t=when)


def ask_who_is(rng: Random) -> Phrase:
    """Who is your teacher? 你的老师是谁？"""
    person = choose(rng, _OTHERS_PEOPLE)
    return fill("who is {s}", "{s} 是 谁", s=person)


def ask_who_more(rng: Random) -> Phrase:
    """Who is taller, Tom or Mary? 汤姆和玛丽谁更高？"""
    one = choose(rng, NAMES)
    other = random_other_person(rng, one)
    trait = choose(rng, TRAITS)
    if other.be == "are" or other in PRONOUNS:
        return ask_who_more(rng)
    a = word(trait.comparative, trait.chinese)
    return fill("who is {a}, {s} or {o}", "{s} 和 {o} 谁 更 {a}", a=a, s=one, o=other)


def ask_where_is(rng: Random) -> Phrase:
    """Where is my umbrella? 我的雨伞在哪里？"""
    if rng.random() < 0.5:
        s = meet_asked(rng)
        return fill("where {be} {s}", "{s} 在 哪里", be=word(s.be), s=s)
    noun = choose(rng, _LOST)
    thing = possessive_phrase(rng, noun) if rng.random() < 0.7 else definite_phrase(rng, noun)
    return fill("where {be} {s}", "{s} 在 哪里", be=word(thing.be), s=thing)


def ask_where_done(rng: Random) -> Phrase:
    """Where did you buy this coat? 你是在哪里买的这件大衣？"""
    s = meet_asked(rng)
    verb = choose(rng, _FOUND)
    noun = choose(rng, verb.nouns)
    o = demonstrative_phrase(rng, noun)
    o = Phrase(o.english, o.chinese, (*o.combinations, combination_of(verb, noun)))
    v = verb_phrase(verb).conjugate("base", "的")
    return fill("where did {s} {v} {o}", "{s} 是 在 哪里 {v} {o}", s=s, v=v, o=o)


def ask_where_usually(rng: Random) -> Phrase:
    """Where does your older sister work? 你姐姐在哪里工作？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.25:
        return fill("where {do} {s} live", "{s} 住 在 哪里", do=word(s.do), s=s)
    if chance < 0.5:
        return fill("where did {s} go {t}", "{s} {t} 去 了 哪里", s=s, t=choose(rng, RECENT))
    if chance < 0.7:
        return fill("where will {s} go {t}", "{s} {t} 会 去 哪里", s=s, t=choose(rng, SOON))
    v = verb_phrase(choose(rng, (*DUTIES[:2], *GAMES[2:], *ARTS[:1]))).conjugate("base")
    return fill("where {do} {s} {v}", "{s} 在 哪里 {v}", do=word(s.do), s=s, v=v)


def ask_when(rng: Random) -> Phrase:
    """When did Peter go to Japan? 彼得是什么时候去的日本？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.3:
        verb = choose(rng, ROUTINES[:5])[0]
        return fill("when {do} {s} {v}", "{s} 什么时候 {v}", do=word(s.do), s=s, v=verb_phrase(verb).conjugate("base"))
    place = choose(rng, (*CITIES, *COUNTRIES, *BUILDINGS))
    to = word(place.to, place.destination)
    if chance < 0.65:
        return fill("when will {s} go {p}", "{s} 什么时候 去 {p}", s=s, p=to)
    return fill("when did {s} go {p}", "{s} 是 什么时候 去 的 {p}", s=s, p=to)


def ask_why_done(rng: Random) -> Phrase:
    """Why did you sell your car? 你为什么把你的汽车卖掉了？"""
    s = meet_asked(rng)
    if rng.random() < 0.5:
        action = single_action(rng, s, "done")
        when = past_time(rng, action, 0.4)
        v = action.conjugate("base", "了")
        return fill("why did {s} {v} {t}", "{s} {t} 为什么 {v}", s=s, v=v, t=when)
    action = single_action(rng, s, "asked")
    when = past_time(rng, action, 0.4)
    v = action.conjugate("base")
    return fill("why did {s} not {v} {t}", "{s} {t} 为什么 没 {v}", s=s, v=v, t=when)


def ask_why(rng: Random) -> Phrase:
    """Why is Anna so happy? 安娜为什么这么高兴？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.5:
        state = choose(rng, STATES)
        return fill(
            "why {be} {s} so {a}", "{s} 为什么 这么 {a}", be=word(s.be), s=s, a=word(state.english, state.chinese)
        )
    verb = LIKE[0]
    noun = choose(rng, verb.nouns)
    v = verb_phrase(verb, noun, generic_phrase(noun)).conjugate("base")
    if chance < 0.7:
        season, chinese = choose(rng, SEASONS)
        v = word(f"like {season}", f"喜欢 {chinese}")
    return fill("why {do} {s} {v}", "{s} 为什么 {v}", do=word(s.do), s=s, v=v)


def ask_for_number(noun: Noun) -> Phrase:
    """Return the phrase for a number of things: "how many cups of tea" is 几杯茶."""
    unit = f"{form_plural(noun.portion)} of " if noun.portion else ""
    return word(f"how many {unit}{noun.plural}", f"几 {noun.measure} {noun.chinese}")


def ask_how_many(rng: Random) -> Phrase:
    """How many books did you buy? 你买了几本书？"""
    s = meet_asked(rng)
    chance = rng.random()
    if chance < 0.25:
        noun, at = arrange(rng)
        if not (noun in SEVERAL or noun.portion):
            return ask_how_many(rng)
        return fill("{n} are there {at}", "{at} 有 {n}", n=ask_for_number(noun), at=at)
    if chance < 0.4:
        roles, spots = choose(rng, CROWDS)
        role, spot = choose(rng, roles), choose(rng, spots)
        n = word(f"how many {role.plural}", f"多少 {role.measure} {role.chinese}")
        return fill("{n} are there {at}", "{at} 有 {n}", n=n, at=word(spot.english, spot.chinese))
    if chance < 0.5:
        v = verb_phrase(choose(rng, ENDURING)).conjugate("base", "了")
        when = sometimes(rng, 0.6, RECENT)
        return fill("how many hours did {s} {v} {t}", "{s} {t} {v} 几 个 小时", s=s, v=v, t=when)
    verb = HAVE if chance < 0.65 else choose(rng, _COUNTED)
    noun = choose(rng, tuple(noun for noun in verb.nouns if noun in SEVERAL or noun.portion))
    n = Phrase(*ask_for_number(noun)[:2], (combination_of(verb, noun),))
    if verb is HAVE:
        return fill("{n} {do} {s} have", "{s} 有 {n}", n=n, do=word(s.do), s=s)
    action = verb_phrase(verb)
    when = past_time(rng, action, 0.5)
    return fill("{n} did {s} {v} {t}", "{s} {t} {v} {n}", n=n, s=s, v=action.conjugate("base", "了"), t=when)


def ask_how_much(rng: Random) -> Phrase:
    """How much is this coat? 这件大衣多少钱？"""
    noun = choose(rng, _SOLD)
    thing = demonstrative_phrase(rng, noun, qualified=0.0)
    if rng.random() < 0.6:
        return fill("how much {be} {s}", "{s} 多少 钱", be=word(thing.be), s=thing)
    return fill("how much {do} {s} cost", "{s} 多少 钱", do=word(thing.do), s=thing)


def ask_age(rng: Random) -> Phrase:
    """How old is your daughter? 你女儿多大了？"""
    s = choose(rng, _YOUNG)
    return fill("how old {be} {s}", "{s} 多 大 了", be=word(s.be), s=s)


def ask_how_to_go(rng: Random) -> Phrase:
    """How did you go to Beijing? 你是怎么去的北京？"""
    s = meet_asked(rng)
    if rng.random() < 0.5:
        place = choose(rng, (*CITIES, *COUNTRIES, *BUILDINGS))
        return fill("how did {s} go {p}", "{s} 是 怎么 去 的 {p}", s=s, p=word(place.to, place.destination))
    place = choose(rng, _COMMUTES)
    p = word(place.to, place.destination)
    return fill("how {do} {s} go {p} every day", "{s} 每天 怎么 去 {p}", do=word(s.do), s=s, p=p)


def ask_which(rng: Random) -> Phrase:
    """Which book do you like? 你喜欢哪本书？"""
    s = meet_asked(rng)
    verb = choose(rng, (WANT, NEED, LIKE[0]))
    noun = choose(rng, _SINGLE)
    n = Phrase(f"which {noun.english}", f"哪 {noun.measure} {noun.chinese}", (combination_of(verb, noun),))
    return fill("{n} {do} {s} {v}", "{s} {v} {n}", n=n, do=word(s.do), s=s, v=verb_phrase(verb).conjugate("base"))


def ask_whose(rng: Random) -> Phrase:
    """Whose umbrella is this? 这是谁的雨伞？"""
    noun = choose(rng, HAVE.nouns)
    this, chinese = choose(rng, (("this", "这"), ("that", "那")))
    if noun.pair:
        this = {"this": "these", "that": "those"}[this]
    be = "are" if noun.pair else "is"
    n = word(noun.english, noun.chinese)
    return fill("whose {n} {be} {this}", "{this} 是 谁 的 {n}", n=n, be=word(be), this=word(this, chinese))


def ask_color(rng: Random) -> Phrase:
    """What color is your bicycle? 你的自行车是什么颜色的？"""
    noun = choose(rng, COLORED)
    thing = show_thing(rng, noun)
    return fill("what color {be} {s}", "{s} 是 什么 颜色 的", be=word(thing.be), s=thing)
