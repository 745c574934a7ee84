"""English inflection: spelling rules and irregular words."""

from typing import NamedTuple

# base: (past, participle)
IRREGULAR_VERBS = {
    "break": ("broke", "broken"),
    "bring": ("brought", "brought"),
    "buy": ("bought", "bought"),
    "chat": ("chatted", "chatted"),
    "come": ("came", "come"),
    "draw": ("drew", "drawn"),
    "drink": ("drank", "drunk"),
    "drive": ("drove", "driven"),
    "eat": ("ate", "eaten"),
    "find": ("found", "found"),
    "get": ("got", "got"),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "have": ("had", "had"),
    "know": ("knew", "known"),
    "lose": ("lost", "lost"),
    "meet": ("met", "met"),
    "read": ("read", "read"),
    "ride": ("rode", "ridden"),
    "run": ("ran", "run"),
    "see": ("saw", "seen"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "sing": ("sang", "sung"),
    "sleep": ("slept", "slept"),
    "speak": ("spoke", "spoken"),
    "swim": ("swam", "swum"),
    "take": ("took", "taken"),
    "teach": ("taught", "taught"),
    "tell": ("told", "told"),
    "wear": ("wore", "worn"),
    "write": ("wrote", "written"),
}
IRREGULAR_THIRD = {"have": "has", "go": "goes"}
DOUBLED_BEFORE_ING = {"chat": "chatting", "get": "getting", "run": "running", "swim": "swimming"}
IRREGULAR_PLURALS = {
    "child": "children",
    "fish": "fish",
    "knife": "knives",
    "potato": "potatoes",
    "scarf": "scarves",
    "tomato": "tomatoes",
}


class VerbForms(NamedTuple):
    """The five forms of an English verb."""

    base: str
    third: str
    past: str
    participle: str
    ing: str


def _ends_in_consonant_and_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def add_s(word: str) -> str:
    """Add the ending -s of a plural or of the third person."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if _ends_in_consonant_and_y(word) else word + "s"


def add_ed(word: str) -> str:
    """Add the ending -ed of the regular past."""
    if word.endswith("e"):
        return word + "d"
    return word[:-1] + "ied" if _ends_in_consonant_and_y(word) else word + "ed"


def add_ing(word: str) -> str:
    """Add the ending -ing of the progressive."""
    if word in DOUBLED_BEFORE_ING:
        return DOUBLED_BEFORE_ING[word]
    return (word[:-1] if word.endswith("e") and not word.endswith("ee") else word) + "ing"


def form_plural(noun: str) -> str:
    """Return the plural of a noun; its last word is inflected."""
    return IRREGULAR_PLURALS.get(noun) or add_s(noun)


def inflect(verb: str) -> VerbForms:
    """Inflect a verb such as "look for"; its first word is inflected."""
    head, space, tail = verb.partition(" ")
    past, participle = IRREGULAR_VERBS.get(head) or (add_ed(head), add_ed(head))
    third = IRREGULAR_THIRD.get(head) or add_s(head)
    return VerbForms(*(form + space + tail for form in (head, third, past, participle, add_ing(head))))


def add_article(words: str) -> str:
    """Put "a" or "an" before the words."""
    begins_with_vowel = words[0] in "aeiou" and not words.startswith("uni")
    return f"{'an' if begins_with_vowel else 'a'} {words}"
