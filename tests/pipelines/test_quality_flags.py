"""Flags of translations: repetition, missing numbers and missing names."""

import pytest

from regard.pipelines.confidence import CopiedWords
from regard.pipelines.numbers import missing_numbers
from regard.pipelines.quality_flags import find_flags, find_repetition, learn_copied_words, name_candidates


@pytest.mark.parametrize(
    ("source", "translation", "phrase"),
    [
        ("The dog runs.", "Der Hund der Hund der Hund läuft.", "Der Hund"),
        ("He came home late.", "Er kam spät nach Hause, er kam spät nach Hause.", "Er kam spät nach Hause"),
        ("I love apples", "我喜欢苹果我喜欢苹果", "我喜欢苹果"),
        ("no", "nein nein nein nein", "nein"),
        ("I do.", "Ja, das tue ich. Ja, das tue ich.", "Ja, das tue ich."),
    ],
)
def test_repeated_phrases_are_found(source: str, translation: str, phrase: str) -> None:
    assert find_repetition(source, translation) == phrase
    assert find_flags(source, translation) == {"repetition": phrase}


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("Der Hund der Hund der Hund läuft.", "The dog the dog the dog runs."),
        ("ha ha ha ha", "哈哈哈哈"),
        ("Have a look.", "看看。"),
        ("He had had enough.", "He had had enough."),
        ("Wait... stop!!!", "Warte... halt!!!"),
        ("See the context menu. It is new.", "见上下文菜单。上下文菜单是新的。"),
        ("", ""),
    ],
)
def test_repetitions_of_the_source_and_short_ones_are_accepted(source: str, translation: str) -> None:
    assert find_flags(source, translation) == {}


@pytest.mark.parametrize(
    ("source", "translation", "missing"),
    [
        ("I have 42 apples.", "Ich habe Äpfel.", ["42"]),
        ("Call 555 and 556.", "Ruf 555 an.", ["556"]),
        ("1,000 people in 3 cities", "1.000 Menschen in drei Städten", []),
        ("3.5 million", "350万", []),
        ("10,000 men", "一万人", []),
        ("in 1990", "一九九〇年", []),
        ("320 cats", "三百二十只猫", []),
        ("at 3 pm", "um 15 Uhr", []),
        ("at 3 dogs", "um 15 Hunde", ["3"]),
        ("２５ 人", "25 people", []),
        ("page 20", "Seite 200", ["20"]),
        ("no numbers", "keine 5", []),
        ("in 25 days", "in fünfundzwanzig Tagen", []),
        ("120 people", "hundertzwanzig Leute", []),
        ("since 1970", "seit Neunzehnhundertsiebzig", []),
        ("wegen 2345 Euro", "two thousand three hundred forty-five euros", []),
        ("103,000 km", "103 000 km", []),
        ("at 2:30", "um halb drei", []),
        ("at 7:00", "早上七点", []),
        ("$3.00", "3美元", []),
        ("2 or 3 years", "两三年", []),
        ("25 days", "fünf Tage", ["25"]),
        ("2013年10月20日", "October 20, 2013", []),
        ("2013年10月20日", "November 20, 2013", ["10"]),
        ("10亿日元", "a billion yen", []),
        ("um 6.30 Uhr", "at 6:30", []),
        ("um 6.30 Uhr", "at 6:45", ["6.30"]),
        ("a check of 1,843,500 dollars", "1，843，500美元的支票", []),
        ("20世纪80年代", "the 1980s", []),
        ("20世纪70年代", "the 1980s", ["70"]),
    ],
)
def test_missing_numbers(source: str, translation: str, missing: list[str]) -> None:
    assert missing_numbers(source, translation) == missing


def test_name_candidates_have_kinds() -> None:
    assert list(name_candidates("Yesterday Tom bought a USB stick. Mary did not see HTML5.")) == [
        ("capitalised", "Tom"),
        ("code", "USB"),
        ("code", "HTML5"),
    ]
    assert list(name_candidates("我用 Python 写代码")) == [("foreign", "Python")]
    assert list(name_candidates("The Wind In The Willows")) == []  # a title: capital letters mean nothing
    assert list(name_candidates("a sentence without names")) == []


SOURCES = [
    "we saw Tom in London",
    "a friend of Tom and Ann",
    "he met Bill on Monday",
    "with Eve, Joe and Max on Monday",
    "the dogs of Kim, Lee and Pia",
]
INFLECTED = [("der Hand", "the hand"), ("eine Hand", "a hand"), ("seine Hand", "his hand"), ("Eves Hund", "Eve's dog")]
COPIES = [
    "wir sahen Tom in London",
    "ein Freund von Tom und Ann",
    "er traf Bill am Montag",
    "mit Eve, Joe und Max am M.",
    "die Hunde von Kim, Lee und Pia",
]


def test_names_are_expected_if_references_copy_them() -> None:
    names = learn_copied_words(SOURCES, COPIES)
    assert names == CopiedWords(kinds=("capitalised",), copied=("tom",), exceptions=("monday",))
    assert find_flags("I saw Zoe", "ich sah sie", names) == {"missing-name": "Zoe"}
    assert find_flags("I saw Zoe on Monday", "ich sah Zoe am Montag", names) == {}
    assert find_flags("I saw Zoe", "ich sah sie") == {}


def test_words_in_lower_case_are_not_copies() -> None:
    assert learn_copied_words(*zip(*INFLECTED, strict=True)).copied == ()


def test_names_are_not_expected_if_references_transliterate_them() -> None:
    names = learn_copied_words(SOURCES, ["汤姆在伦敦", "汤姆和安的朋友", "遇到了比尔", "和伊芙", "金的狗"])
    assert names.kinds == ()
    assert find_flags("I saw Tom", "我看见了汤姆", names) == {}
