"""The built-in corpus: its size, its balance, its splits, and that every English sentence has one translation."""

import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from regard.data.builtin.grammar import SHOWN, Derivation, Pair, corpus, derive, is_withheld, sentence
from regard.data.builtin.grammar.deeds import handle
from regard.data.builtin.grammar.english import inflect
from regard.data.builtin.grammar.lexicon.adjectives import COLORS, QUALITIES
from regard.data.builtin.grammar.lexicon.nouns import BY_NAME
from regard.data.builtin.grammar.lexicon.people import COUPLES, FAMILY, NAMES, PRONOUNS
from regard.data.builtin.grammar.lexicon.times import RECENT


@pytest.fixture(scope="module")
def train() -> list[Derivation]:
    return derive("train")


@pytest.fixture(scope="module")
def valid() -> list[Derivation]:
    return derive("valid")


@pytest.fixture(scope="module")
def test() -> list[Derivation]:
    return derive("test")


def split_words(source: str) -> list[str]:
    return re.findall(r"[a-z'-]+", source.lower())


def test_default_sizes_and_distinct_sentences(train, valid, test):
    assert [len(split) for split in (train, valid, test)] == [40_000, 1_000, 1_000]
    for split in (train, valid, test):
        assert len({derivation.key for derivation in split}) == len(split)


def test_the_same_english_always_has_the_same_chinese():
    rng = random.Random(7)
    translations: dict[str, str] = {}
    for _ in range(200_000):
        derivation = sentence(rng)
        target = derivation.pair.target.rstrip("。？")
        assert translations.setdefault(derivation.key, target) == target, derivation.pair
    assert len(translations) > 140_000


def test_splits_share_no_sentence(train, valid, test):
    keys = [{derivation.key for derivation in split} for split in (train, valid, test)]
    assert keys[0].isdisjoint(keys[1]) and keys[0].isdisjoint(keys[2]) and keys[1].isdisjoint(keys[2])
    other_seed = {derivation.key for derivation in derive("train", 5_000, seed=1)}
    assert other_seed.isdisjoint(keys[1]) and other_seed.isdisjoint(keys[2])


def test_smaller_corpus_is_a_prefix_of_a_larger_one(train, test):
    assert corpus("train", 100) == [derivation.pair for derivation in train[:100]]
    assert corpus("test", 50) == [derivation.pair for derivation in test[:50]]
    assert corpus("valid", 0) == []


def test_another_process_draws_the_same_corpus():
    program = (
        "import zlib; from regard.data.builtin.grammar import corpus; "
        "print(zlib.crc32(repr(corpus('test', 200)).encode()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_the_shown_sentence_is_in_training_only(train, valid, test):
    assert train[0].pair == Pair("I love apples", "我喜欢苹果")
    assert all(derivation.key != SHOWN.key for split in (train[1:], valid, test) for derivation in split)
    rng, drawn = random.Random(0), None
    while drawn is None or drawn.key != SHOWN.key:
        drawn = sentence(rng)
    assert drawn.pair.target.rstrip("。") == "我喜欢苹果"
    assert drawn.combinations == SHOWN.combinations


def test_capitals_and_final_marks_agree(train):
    unmarked = 0
    for source, target in (derivation.pair for derivation in train):
        assert source[0].isupper() and "  " not in source and " ," not in source
        assert not re.search(r"[\s.,?]", target)
        mark = source[-1] if source[-1] in ".?" else ""
        assert (target[-1] if target[-1] in "。？" else "") == {".": "。", "?": "？", "": ""}[mark]
        unmarked += not mark
    assert 0.2 < unmarked / len(train) < 0.3


def test_lengths(train):
    lengths = [len(derivation.pair.source.split()) for derivation in train]
    assert sum(3 <= length <= 18 for length in lengths) / len(lengths) > 0.99


def test_every_word_is_met_often(train):
    english = Counter(word for derivation in train for word in split_words(derivation.pair.source))
    chinese = Counter(word for derivation in train for word in derivation.words)
    assert len(english) >= 300 and len(chinese) >= 300
    assert [word for word, times in chinese.items() if times < 30] == []
    assert [word for word, times in english.items() if times < 20] == []
    assert sum(times >= 30 for times in english.values()) > 0.95 * len(english)


def test_there_are_millions_of_sentences():
    # "Tom bought two books yesterday": subject, verb phrase and time are chosen freely of one another, and since no
    # subject ends, and no time begins, inside a verb phrase, different choices make different sentences.
    rng = random.Random(0)
    speaker = PRONOUNS[0]
    deeds = {handle(rng, speaker, "done").conjugate("past", "了").english for _ in range(40_000)}
    deeds = {deed for deed in deeds if "read" not in deed and " my " not in deed and "'s" not in deed}
    subjects = {person.english for person in (*PRONOUNS, *NAMES, *FAMILY, *COUPLES)}
    times = {time.english for time in RECENT}
    assert len(deeds) * len(subjects) * len(times) > 5_000_000


def test_novel_sentences_are_in_the_test_split_only(train, valid, test):
    assert not any(derivation.novel for derivation in train + valid)
    assert 0.2 < sum(derivation.novel for derivation in test) / len(test) < 0.4


def test_withheld_combinations_are_not_read_in_training(train, test):
    # Looks at the text rather than at what the derivation says of itself.
    text = "\n".join(derivation.pair.source.lower() for derivation in train)
    withheld = {combination for derivation in test for combination in derivation.combinations}
    adjectives = {adjective.english for adjective in (*QUALITIES, *COLORS)}
    for combination in filter(is_withheld, withheld):
        first, noun_name = combination.rsplit(" ", 1)
        noun = BY_NAME[noun_name]
        noun_forms = f"(?:{noun.english}|{noun.plural})"
        if first in adjectives:
            pattern = rf"\b{first} {noun_forms}\b|\bthe {noun_forms} (?:is|are) (?:not |very |too )?{first}\b"
        else:
            pattern = rf"\b(?:{'|'.join(inflect(first))}) (?:(?:a|an|the|any|some|two|this|that) )?{noun_forms}\b"
        assert not re.search(pattern, text), (combination, re.search(pattern, text))


def test_the_parts_of_withheld_combinations_are_frequent_in_training(train, test):
    parts = Counter(part for derivation in train for met in derivation.combinations for part in met.rsplit(" ", 1))
    withheld = {met for derivation in test for met in derivation.combinations if is_withheld(met)}
    assert len(withheld) >= 40
    assert all(parts[part] >= 30 for met in withheld for part in met.rsplit(" ", 1))


def find(train: list[Derivation], pattern: str) -> list[Pair]:
    return [derivation.pair for derivation in train if re.search(pattern, derivation.pair.source)]


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (r"\btwo cats\b", "两只猫"),
        (r"\ba cup of tea\b", "杯茶"),
        (r"^There are two trees", "有两棵树"),
        (r"\bis wearing a hat\b", "戴着一顶帽子"),
        (r"\bis wearing a coat\b", "穿着一件大衣"),
        (r"^Because .* was hungry, ", "所以"),
        (r"^If it rains", "如果"),
        (r"\bmuch taller than\b", "高得多"),
        (r"\bnot as tall as\b", "没有"),
        (r"\bas tall as\b", "高"),
        (r"\bhas never been to Paris\b", "没去过巴黎"),
        (r"\bdid not (?:eat|buy|drink) any\b", "没"),
        (r"\bclosed the door\b", "把门关上了"),
        (r"^How many .* did ", "几"),
        (r"^How much ", "多少钱"),
        (r"^Where did .* buy", "是在哪里买的"),
        (r"\bcan swim\b", "会游泳"),
        (r"\bis not (?:interesting|useful|polite)\b", "没有"),
        (r"^Let's ", "吧"),
    ],
)
def test_phrases_are_rendered(train, english, chinese):
    pairs = find(train, english)
    assert pairs
    assert all(chinese in target for _, target in pairs), next(pair for pair in pairs if chinese not in pair.target)


def test_chinese_avoids_common_mistakes(train):
    wrong = re.compile(
        "不有|二[个只本杯条]|的的|了了|正在在|大大象|穿着[^，]*(?:帽子|手表|围巾|眼镜|手套)|戴着[^，]*(?:大衣|鞋)"
    )
    assert [derivation.pair for derivation in train if wrong.search(derivation.pair.target)] == []


def test_english_avoids_common_mistakes(train):
    wrong = re.compile(
        r"\ba (?:[aeio]|umb)|\ban [^aeiou]|^I (?:is|are|has)\b|^(?:He|She) (?:are|have|do)\b|\b\w+ed \w+ed\b"
    )
    assert [derivation.pair for derivation in train if wrong.search(derivation.pair.source)] == []
