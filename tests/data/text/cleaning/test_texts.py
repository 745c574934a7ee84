"""What is computed of many texts at once equals what is computed of each text alone."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.cleaning.characters import LETTER, SPACE, mix, tables
from regard.data.text.cleaning.fingerprints import FingerprintMap, FingerprintSet, Sample
from regard.data.text.cleaning.settings import MAX_CHARACTERS
from regard.data.text.cleaning.texts import Texts, Words
from regard.data.text.readers import Pair

TEXTS = st.lists(st.text(st.sampled_from("aB cdé.1我ほ €\u0301"), max_size=12), min_size=1, max_size=8)


@given(TEXTS)
def test_texts_do_not_influence_each_other(texts: list[str]) -> None:
    together = Texts(texts)
    for index, text in enumerate(texts):
        alone = Texts([text])
        assert together.raw_hashes[index] == alone.raw_hashes[0]
        assert together.folded_hashes[index] == alone.folded_hashes[0]
        words = together.words
        assert words.hashes[words.owners == index].tolist() == alone.words.hashes.tolist()
        indices, bounds = together.ngrams
        assert indices[bounds[index] : bounds[index + 1]].tolist() == alone.ngrams[0].tolist()


@given(TEXTS)
def test_characters_are_counted_by_text(texts: list[str]) -> None:
    batch = Texts(texts)
    normal = [unicodedata.normalize("NFC", text) for text in texts]
    letters = [sum(unicodedata.category(c)[0] in "LM" for c in text) for text in normal]
    assert batch.count((batch.flags & LETTER) > 0).tolist() == letters
    assert batch.has(SPACE).tolist() == [" " in text for text in normal]
    assert batch.has_code(ord("€")).tolist() == ["€" in text for text in normal]
    assert batch.lengths.tolist() == [len(text) for text in texts]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Hello, world!", "hello   World", True),
        ("Room 12", "Room 47", True),
        ("Room 12", "Room 123", False),
        ("e\u0301t\u00e9", "\u00e9te\u0301", True),
        ("\uff21\uff22", "ab", True),
        ("ab", "ba", False),
        ("...", "!!!", False),
        ("abc", "abd", False),
    ],
)
def test_folded_texts_have_no_case_punctuation_spaces_and_digits(one: str, other: str, equal: bool) -> None:
    first, second = Texts([one, other]).folded_hashes
    assert bool(first == second) == equal


def test_words_are_runs_of_letters_or_single_characters_of_unspaced_scripts() -> None:
    words = Texts(["don't stop", "", "我爱Python 3", "ไทย", "한국어 책"]).words
    assert words.counts.tolist() == [3, 0, 4, 3, 2]
    assert Texts(["我"]).words.hashes[0] == words.hashes[3]


def test_words_of_some_texts_are_selected_in_the_given_order() -> None:
    words = Texts(["a b", "", "c", "d e f"]).words
    some = words.select(np.array([3, 1, 0]))
    expected = Texts(["d e f", "", "a b"]).words
    assert [part.tolist() for part in some] == [part.tolist() for part in expected]
    both = Words.concatenate([Texts(["a b", ""]).words, Texts(["c", "d e f"]).words])
    assert [part.tolist() for part in both] == [part.tolist() for part in words]


def test_very_long_texts_are_analysed_in_part() -> None:
    texts = Texts(["a" * 3 * MAX_CHARACTERS, "b"])
    assert texts.lengths.tolist() == [3 * MAX_CHARACTERS, 1]
    assert len(texts.codes) == MAX_CHARACTERS + 1


def test_every_code_point_has_a_class_and_a_random_number() -> None:
    assert len(np.unique(tables().random_raw)) == 0x110000
    assert tables().flags[ord("\ufffd")] == tables().flags[0xE000] != 0


@given(st.lists(st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 20), max_size=300), max_size=5))
def test_fingerprint_sets_are_sets(batches: list[list[int]]) -> None:
    found, expected = FingerprintSet(), set[int]()
    for batch in batches:
        keys = np.array(batch, np.uint64)
        assert found.contains(keys).tolist() == [key in expected for key in batch]
        new = []
        for key in batch:
            new.append(key not in expected)
            expected.add(key)
        assert found.add(keys).tolist() == new
    assert found.size == len(expected)


def test_fingerprint_sets_grow_and_stay_compact() -> None:
    found, keys = FingerprintSet(), mix(np.arange(300_000, dtype=np.uint64))
    for part in np.array_split(keys, 30):
        assert found.add(part).all()
    assert found.contains(keys).all()
    assert not found.add(keys[::7]).any()
    assert not found.contains(np.array([5, 2**63 + 1], np.uint64)).any()
    assert found.slots.nbytes < 28 * len(keys)


def test_fingerprint_maps_return_values_and_a_default() -> None:
    keys = np.array([5, 5 + 2**20, 7], np.uint64)
    found = FingerprintMap(keys, np.array([1, 2, 3], np.float32), default=-1)
    assert found.get(np.array([7, 5, 6, 5 + 2**20], np.uint64)).tolist() == [3, 1, -1, 2]


def test_sample_is_bounded_and_does_not_depend_on_the_order() -> None:
    pairs = [Pair(f"source {number}", f"target {number}") for number in range(2000)]
    hashes = Texts([f"{pair.source} {pair.target} {n}" for n, pair in enumerate(pairs)]).raw_hashes
    samples = []
    for order in (range(2000), range(1999, -1, -1)):
        sample = Sample(limit=8000)
        for start in range(0, 2000, 100):
            chosen = list(order)[start : start + 100]
            sample.add([pairs[index] for index in chosen], hashes[chosen])
        assert 2000 < sample.characters <= 8000
        samples.append({pair for part in sample.parts(7) for pair in part})
    assert samples[0] == samples[1]
