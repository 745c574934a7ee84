"""The generator of the built-in corpus: reproducible, balanced, and with one translation for every English sentence."""

import io
import lzma
import random
import re
from collections import Counter

import pytest

from regard.data.builtin.corpus import PATH
from regard.data.text.readers import Pair
from tools.corpus import APPLES, Derivation, derive, is_withheld, sentence, write_corpus
from tools.corpus.english import inflect
from tools.corpus.lexicon.adjectives import COLORS, QUALITIES
from tools.corpus.lexicon.nouns import BY_NAME
from tools.corpus.lexicon.people import COUPLES, FAMILY, NAMES, PRONOUNS
from tools.corpus.lexicon.times import RECENT
from tools.corpus.verb_phrases import act_on_thing


@pytest.fixture(scope="module")
def train() -> list[Derivation]:
    return derive("train")


@pytest.fixture(scope="module")
def test() -> list[Derivation]:
    return derive("test")


def split_words(source: str) -> list[str]:
    return re.findall(r"[a-z'-]+", source.lower())


def test_the_generator_reproduces_the_data_file():
    file = io.StringIO(newline="\n")
    write_corpus(file)
    assert file.getvalue().encode() == lzma.decompress(PATH.read_bytes())


def test_the_same_english_always_has_the_same_chinese():
    rng = random.Random(7)
    translations: dict[str, str] = {}
    for _ in range(100_000):
        derivation = sentence(rng)
        target = derivation.pair.target.rstrip("。？")
        assert translations.setdefault(derivation.key, target) == target, derivation.pair
    assert len(translations) > 70_000


def test_another_seed_does_not_draw_test_sentences(test):
    keys = {derivation.key for derivation in test}
    assert keys.isdisjoint(derivation.key for derivation in derive("train", 5_000, seed=1))


def test_the_first_sentence_can_be_generated():
    rng, drawn = random.Random(0), None
    while drawn is None or drawn.key != APPLES.key:
        drawn = sentence(rng)
    assert drawn.pair.target.rstrip("。") == "我喜欢苹果"
    assert drawn.combinations == APPLES.combinations


def test_capitals_and_final_marks_agree(train):
    unmarked = 0
    for source, target in (derivation.pair for derivation in train):
        assert source[0].isupper() and "  " not in source and " ," not in source
        assert not re.search(r"[\s.,?]", target)
        mark = source[-1] if source[-1] in ".?" else ""
        assert (target[-1] if target[-1] in "。？" else "") == {".": "。", "?": "？", "": ""}[mark]
        unmarked += not mark
    assert 0.2 < unmarked / len(train) < 0.3


def test_sentences_are_short(train):
    lengths = [len(derivation.pair.source.split()) for derivation in train]
    assert sum(3 <= length <= 18 for length in lengths) / len(lengths) > 0.99


def test_every_word_is_frequent(train):
    english = Counter(word for derivation in train for word in split_words(derivation.pair.source))
    chinese = Counter(word for derivation in train for word in derivation.words)
    assert len(english) >= 300 and len(chinese) >= 300
    assert [word for word, times in chinese.items() if times < 30] == []
    assert [word for word, times in english.items() if times < 20] == []
    assert sum(times >= 30 for times in english.values()) > 0.95 * len(english)


def test_the_grammar_generates_millions_of_sentences():
    # "Tom bought two books yesterday": subject, verb phrase and time are independent. No subject ends and no time
    # begins inside a verb phrase, so that different choices give different sentences.
    rng = random.Random(0)
    speaker = PRONOUNS[0]
    phrases = {act_on_thing(rng, speaker, "done").conjugate("past", "了").english for _ in range(40_000)}
    phrases = {phrase for phrase in phrases if "read" not in phrase and " my " not in phrase and "'s" not in phrase}
    subjects = {person.english for person in (*PRONOUNS, *NAMES, *FAMILY, *COUPLES)}
    times = {time.english for time in RECENT}
    assert len(phrases) * len(subjects) * len(times) > 5_000_000


def test_withheld_combinations_do_not_occur_in_training_text(train, test):
    # Searches the text instead of relying on the combinations that a derivation lists.
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


def test_the_words_of_withheld_combinations_are_frequent_in_training(train, test):
    counts = Counter(word for derivation in train for pair in derivation.combinations for word in pair.rsplit(" ", 1))
    withheld = {pair for derivation in test for pair in derivation.combinations if is_withheld(pair)}
    assert len(withheld) >= 40
    assert all(counts[word] >= 30 for pair in withheld for word in pair.rsplit(" ", 1))


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
def test_phrases_have_the_expected_translation(train, english, chinese):
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
