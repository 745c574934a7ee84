"""Batch plans and the order of an epoch."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batching import EpochOrder, plan_packed, plan_padded, prefetch_iterator, shuffle
from regard.data.images.preprocessing import prefetch

PLANS = {"padded": plan_padded, "packed": plan_packed}

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4)
weights = st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0])


def keys(number: int) -> np.ndarray:
    return np.array([number], np.uint64)


def epoch_of(order: EpochOrder, epoch: int) -> list[int]:
    return [int(row) for window in range(order.windows) for row in order.rows(epoch, window)]


@pytest.mark.parametrize("name", PLANS)
@given(pairs=lengths, tokens=st.integers(1, 120), seed=st.integers(0, 9))
def test_a_plan_contains_every_pair_once_and_no_batch_is_too_large(
    name: str, pairs: list[tuple[int, int]], tokens: int, seed: int
) -> None:
    source, target = np.array(pairs).T
    batches = PLANS[name](source, target, tokens, np.random.default_rng(seed))
    assert Counter(int(i) for batch in batches for i in batch) == Counter(range(len(pairs)))
    for batch in batches:
        for side in (source[batch], target[batch]):
            positions = len(batch) * side.max() if name == "padded" else side.sum()
            assert positions <= tokens or len(batch) == 1


@pytest.mark.parametrize("name", PLANS)
def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own(name: str) -> None:
    source, target = np.array([3, 500, 4, 3]), np.array([3, 2, 4, 3])
    batches = PLANS[name](source, target, 40, np.random.default_rng(0))
    (long_batch,) = [batch for batch in batches if 1 in batch]
    assert long_batch.tolist() == [1]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_a_function_of_the_seed(name: str) -> None:
    source = np.random.default_rng(0).integers(1, 30, 200)

    def plan(seed: int) -> list[list[int]]:
        return [batch.tolist() for batch in PLANS[name](source, source, 100, np.random.default_rng(seed))]

    assert plan(1) == plan(1) != plan(2)


@pytest.mark.parametrize("name", PLANS)
def test_batches_are_at_least_85_percent_full(name: str) -> None:
    source = np.random.default_rng(0).integers(1, 30, 2000)
    batches = PLANS[name](source, source, 500, np.random.default_rng(0))
    assert source.sum() / (500 * len(batches)) > 0.85


@pytest.mark.parametrize("name", PLANS)
def test_an_empty_corpus_has_no_batches(name: str) -> None:
    empty = np.array([], np.int64)
    assert PLANS[name](empty, empty, 100, np.random.default_rng(0)) == []


def test_packed_batches_respect_the_maximum_number_of_sentences() -> None:
    source = np.random.default_rng(0).integers(1, 5, 300)
    batches = plan_packed(source, source, 100, np.random.default_rng(0), sentences=7)
    assert {len(batch) for batch in batches[:-1]} == {7}
    assert sorted(i for batch in batches for i in batch) == list(range(300))


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_shuffle_is_a_permutation(size: int, key: int) -> None:
    images = shuffle(np.arange(size), size, keys(key))
    assert sorted(images.tolist()) == list(range(size))


@given(size=st.integers(1, 10**12), key=st.integers(0, 99), data=st.data())
def test_the_image_of_an_index_does_not_depend_on_the_other_indices(size: int, key: int, data: st.DataObject) -> None:
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9)))
    images = shuffle(indices, size, keys(key))
    assert images.min() >= 0
    assert images.max() < size
    for index, image in zip(indices, images, strict=True):
        assert shuffle(np.array([index]), size, keys(key))[0] == image


def test_all_permutations_are_about_equally_frequent() -> None:
    counts = Counter(tuple(shuffle(np.arange(4), 4, keys(key)).tolist()) for key in range(2400))
    assert counts.keys() == set(permutations(range(4)))
    assert min(counts.values()) > 60  # the expected value is 100 with a standard deviation of 10
    assert max(counts.values()) < 140


def test_images_of_neighbours_are_not_correlated() -> None:
    images = shuffle(np.arange(50_000), 1_000_003, keys(1)).astype(float)
    assert abs(np.corrcoef(images[1:], images[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(images, np.arange(50_000))[0, 1]) < 0.02


@given(size=st.integers(1, 200), window=st.integers(1, 50), epoch=st.integers(0, 5))
@settings(max_examples=50)
def test_an_epoch_contains_every_row_once(size: int, window: int, epoch: int) -> None:
    order = EpochOrder.of(1, [size], [1.0], window)
    assert sorted(epoch_of(order, epoch)) == list(range(size))
    window_sizes = [len(order.rows(epoch, number)) for number in range(order.windows)]
    assert max(window_sizes) <= window
    assert max(window_sizes) - min(window_sizes) <= 1


def test_the_order_depends_on_epoch_and_seed_only() -> None:
    orders = [epoch_of(EpochOrder.of(seed, [50], [1.0]), epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert epoch_of(EpochOrder.of(1, [50], [1.0]), 1) == orders[1]


@given(sizes=sizes, data=st.data())
@settings(max_examples=25)
def test_a_pass_contains_every_row_once_for_any_weight(sizes: list[int], data: st.DataObject) -> None:
    drawn_weights = [data.draw(weights) for _ in sizes]
    order = EpochOrder.of(3, sizes, drawn_weights, window=17)
    seen: Counter[int] = Counter()
    for epoch in range(4):
        rows = epoch_of(order, epoch)
        assert len(rows) == len(order)
        seen.update(rows)
        start = 0
        for size, weight in zip(sizes, drawn_weights, strict=True):
            counts = [seen[row] for row in range(start, start + size)]
            assert sum(counts) == (epoch + 1) * max(1, round(size * weight))
            assert max(counts) - min(counts) <= 1
            start += size


def test_corpora_are_mixed_evenly() -> None:
    rows = np.array(epoch_of(EpochOrder.of(1, [1000, 1000], [1.0, 3.0]), 0))
    for quarter in np.split(rows, 4):
        assert 0.15 < (quarter < 1000).mean() < 0.35


@pytest.mark.parametrize("size", [10, 10**10])
def test_a_window_is_computed_without_the_rest_of_the_epoch(size: int) -> None:
    order = EpochOrder.of(1, [size], [1.0], window=1000)
    rows = order.rows(2, order.windows - 1)  # an array of 10^10 rows would not fit into memory
    assert 0 < len(rows) <= 1000
    assert len(set(rows.tolist())) == len(rows)
    assert rows.max() < size


def test_prefetched_results_keep_their_order_and_few_are_computed_ahead() -> None:
    started: list[int] = []

    def square(number: int) -> int:
        started.append(number)
        return number**2

    results = prefetch(square, range(100), threads=2, ahead=3)
    assert next(results) == 0
    assert len(started) <= 4
    assert list(results) == [number**2 for number in range(1, 100)]


def test_closing_the_iterator_cancels_what_has_not_started() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        time.sleep(0.02)
        return number

    results = prefetch(work, range(1000), threads=1, ahead=100)
    assert next(results) == 0
    results.close()
    assert len(started) < 101


def test_error_of_a_prefetched_item_is_raised_in_its_turn() -> None:
    results = prefetch(lambda number: 6 // (3 - number), range(9), threads=2, ahead=5)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_iterator_is_advanced_in_advance_until_it_ends_fails_or_is_closed() -> None:
    taken: list[int] = []

    def numbers(stop: int) -> Iterator[int]:
        for number in range(stop):
            taken.append(number)
            yield number
        if stop == 3:
            raise ValueError("the end")

    assert list(prefetch_iterator(numbers(5), ahead=2)) == [0, 1, 2, 3, 4]
    results = prefetch_iterator(numbers(3), ahead=9)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the end"):
        next(results)
    taken.clear()
    source = numbers(100)
    results = prefetch_iterator(source, ahead=4)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 5
    assert next(source) == len(taken) - 1, "no thread advances it any more"
