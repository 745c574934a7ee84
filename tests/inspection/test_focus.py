import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.inspection.maps import distance, entropy


def test_entropy_is_nothing_for_one_place_and_all_bits_for_an_even_look() -> None:
    weights = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    assert entropy(weights) == pytest.approx([0, 2])


def test_queries_that_look_at_nothing_do_not_count() -> None:
    weights = np.array([[0.5, 0.5], [0.0, 0.0]])
    assert entropy(weights) == pytest.approx(1)
    assert distance(weights) == pytest.approx(0.5)
    assert entropy(np.zeros((3, 2, 2))) == pytest.approx([0, 0, 0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
def test_entropy_keeps_its_bounds_and_does_not_mind_the_sum(seed: int, T: int, S: int) -> None:
    raw = np.random.default_rng(seed).random((2, T, S)) + 1e-3
    bits = entropy(raw)
    assert (bits >= -1e-12).all()
    assert (bits <= np.log2(S) + 1e-9).all()
    assert bits == pytest.approx(entropy(raw * 3))


def test_distance_is_that_of_places() -> None:
    previous = np.eye(5, k=-1)
    assert distance(previous) == pytest.approx(1)
    assert distance(previous, np.arange(5) * 2, np.arange(5) * 2) == pytest.approx(2)
    grid = [(0, 0), (0, 3), (4, 0), (4, 3)]
    assert distance(np.eye(4)[::-1], grid, grid) == pytest.approx(5)


def test_one_step_of_decoding_tells_its_place() -> None:
    assert distance([[0.0, 0.0, 1.0]], queries=[2]) == 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        entropy([[-0.1, 1.1]])
    with pytest.raises(ValueError, match="do not fit"):
        distance(np.eye(3), queries=[1, 2])
