from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.batching import ParallelTokens, Ragged, plan_packed, plan_padded
from regard.text.pair import Pair
from regard.text.tokenizer import Tokenizer

ROWS = [[5, 6, 7], [], [8], [9, 10]]
PLANS = {"padded": plan_padded, "packed": plan_packed}


def rows_of(ragged: Ragged) -> list[list[int]]:
    return [ragged.tokens[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


rows = st.lists(st.lists(st.integers(1, 99), max_size=6), max_size=8)
lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


# Ragged


def test_rows_lie_end_to_end() -> None:
    ragged = Ragged.of(ROWS)
    assert ragged.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert ragged.offsets.tolist() == [0, 3, 3, 4, 6]
    assert ragged.lengths.tolist() == [3, 0, 1, 2]
    assert len(ragged) == 4


@given(rows, st.data())
def test_taken_rows_are_those_asked_for_in_their_order(given_rows: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(given_rows) - 1), max_size=10)) if given_rows else []
    taken = Ragged.of(given_rows).take(np.array(places, np.int64))
    assert rows_of(taken) == [given_rows[i] for i in places]


@given(rows)
def test_padded_rows_are_filled_up_at_the_end(given_rows: list[list[int]]) -> None:
    table = Ragged.of(given_rows).padded(0)
    longest = max(map(len, given_rows), default=0)
    assert table.shape == (len(given_rows), longest)
    assert table.tolist() == [row + [0] * (longest - len(row)) for row in given_rows]


def test_padding_is_the_asked_for_number() -> None:
    assert Ragged.of([[1], [2, 3]]).padded(7).tolist() == [[1, 7], [2, 3]]


@given(st.lists(rows, max_size=4))
def test_joined_parts_follow_each_other(parts: list[list[list[int]]]) -> None:
    joined = Ragged.join([Ragged.of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in part]


# ParallelTokens


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three four five"] * 3, 300, "word")


def test_the_source_ends_with_end_and_the_target_stands_between_begin_and_end(tokenizer: Tokenizer) -> None:
    tokens = ParallelTokens.encode([Pair("one two", "three")], tokenizer, tokenizer)
    assert rows_of(tokens.source) == [[*tokenizer.encode("one two"), tokenizer.EOS]]
    assert rows_of(tokens.target) == [[tokenizer.BOS, *tokenizer.encode("three"), tokenizer.EOS]]


def test_pairs_with_an_empty_side_or_too_many_tokens_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    pairs = [
        Pair("one", "two"),
        Pair("", "two"),
        Pair("one", " \t"),
        Pair("", ""),
        Pair("one two three", "one"),
        Pair("one", "one two three"),
        Pair("three", "four five"),
    ]
    tokens = ParallelTokens.encode(pairs, tokenizer, tokenizer, longest=3)
    assert len(tokens) == 2
    assert (tokens.skipped_empty, tokens.skipped_long) == (3, 2)
    assert rows_of(tokens.source)[1] == [*tokenizer.encode("three"), tokenizer.EOS]


def test_no_pair_is_too_long_without_a_limit(tokenizer: Tokenizer) -> None:
    tokens = ParallelTokens.encode([Pair("one " * 999, "two")], tokenizer, tokenizer)
    assert (len(tokens), tokens.skipped_long) == (1, 0)
    assert tokens.source.lengths[0] > 999


def test_no_pairs_at_all_are_an_empty_corpus(tokenizer: Tokenizer) -> None:
    assert len(ParallelTokens.encode([], tokenizer, tokenizer)) == 0


def test_more_pairs_than_a_chunk_stay_in_order(tokenizer: Tokenizer) -> None:
    words = ["one", "two", "three", "four", "five"]
    pairs = [Pair(words[i % 5], words[i % 3]) for i in range(10_007)]
    tokens = ParallelTokens.encode(pairs, tokenizer, tokenizer)
    assert len(tokens) == 10_007
    for i in (0, 9_999, 10_000, 10_006):
        assert rows_of(tokens.source.take(np.array([i])))[0][:-1] == tokenizer.encode(pairs[i].source)
        assert rows_of(tokens.target.take(np.array([i])))[0][1:-1] == tokenizer.encode(pairs[i].target)


# Plans of an epoch


@pytest.mark.parametrize("name", PLANS)
@given(pairs=lengths, tokens=st.integers(1, 120), seed=st.integers(0, 9))
def test_a_plan_holds_every_sentence_once_and_no_batch_is_too_large(
    name: str, pairs: list[tuple[int, int]], tokens: int, seed: int
) -> None:
    source, target = np.array(pairs).T
    batches = PLANS[name](source, target, tokens, np.random.default_rng(seed))
    assert Counter(int(i) for batch in batches for i in batch) == Counter(range(len(pairs)))
    for batch in batches:
        for side in (source[batch], target[batch]):
            places = len(batch) * side.max() if name == "padded" else side.sum()
            assert places <= tokens or len(batch) == 1


@pytest.mark.parametrize("name", PLANS)
def test_a_sentence_longer_than_a_batch_has_one_to_itself(name: str) -> None:
    source, target = np.array([3, 500, 4, 3]), np.array([3, 2, 4, 3])
    batches = PLANS[name](source, target, 40, np.random.default_rng(0))
    (alone,) = [batch for batch in batches if 1 in batch]
    assert alone.tolist() == [1]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_a_function_of_the_seed(name: str) -> None:
    source = np.random.default_rng(0).integers(1, 30, 200)

    def plan(seed: int) -> list[list[int]]:
        return [batch.tolist() for batch in PLANS[name](source, source, 100, np.random.default_rng(seed))]

    assert plan(1) == plan(1) != plan(2)


@pytest.mark.parametrize("name", PLANS)
def test_batches_are_well_filled(name: str) -> None:
    source = np.random.default_rng(0).integers(1, 30, 2000)
    batches = PLANS[name](source, source, 500, np.random.default_rng(0))
    assert source.sum() / (500 * len(batches)) > 0.85


@pytest.mark.parametrize("name", PLANS)
def test_nothing_to_plan_is_no_batch(name: str) -> None:
    nothing = np.array([], np.int64)
    assert PLANS[name](nothing, nothing, 100, np.random.default_rng(0)) == []
