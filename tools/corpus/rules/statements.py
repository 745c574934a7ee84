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
    any_phrase,
    choose,
    demonstrative_phrase,
    fill,
    generic_phrase,
    person_object,
    random_other_person,
    random_person,
    sometimes,
    word,
)
from ..verb_phrases import (
    Style,
    VerbPhrase,
    act_on_person,
    action_at_home,
    habitual_action,
    single_action,
    travel,
    verb_phrase,
)


def random_location(rng: Random, action: VerbPhrase, chance: float = 0.35) -> Phrase:
    """Choose a place with the given probability; in Chinese, 在 and the place precede the verb."""
    if not action.verb.where or rng.random() >= chance:
        return NOTHING
    place = choose(rng, action.verb.places)
    return Phrase(place.at, f"在 {place.chinese}")


def past_time(rng: Random, action: VerbPhrase, chance: float = 0.7) -> Bilingual:
    """Choose a time in the past that suits the action."""
    if action.verb.brief:
        return sometimes(rng, chance, JUST_NOW)
    return sometimes(rng, chance, choose(rng, (RECENT, LONG_AGO)) if action.verb.lasting else RECENT)


def future_time(rng: Random, action: VerbPhrase, chance: float = 0.7) -> Bilingual:
    """Choose a time in the future, unless the action is too brief to be planned."""
    if action.verb.brief:
        return NOTHING
    return sometimes(rng, chance, (*SOON, *LATER) if action.verb.lasting else SOON)


def habit_time(rng: Random, action: VerbPhrase) -> Bilingual:
    """Choose a frequency, except "after dinner" for meals."""
    return choose(rng, EVERY if action.verb.english == "eat" else REGULARLY)


def present_tense(action: VerbPhrase, subject: Person) -> Phrase:
    """Conjugate an action in the present tense."""
    return action.conjugate("third" if subject.be == "is" else "base")


def past_action(rng: Random, subject: Person) -> VerbPhrase:
    """Return an action whose past differs from its present."""
    while (action := single_action(rng, subject, "done")).verb.hides_past:
        pass
    return action


def tell_past(rng: Random) -> Phrase:
    """Mary bought two books at the shop yesterday. 玛丽昨天在商店买了两本书。"""
    s = random_person(rng)
    action = past_action(rng, s)
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": action.conjugate("past", "了"),
        "at": random_location(rng, action),
        "t": past_time(rng, action),
    }
    if rng.random() < 0.2:
        return fill("{t} {s} {v} {at}", "{t} {s} {at} {v}", **parts)
    return fill("{s} {v} {at} {t}", "{s} {t} {at} {v}", **parts)


def tell_company(rng: Random) -> Phrase:
    """Tom went to the park with Mary yesterday. 汤姆昨天跟玛丽一起去了公园。"""
    s = random_person(rng)
    action = travel(rng) if rng.random() < 0.5 else verb_phrase(CHAT if rng.random() < 0.2 else choose(rng, LEISURE))
    with_whom = person_object(random_other_person(rng, s))
    if rng.random() < 0.6:
        parts: dict[str, Bilingual] = {
            "v": action.conjugate("past", "了"),
            "t": past_time(rng, action),
            "will": NOTHING,
        }
    else:
        parts = {"v": action.conjugate("base"), "t": future_time(rng, action), "will": word("will", "会")}
    together = word("", "" if action.verb is CHAT else "一起")
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
    s = random_person(rng)
    action = single_action(rng, s, "asked")
    when, at = past_time(rng, action), random_location(rng, action, 0.2)
    return fill("{s} did not {v} {at} {t}", "{s} {t} 没 {at} {v}", s=s, v=action.conjugate("base"), at=at, t=when)


def tell_ongoing(rng: Random) -> Phrase:
    """Anna is reading a novel in the library. 安娜正在图书馆看一本小说。"""
    s = random_person(rng)
    action = single_action(rng, s, "ongoing")
    at = NOTHING
    if action.verb.where and rng.random() < 0.4:
        place = choose(rng, action.verb.places)
        at = word(place.at, place.chinese)
    now = sometimes(rng, 0.15, (NOW,))
    be = word(s.be)
    return fill("{s} {be} {v} {at} {t}", "{s} {t} 正在 {at} {v}", s=s, be=be, v=action.conjugate("ing"), at=at, t=now)


def deny_ongoing(rng: Random) -> Phrase:
    """Tom is not watching television. 汤姆没在看电视。"""
    s = random_person(rng)
    action = action_at_home(rng, doubted=True)
    now = sometimes(rng, 0.2, (NOW,))
    return fill("{s} {be} not {v} {t}", "{s} {t} 没 在 {v}", s=s, be=word(s.be), v=action.conjugate("ing"), t=now)


def present_habit(rng: Random, subject: Person) -> VerbPhrase:
    """Return a habitual action whose present differs from its past."""
    while (action := habitual_action(rng)).verb.hides_past and subject.be != "is":
        pass
    return action


def tell_habit(rng: Random) -> Phrase:
    """My father drinks coffee every morning. 我爸爸每天早上喝咖啡。"""
    s = random_person(rng)
    action = present_habit(rng, s)
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": present_tense(action, s),
        "at": random_location(rng, action),
        "t": habit_time(rng, action),
    }
    return fill("{s} {v} {at} {t}", "{s} {t} {at} {v}", **parts)


def tell_frequency(rng: Random) -> Phrase:
    """Lucy often plays tennis. 露西经常打网球。"""
    s = random_person(rng)
    if rng.random() < 0.2:
        action = verb_phrase(choose(rng, NEEDS[1:]))
        at = random_location(rng, action, 1.0)
    else:
        action = present_habit(rng, s)
        at = random_location(rng, action, 0.25)
    v = present_tense(action, s)
    return fill("{s} {often} {v} {at}", "{s} {often} {at} {v}", s=s, often=choose(rng, OFTEN), v=v, at=at)


def deny_habit(rng: Random) -> Phrase:
    """She does not eat meat. 她不吃肉。"""
    s = random_person(rng)
    action = habitual_action(rng)
    when = sometimes(rng, 0.25, AT_TIMES[:1] if action.verb.english == "eat" else AT_TIMES)
    return fill("{s} {do} not {v} {t}", "{s} {t} 不 {v}", s=s, do=word(s.do), v=action.conjugate("base"), t=when)


def tell_routine(rng: Random) -> Phrase:
    """I get up at seven o'clock every morning. 我每天早上七点起床。"""
    s = random_person(rng)
    verb, part, part_chinese, hours = choose(rng, ROUTINES)
    hour = choose(rng, hours)
    clock = word(f"at {hour} o'clock", f"{'两' if hour == 'two' else NUMERALS[hour]} 点")
    v = present_tense(verb_phrase(verb), s)
    if rng.random() < 0.6:
        return fill(
            "{s} {v} {at} {t}", "{s} {t} {at} {v}", s=s, v=v, at=clock, t=word(f"every {part}", f"每天 {part_chinese}")
        )
    often = choose(rng, OFTEN[1:3])
    t = word(f"in the {part}", part_chinese)
    return fill("{s} {often} {v} {at} {t}", "{s} {often} {t} {at} {v}", s=s, often=often, v=v, at=clock, t=t)


def tell_plan(rng: Random) -> Phrase:
    """Tom will go to Beijing next week. 汤姆下个星期会去北京。"""
    s = random_person(rng)
    action = single_action(rng, s, "planned")
    parts: dict[str, Bilingual] = {
        "s": s,
        "v": action.conjugate("base"),
        "at": random_location(rng, action, 0.25),
        "t": future_time(rng, action),
    }
    parts["will"] = word("will", "会") if rng.random() < 0.6 else word(f"{s.be} going to", "要")
    if rng.random() < 0.2:
        return fill("{t} {s} {will} {v} {at}", "{t} {s} {will} {at} {v}", **parts)
    return fill("{s} {will} {v} {at} {t}", "{s} {t} {will} {at} {v}", **parts)


def deny_plan(rng: Random) -> Phrase:
    """We will not sell this house. 我们不会把这座房子卖掉。"""
    s = random_person(rng)
    action = plannable_action(rng, s)
    when = future_time(rng, action, 0.5)
    return fill("{s} will not {v} {t}", "{s} {t} 不 会 {v}", s=s, v=action.conjugate("base"), t=when)


def plannable_action(rng: Random, subject: Person) -> VerbPhrase:
    """Return an action that can be planned, for negations and questions."""
    action = single_action(rng, subject, "asked")
    while action.verb.momentary or action.verb.brief:
        action = single_action(rng, subject, "asked")
    return action


# English, Chinese; the time and the wish follow.
WISHES = (Verb("want to", "想"), Verb("plan to", "打算"))
_HOPE = Verb("hope to", "希望")


def tell_wish(rng: Random) -> Phrase:
    """Emma wants to buy a new coat tomorrow. 艾玛想明天买一件新大衣。"""
    s = random_person(rng)
    while (action := single_action(rng, s, "planned")).verb.brief:
        pass
    when, at = future_time(rng, action, 0.5), random_location(rng, action, 0.2)
    w = present_tense(verb_phrase(choose(rng, WISHES)), s)
    return fill("{s} {w} {v} {at} {t}", "{s} {w} {t} {at} {v}", s=s, w=w, v=action.conjugate("base"), at=at, t=when)


def tell_hope(rng: Random) -> Phrase:
    """He hopes to go to Beijing next year. 他希望明年能去北京。"""
    s = random_person(rng)
    action = travel(rng) if rng.random() < 0.6 else act_on_person(rng, s, "planned")
    h, when = present_tense(verb_phrase(_HOPE), s), future_time(rng, action, 0.5)
    return fill("{s} {h} {v} {t}", "{s} {h} {t} 能 {v}", s=s, h=h, v=action.conjugate("base"), t=when)


def deny_wish(rng: Random) -> Phrase:
    """She does not want to swim. 她不想游泳。"""
    s = random_person(rng)
    wish, action = verb_phrase(choose(rng, WISHES)), plannable_action(rng, s)
    w, v = wish.conjugate("base"), action.conjugate("base")
    return fill("{s} {do} not {w} {v}", "{s} 不 {w} {v}", s=s, do=word(s.do), w=w, v=v)


_DUTIFUL = tuple(verb for verb in TRANSITIVE if verb.english in ("read", "write", "wash", "bring", "look for", "use"))


def random_duty(rng: Random, subject: Person, style: Style) -> VerbPhrase:
    """Return an action that can be a duty."""
    chance = rng.random()
    if chance < 0.35:
        return verb_phrase(choose(rng, DUTIES))
    if chance < 0.55:
        return travel(rng)
    action = single_action(rng, subject, style)
    while action.verb.momentary or not (action.verb in _DUTIFUL or action.before.startswith(("把", "给"))):
        action = single_action(rng, subject, style)
    return action


def tell_duty(rng: Random) -> Phrase:
    """You must write this letter tomorrow. 你明天必须写这封信。"""
    s = random_person(rng)
    has_to, needs_to = word(f"{s.have} to", "得"), word("needs to" if s.be == "is" else "need to", "需要")
    must = choose(rng, (word("must", "必须"), word("should", "应该"), has_to, needs_to))
    action = random_duty(rng, s, "planned")
    when = future_time(rng, action, 0.4)
    return fill("{s} {must} {v} {t}", "{s} {t} {must} {v}", s=s, must=must, v=action.conjugate("base"), t=when)


def deny_duty(rng: Random) -> Phrase:
    """Peter does not have to go to school tomorrow. 彼得明天不用去学校。"""
    s = random_person(rng)
    action = random_duty(rng, s, "asked")
    when, v = future_time(rng, action, 0.4), action.conjugate("base")
    return fill("{s} {do} not have to {v} {t}", "{s} {t} 不用 {v}", s=s, do=word(s.do), v=v, t=when)


def give_warning(rng: Random) -> Phrase:
    """He should not drink beer. 他不应该喝啤酒。"""
    s = random_person(rng)
    if rng.random() < 0.3:
        v = verb_phrase(choose(rng, LEISURE)).conjugate("base")
        return fill("{s} should not {v} now", "{s} 现在 不 应该 {v}", s=s, v=v)
    verb = choose(rng, HABITUAL[:2])
    noun = choose(rng, verb.nouns)
    v = verb_phrase(verb, noun, generic_phrase(noun)).conjugate("base")
    return fill("{s} should not {v}", "{s} 不 应该 {v}", s=s, v=v)


def tell_skill(rng: Random) -> Phrase:
    """David can play the guitar. 大卫会弹吉他。"""
    s = random_person(rng)
    can = word("can", "会") if rng.random() < 0.6 else word("cannot", "不 会")
    return fill("{s} {can} {v}", "{s} {can} {v}", s=s, can=can, v=verb_phrase(choose(rng, SKILLS)).conjugate("base"))


def tell_possibility(rng: Random) -> Phrase:
    """I cannot go to school tomorrow. 我明天不能去学校。"""
    s = random_person(rng)
    able = rng.random() < 0.4
    action = travel(rng)
    v, t = action.conjugate("base"), future_time(rng, action, 1.0)
    can = word("can", "能") if able else word("cannot", "不 能")
    return fill("{s} {can} {v} {t}", "{s} {t} {can} {v}", s=s, can=can, v=v, t=t)


_PLEASURES = tuple(verb for verb in LEISURE if verb.english != "take a walk")


def tell_pleasure(rng: Random) -> Phrase:
    """Jack likes playing soccer. 杰克喜欢踢足球。"""
    s = random_person(rng)
    like = word("likes" if s.be == "is" else "like", "喜欢")
    if rng.random() < 0.3:
        like = word(f"{s.do} not like", "不 喜欢")
    action = random_pleasure(rng)
    return fill("{s} {like} {v}", "{s} {like} {v}", s=s, like=like, v=action.conjugate("ing"))


def random_pleasure(rng: Random) -> VerbPhrase:
    """Return an action that people like."""
    if rng.random() < 0.5:
        return verb_phrase(choose(rng, _PLEASURES))
    verb = choose(rng, HABITUAL)
    noun = choose(rng, verb.nouns)
    return verb_phrase(verb, noun, generic_phrase(noun))


def tell_duration(rng: Random) -> Phrase:
    """I slept for eight hours last night. 我昨天晚上睡了八个小时。"""
    s = random_person(rng)
    number, chinese = choose(rng, NUMBERS)
    hours = word(f"for {number} hours", f"{chinese} 个 小时")
    v = verb_phrase(choose(rng, ENDURING)).conjugate("past", "了")
    return fill("{s} {v} {h} {t}", "{s} {t} {v} {h}", s=s, v=v, h=hours, t=sometimes(rng, 0.7, RECENT))


def tell_errand(rng: Random) -> Phrase:
    """Peter went to the market to buy apples. 彼得去市场买苹果了。"""
    s = random_person(rng)
    action = habitual_action(rng)
    while not (places := tuple(place for place in action.verb.places if place in BUILDINGS)):
        action = habitual_action(rng)
    place = choose(rng, places)
    where, v = word(place.to, place.destination), action.conjugate("base")
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


def random_experience(rng: Random) -> VerbPhrase:
    """Return an action that a person may have done once in their life."""
    verb = choose(rng, _MEMORABLE)
    noun = choose(rng, verb.nouns)
    if verb.english in ("read", "watch", "use"):
        return verb_phrase(verb, noun, demonstrative_phrase(rng, noun))
    return verb_phrase(verb, noun, any_phrase(noun) if verb.english == "see" else generic_phrase(noun))


def tell_experience(rng: Random) -> Phrase:
    """I have been to Paris three times. 我去过巴黎三次。"""
    s = random_person(rng)
    place = choose(rng, (*CITIES, *COUNTRIES))
    been, have = word(f"been {place.to}", f"去 过 {place.chinese}"), word(s.have)
    chance = rng.random()
    if chance < 0.25:
        return fill("{s} {have} never {v}", "{s} 没 {v}", s=s, have=have, v=been)
    if chance < 0.5:
        number, chinese = choose(rng, NUMBERS[1:5])
        times = word(f"{number} times", f"{chinese} 次")
        return fill("{s} {have} {v} {n}", "{s} {v} {n}", s=s, have=have, v=been, n=times)
    action = random_experience(rng)
    never = word("never", "没") if rng.random() < 0.5 else NOTHING
    return fill("{s} {have} {no} {v}", "{s} {no} {v}", s=s, have=have, no=never, v=action.conjugate("participle", "过"))


_COMPLETED = (
    *NEEDS[1:],
    *(verb for verb in DUTIES if verb.english.startswith("clean")),
    Verb("go home", "回家"),
    Verb("take a bath", "洗澡"),
)


def tell_completion(rng: Random) -> Phrase:
    """Tom has already gone home. 汤姆已经回家了。"""
    s = random_person(rng)
    action = verb_phrase(choose(rng, _COMPLETED))
    v, have = action.conjugate("participle"), word(s.have)
    if rng.random() < 0.5:
        return fill("{s} {have} already {v}", "{s} 已经 {v} 了", s=s, have=have, v=v)
    return fill("{s} {have} not {v} yet", "{s} 还 没 {v}", s=s, have=have, v=v)
