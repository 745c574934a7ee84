from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batching import EpochOrder, shuffle

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4)
weights = st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0])


def keys(number: int) -> np.ndarray:
    return np.array([number], np.uint64)


def epoch_of(order: EpochOrder, epoch: int) -> list[int]:
    return [int(row) for window in range(order.windows) for row in order.rows(epoch, window)]


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_shuffle_is_a_permutation(size: int, key: int) -> None:
    images = shuffle(np.arange(size), size, keys(key))
    assert sorted(images.tolist()) == list(range(size))


@given(size=st.integers(1, 10**12), key=st.integers(0, 99), data=st.data())
def test_a_place_goes_where_it_goes_whoever_is_asked_beside_it(size: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9)))
    images = shuffle(places, size, keys(key))
    assert images.min() >= 0
    assert images.max() < size
    for place, image in zip(places, images, strict=True):
        assert shuffle(np.array([place]), size, keys(key))[0] == image


def test_all_permutations_come_about_equally_often() -> None:
    counts = Counter(tuple(shuffle(np.arange(4), 4, keys(key)).tolist()) for key in range(2400))
    assert counts.keys() == set(permutations(range(4)))
    assert min(counts.values()) > 60  # 100 are expected, with a deviation of 10
    assert max(counts.values()) < 140


def test_neighbours_do_not_stay_together() -> None:
    images = shuffle(np.arange(50_000), 1_000_003, keys(1)).astype(float)
    assert abs(np.corrcoef(images[1:], images[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(images, np.arange(50_000))[0, 1]) < 0.02


@given(size=st.integers(1, 200), window=st.integers(1, 50), epoch=st.integers(0, 5))
@settings(max_examples=50)
def test_an_epoch_shows_every_row_once(size: int, window: int, epoch: int) -> None:
    order = EpochOrder.of(1, [size], [1.0], window)
    assert sorted(epoch_of(order, epoch)) == list(range(size))
    lengths = [len(order.rows(epoch, number)) for number in range(order.windows)]
    assert max(lengths) <= window
    assert max(lengths) - min(lengths) <= 1


def test_epochs_and_seeds_have_different_orders_and_the_same_ones_the_same() -> None:
    orders = [epoch_of(EpochOrder.of(seed, [50], [1.0]), epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert epoch_of(EpochOrder.of(1, [50], [1.0]), 1) == orders[1]


@given(sizes=sizes, data=st.data())
@settings(max_examples=25)
def test_within_a_pass_no_row_is_dropped_or_repeated_whatever_the_weight(sizes: list[int], data: st.DataObject) -> None:
    given_weights = [data.draw(weights) for _ in sizes]
    order = EpochOrder.of(3, sizes, given_weights, window=17)
    seen: Counter[int] = Counter()
    for epoch in range(4):
        rows = epoch_of(order, epoch)
        assert len(rows) == len(order)
        seen.update(rows)
        start = 0
        for size, weight in zip(sizes, given_weights, strict=True):
            taken = (epoch + 1) * max(1, round(size * weight))
            counts = [seen[row] for row in range(start, start + size)]
            assert sum(counts) == taken
            assert max(counts) - min(counts) <= 1
            start += size


def test_corpora_are_mixed() -> None:
    rows = np.array(epoch_of(EpochOrder.of(1, [1000, 1000], [1.0, 3.0]), 0))
    for part in np.split(rows, 4):
        assert 0.15 < (part < 1000).mean() < 0.35


@pytest.mark.parametrize("size", [10, 10**10])
def test_a_window_costs_only_itself(size: int) -> None:
    order = EpochOrder.of(1, [size], [1.0], window=1000)
    rows = order.rows(2, order.windows - 1)  # an array of 10^10 rows would not fit
    assert 0 < len(rows) <= 1000
    assert len(set(rows.tolist())) == len(rows)
    assert rows.max() < size
