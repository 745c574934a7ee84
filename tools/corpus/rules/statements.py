"""Statements about what people do: tense, aspect, negation, modal verbs, time and place."""

from random import Random

from ..lexicon.people import Person
from ..lexicon.places import BUILDINGS, CITIES, COUNTRIES
from ..lexicon.times import AT_TIMES, EVERY, JUST_NOW, LATER, LONG_AGO, NOW, OFTEN, RECENT, REGULARLY, SOON
from ..lexicon.verbs import CHAT, DUTIES, ENDURING, HABITUAL, LEISURE, NEEDS, ROUTINES, SKILLS, TRANSITIVE, Verb
from ..phrases import (
    NOTHING,
    NUMBERS,
    NUMERALS,
    Bilingual,
    Phrase,
    doubt,
    fill,
    meet_other,
    meet_person,
    name_kind,
    name_object,
    pick,
    point_at,
    sometimes,
    word,
)
from ..verb_phrases import (
    Style,
    VerbPhrase,
    act,
    do_at_home,
    do_something,
    do_usual_thing,
    travel,
    treat,
)


def locate(rng: Random, deed: VerbPhrase, chance: float = 0.35) -> Phrase:
    """Say where it happens, now and then; in Chinese 在 and the place go before the verb."""
    if not deed.verb.where or rng.random() >= chance:
        return NOTHING
    place = pick(rng, deed.verb.places)
    return Phrase(place.at, f"在 {place.chinese}")


def say_when_done(rng: Random, deed: VerbPhrase, chance: float = 0.7) -> Bilingual:
    """Say when it happened, within living memory of such a deed."""
    if deed.verb.brief:
        return sometimes(rng, chance, JUST_NOW)
    return sometimes(rng, chance, pick(rng, (RECENT, LONG_AGO)) if deed.verb.lasting else RECENT)


def say_when_planned(rng: Random, deed: VerbPhrase, chance: float = 0.7) -> Bilingual:
    """Say when it will happen, if it is worth planning."""
    if deed.verb.brief:
        return NOTHING
    return sometimes(rng, chance, (*SOON, *LATER) if deed.verb.lasting else SOON)


def say_how_regularly(rng: Random, deed: VerbPhrase) -> Bilingual:
    """Say how regularly it happens; nobody eats right after dinner."""
    return pick(rng, EVERY if deed.verb.english == "eat" else REGULARLY)


def present_tense(deed: VerbPhrase, subject: Person) -> Phrase:
    """Conjugate for what the subject does as a rule."""
    return deed.conjugate("third" if subject.be == "is" else "base")


def do_one_thing(rng: Random, subject: Person) -> VerbPhrase:
    """Do something whose past can be told from its present."""
    while (deed := do_something(rng, subject, "done")).verb.hides_past:
        pass
    return deed


def tell_past(rng: Random) -> Phrase:
    """Mary bought two books at the shop yesterday. 玛丽昨天在商店买了两本书。"""
    s = meet_person(rng)
    deed = do_one_thing(rng, s)
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": deed.conjugate("past", "了"),
        "at": locate(rng, deed),
        "t": say_when_done(rng, deed),
    }
    if rng.random() < 0.2:
        return fill("{t} {s} {v} {at}", "{t} {s} {at} {v}", **parts)
    return fill("{s} {v} {at} {t}", "{s} {t} {at} {v}", **parts)


def tell_company(rng: Random) -> Phrase:
    """Tom went to the park with Mary yesterday. 汤姆昨天跟玛丽一起去了公园。"""
    s = meet_person(rng)
    deed = travel(rng) if rng.random() < 0.5 else act(CHAT if rng.random() < 0.2 else pick(rng, LEISURE))
    with_whom = name_object(meet_other(rng, s))
    if rng.random() < 0.6:
        parts: dict[str, Bilingual] = {
            "v": deed.conjugate("past", "了"),
            "t": say_when_done(rng, deed),
            "will": NOTHING,
        }
    else:
        parts = {"v": deed.conjugate("base"), "t": say_when_planned(rng, deed), "will": word("will", "会")}
    together = word("", "" if deed.verb is CHAT else "一起")
    return fill(
        "{s} {will} {v} with {w} {t}",
        "{s} {t} {will} 跟 {w} {together} {v}",
        s=s,
        w=with_whom,
        together=together,
        **parts,
    )


def deny_past(rng: Random) -> Phrase:
    """Tom did not buy any apples yesterday. 汤姆昨天没买苹果。"""
    s = meet_person(rng)
    deed = do_something(rng, s, "asked")
    when, at = say_when_done(rng, deed), locate(rng, deed, 0.2)
    return fill("{s} did not {v} {at} {t}", "{s} {t} 没 {at} {v}", s=s, v=deed.conjugate("base"), at=at, t=when)


def tell_ongoing(rng: Random) -> Phrase:
    """Anna is reading a novel in the library. 安娜正在图书馆看一本小说。"""
    s = meet_person(rng)
    deed = do_something(rng, s, "ongoing")
    at = NOTHING
    if deed.verb.where and rng.random() < 0.4:
        place = pick(rng, deed.verb.places)
        at = word(place.at, place.chinese)
    now = sometimes(rng, 0.15, (NOW,))
    be = word(s.be)
    return fill("{s} {be} {v} {at} {t}", "{s} {t} 正在 {at} {v}", s=s, be=be, v=deed.conjugate("ing"), at=at, t=now)


def deny_ongoing(rng: Random) -> Phrase:
    """Tom is not watching television. 汤姆没在看电视。"""
    s = meet_person(rng)
    deed = do_at_home(rng, doubted=True)
    now = sometimes(rng, 0.2, (NOW,))
    return fill("{s} {be} not {v} {t}", "{s} {t} 没 在 {v}", s=s, be=word(s.be), v=deed.conjugate("ing"), t=now)


def do_as_a_rule(rng: Random, subject: Person) -> VerbPhrase:
    """Do something habitual whose present can be told from its past."""
    while (deed := do_usual_thing(rng)).verb.hides_past and subject.be != "is":
        pass
    return deed


def tell_habit(rng: Random) -> Phrase:
    """My father drinks coffee every morning. 我爸爸每天早上喝咖啡。"""
    s = meet_person(rng)
    deed = do_as_a_rule(rng, s)
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": present_tense(deed, s),
        "at": locate(rng, deed),
        "t": say_how_regularly(rng, deed),
    }
    return fill("{s} {v} {at} {t}", "{s} {t} {at} {v}", **parts)


def tell_frequency(rng: Random) -> Phrase:
    """Lucy often plays tennis. 露西经常打网球。"""
    s = meet_person(rng)
    if rng.random() < 0.2:
        deed = act(pick(rng, NEEDS[1:]))
        at = locate(rng, deed, 1.0)
    else:
        deed = do_as_a_rule(rng, s)
        at = locate(rng, deed, 0.25)
    v = present_tense(deed, s)
    return fill("{s} {often} {v} {at}", "{s} {often} {at} {v}", s=s, often=pick(rng, OFTEN), v=v, at=at)


def deny_habit(rng: Random) -> Phrase:
    """She does not eat meat. 她不吃肉。"""
    s = meet_person(rng)
    deed = do_usual_thing(rng)
    when = sometimes(rng, 0.25, AT_TIMES[:1] if deed.verb.english == "eat" else AT_TIMES)
    return fill("{s} {do} not {v} {t}", "{s} {t} 不 {v}", s=s, do=word(s.do), v=deed.conjugate("base"), t=when)


def tell_routine(rng: Random) -> Phrase:
    """I get up at seven o'clock every morning. 我每天早上七点起床。"""
    s = meet_person(rng)
    verb, part, part_chinese, hours = pick(rng, ROUTINES)
    hour = pick(rng, hours)
    clock = word(f"at {hour} o'clock", f"{'两' if hour == 'two' else NUMERALS[hour]} 点")
    v = present_tense(act(verb), s)
    if rng.random() < 0.6:
        return fill(
            "{s} {v} {at} {t}", "{s} {t} {at} {v}", s=s, v=v, at=clock, t=word(f"every {part}", f"每天 {part_chinese}")
        )
    often = pick(rng, OFTEN[1:3])
    t = word(f"in the {part}", part_chinese)
    return fill("{s} {often} {v} {at} {t}", "{s} {often} {t} {at} {v}", s=s, often=often, v=v, at=clock, t=t)


def tell_plan(rng: Random) -> Phrase:
    """Tom will go to Beijing next week. 汤姆下个星期会去北京。"""
    s = meet_person(rng)
    deed = do_something(rng, s, "planned")
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": deed.conjugate("base"),
        "at": locate(rng, deed, 0.25),
        "t": say_when_planned(rng, deed),
    }
    parts["will"] = word("will", "会") if rng.random() < 0.6 else word(f"{s.be} going to", "要")
    if rng.random() < 0.2:
        return fill("{t} {s} {will} {v} {at}", "{t} {s} {will} {at} {v}", **parts)
    return fill("{s} {will} {v} {at} {t}", "{s} {t} {will} {at} {v}", **parts)


def deny_plan(rng: Random) -> Phrase:
    """We will not sell this house. 我们不会把这座房子卖掉。"""
    s = meet_person(rng)
    deed = do_planned_or_asked(rng, s)
    when = say_when_planned(rng, deed, 0.5)
    return fill("{s} will not {v} {t}", "{s} {t} 不 会 {v}", s=s, v=deed.conjugate("base"), t=when)


def do_planned_or_asked(rng: Random, subject: Person) -> VerbPhrase:
    """Do something that can be planned, spoken of as one denies it or asks about it."""
    deed = do_something(rng, subject, "asked")
    while deed.verb.momentary or deed.verb.brief:
        deed = do_something(rng, subject, "asked")
    return deed


# English, Chinese; what is wished for comes after, its time first.
WISHES = (Verb("want to", "想"), Verb("plan to", "打算"))
_HOPE = Verb("hope to", "希望")


def tell_wish(rng: Random) -> Phrase:
    """Emma wants to buy a new coat tomorrow. 艾玛想明天买一件新大衣。"""
    s = meet_person(rng)
    while (deed := do_something(rng, s, "planned")).verb.brief:
        pass
    when, at = say_when_planned(rng, deed, 0.5), locate(rng, deed, 0.2)
    w = present_tense(act(pick(rng, WISHES)), s)
    return fill("{s} {w} {v} {at} {t}", "{s} {w} {t} {at} {v}", s=s, w=w, v=deed.conjugate("base"), at=at, t=when)


def tell_hope(rng: Random) -> Phrase:
    """He hopes to go to Beijing next year. 他希望明年能去北京。"""
    s = meet_person(rng)
    deed = travel(rng) if rng.random() < 0.6 else treat(rng, s, "planned")
    h, when = present_tense(act(_HOPE), s), say_when_planned(rng, deed, 0.5)
    return fill("{s} {h} {v} {t}", "{s} {h} {t} 能 {v}", s=s, h=h, v=deed.conjugate("base"), t=when)


def deny_wish(rng: Random) -> Phrase:
    """She does not want to swim. 她不想游泳。"""
    s = meet_person(rng)
    wish, deed = act(pick(rng, WISHES)), do_planned_or_asked(rng, s)
    w, v = wish.conjugate("base"), deed.conjugate("base")
    return fill("{s} {do} not {w} {v}", "{s} 不 {w} {v}", s=s, do=word(s.do), w=w, v=v)


_DUTIFUL = tuple(verb for verb in TRANSITIVE if verb.english in ("read", "write", "wash", "bring", "look for", "use"))


def do_duty(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Do something one may be obliged to do."""
    chance = rng.random()
    if chance < 0.35:
        return act(pick(rng, DUTIES))
    if chance < 0.55:
        return travel(rng)
    deed = do_something(rng, subject, style)
    while deed.verb.momentary or not (deed.verb in _DUTIFUL or deed.before.startswith(("把", "给"))):
        deed = do_something(rng, subject, style)
    return deed


def tell_duty(rng: Random) -> Phrase:
    """You must write this letter tomorrow. 你明天必须写这封信。"""
    s = meet_person(rng)
    has_to, needs_to = word(f"{s.have} to", "得"), word("needs to" if s.be == "is" else "need to", "需要")
    must = pick(rng, (word("must", "必须"), word("should", "应该"), has_to, needs_to))
    deed = do_duty(rng, s, "planned")
    when = say_when_planned(rng, deed, 0.4)
    return fill("{s} {must} {v} {t}", "{s} {t} {must} {v}", s=s, must=must, v=deed.conjugate("base"), t=when)


def deny_duty(rng: Random) -> Phrase:
    """Peter does not have to go to school tomorrow. 彼得明天不用去学校。"""
    s = meet_person(rng)
    deed = do_duty(rng, s, "asked")
    when, v = say_when_planned(rng, deed, 0.4), deed.conjugate("base")
    return fill("{s} {do} not have to {v} {t}", "{s} {t} 不用 {v}", s=s, do=word(s.do), v=v, t=when)


def give_warning(rng: Random) -> Phrase:
    """He should not drink beer. 他不应该喝啤酒。"""
    s = meet_person(rng)
    if rng.random() < 0.3:
        v = act(pick(rng, LEISURE)).conjugate("base")
        return fill("{s} should not {v} now", "{s} 现在 不 应该 {v}", s=s, v=v)
    verb = pick(rng, HABITUAL[:2])
    noun = pick(rng, verb.nouns)
    v = act(verb, noun, name_kind(noun)).conjugate("base")
    return fill("{s} should not {v}", "{s} 不 应该 {v}", s=s, v=v)


def tell_skill(rng: Random) -> Phrase:
    """David can play the guitar. 大卫会弹吉他。"""
    s = meet_person(rng)
    can = word("can", "会") if rng.random() < 0.6 else word("cannot", "不 会")
    return fill("{s} {can} {v}", "{s} {can} {v}", s=s, can=can, v=act(pick(rng, SKILLS)).conjugate("base"))


def tell_possibility(rng: Random) -> Phrase:
    """I cannot go to school tomorrow. 我明天不能去学校。"""
    s = meet_person(rng)
    able = rng.random() < 0.4
    deed = travel(rng)
    v, t = deed.conjugate("base"), say_when_planned(rng, deed, 1.0)
    can = word("can", "能") if able else word("cannot", "不 能")
    return fill("{s} {can} {v} {t}", "{s} {t} {can} {v}", s=s, can=can, v=v, t=t)


_PLEASURES = tuple(verb for verb in LEISURE if verb.english != "take a walk")


def tell_pleasure(rng: Random) -> Phrase:
    """Jack likes playing soccer. 杰克喜欢踢足球。"""
    s = meet_person(rng)
    like = word("likes" if s.be == "is" else "like", "喜欢")
    if rng.random() < 0.3:
        like = word(f"{s.do} not like", "不 喜欢")
    deed = do_pleasant_thing(rng)
    return fill("{s} {like} {v}", "{s} {like} {v}", s=s, like=like, v=deed.conjugate("ing"))


def do_pleasant_thing(rng: Random) -> VerbPhrase:
    """Do something people like doing."""
    if rng.random() < 0.5:
        return act(pick(rng, _PLEASURES))
    verb = pick(rng, HABITUAL)
    noun = pick(rng, verb.nouns)
    return act(verb, noun, name_kind(noun))


def tell_duration(rng: Random) -> Phrase:
    """I slept for eight hours last night. 我昨天晚上睡了八个小时。"""
    s = meet_person(rng)
    number, chinese = pick(rng, NUMBERS)
    hours = word(f"for {number} hours", f"{chinese} 个 小时")
    v = act(pick(rng, ENDURING)).conjugate("past", "了")
    return fill("{s} {v} {h} {t}", "{s} {t} {v} {h}", s=s, v=v, h=hours, t=sometimes(rng, 0.7, RECENT))


def tell_errand(rng: Random) -> Phrase:
    """Peter went to the market to buy apples. 彼得去市场买苹果了。"""
    s = meet_person(rng)
    deed = do_usual_thing(rng)
    while not (places := tuple(place for place in deed.verb.places if place in BUILDINGS)):
        deed = do_usual_thing(rng)
    place = pick(rng, places)
    where, v = word(place.to, place.destination), deed.conjugate("base")
    if rng.random() < 0.5:
        when = sometimes(rng, 0.6, RECENT)
        return fill("{s} went {p} to {v} {t}", "{s} {t} 去 {p} {v} 了", s=s, p=where, v=v, t=when)
    when = sometimes(rng, 0.6, SOON)
    return fill("{s} will go {p} to {v} {t}", "{s} {t} 会 去 {p} {v}", s=s, p=where, v=v, t=when)


_MEMORABLE = (
    Verb("eat", "吃", "dumpling hamburger cheese noodles peach sandwich"),
    Verb("drink", "喝", "beer coffee tea juice"),
    Verb("read", "看", "novel book story letter email magazine newspaper"),
    Verb("see", "见", "zoo"),
    Verb("watch", "看", "movie"),
    Verb("use", "用", "device"),
)


def do_memorable_thing(rng: Random) -> VerbPhrase:
    """Do something one may have done once in a lifetime."""
    verb = pick(rng, _MEMORABLE)
    noun = pick(rng, verb.nouns)
    if verb.english in ("read", "watch", "use"):
        return act(verb, noun, point_at(rng, noun))
    return act(verb, noun, doubt(noun) if verb.english == "see" else name_kind(noun))


def tell_experience(rng: Random) -> Phrase:
    """I have been to Paris three times. 我去过巴黎三次。"""
    s = meet_person(rng)
    place = pick(rng, (*CITIES, *COUNTRIES))
    been, have = word(f"been {place.to}", f"去 过 {place.chinese}"), word(s.have)
    chance = rng.random()
    if chance < 0.25:
        return fill("{s} {have} never {v}", "{s} 没 {v}", s=s, have=have, v=been)
    if chance < 0.5:
        number, chinese = pick(rng, NUMBERS[1:5])
        times = word(f"{number} times", f"{chinese} 次")
        return fill("{s} {have} {v} {n}", "{s} {v} {n}", s=s, have=have, v=been, n=times)
    deed = do_memorable_thing(rng)
    never = word("never", "没") if rng.random() < 0.5 else NOTHING
    return fill("{s} {have} {no} {v}", "{s} {no} {v}", s=s, have=have, no=never, v=deed.conjugate("participle", "过"))


_COMPLETED = (
    *NEEDS[1:],
    *(verb for verb in DUTIES if verb.english.startswith("clean")),
    Verb("go home", "回家"),
    Verb("take a bath", "洗澡"),
)


def tell_completion(rng: Random) -> Phrase:
    """Tom has already gone home. 汤姆已经回家了。"""
    s = meet_person(rng)
    deed = act(pick(rng, _COMPLETED))
    v, have = deed.conjugate("participle"), word(s.have)
    if rng.random() < 0.5:
        return fill("{s} {have} already {v}", "{s} 已经 {v} 了", s=s, have=have, v=v)
    return fill("{s} {have} not {v} yet", "{s} 还 没 {v}", s=s, have=have, v=v)
