"""The built-in corpus: sizes, splits, words and novel sentences of the data file."""

import re

import pytest

from regard.data.builtin.corpus import Example, load_examples, load_pairs
from regard.data.text.readers import Pair


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Example]]:
    return {split: load_examples(split) for split in ("train", "valid", "test")}


def key(example: Example) -> str:
    return example.pair.source.rstrip(".?").lower()


def test_sizes_of_the_splits(splits):
    assert {split: len(examples) for split, examples in splits.items()} == {
        "train": 40_064,
        "valid": 1_000,
        "test": 1_000,
    }


def test_sentences_are_distinct_within_and_across_splits(splits):
    keys = [key(example) for examples in splits.values() for example in examples]
    assert len(set(keys)) == len(keys)


def test_the_documented_sentences_open_the_training_split():
    assert load_pairs("train", 3) == [
        Pair("I love apples", "我喜欢苹果"),
        Pair("I am human", "我是人类"),
        Pair("I am a human.", "我是人类。"),
    ]


def test_a_size_selects_the_first_examples(splits):
    assert load_examples("test", 50) == splits["test"][:50]
    assert load_pairs("train", 100) == [example.pair for example in splits["train"][:100]]
    assert load_pairs("valid", 0) == []


def test_words_form_the_target_sentence(splits):
    for example in splits["test"]:
        assert "".join(example.words) == example.pair.target
        assert example.words[-1] in "。？" or not re.search("[。？]", example.pair.target)


def test_novel_sentences_are_in_the_test_split_only(splits):
    assert not any(example.novel for example in splits["train"] + splits["valid"])
    assert 0.2 < sum(example.novel for example in splits["test"]) / len(splits["test"]) < 0.4
