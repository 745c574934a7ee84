from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import plan_packed, plan_padded

PLANS = {"padded": plan_padded, "packed": plan_packed}


lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


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


def test_a_packed_batch_has_no_more_sentences_than_asked_for() -> None:
    source = np.random.default_rng(0).integers(1, 5, 300)
    batches = plan_packed(source, source, 100, np.random.default_rng(0), sentences=7)
    assert {len(batch) for batch in batches[:-1]} == {7}
    assert sorted(i for batch in batches for i in batch) == list(range(300))
