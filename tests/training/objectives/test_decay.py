import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.training.objectives.decay import Decay, build_decay

KINDS: tuple[Decay, ...] = ("linear", "exponential", "inverse-sigmoid")


@given(st.sampled_from(KINDS), st.integers(1, 10**7))
def test_after_half_the_steps_one_half_is_left(kind: Decay, half: int) -> None:
    assert build_decay(kind, half)(half) == pytest.approx(0.5, rel=1e-9)


@given(st.sampled_from(KINDS), st.integers(1, 10**5), st.lists(st.integers(0, 10**9), min_size=2))
def test_it_never_rises_and_stays_between_one_and_zero(kind: Decay, half: int, steps: list[int]) -> None:
    values = [build_decay(kind, half)(step) for step in sorted(steps)]
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= 1 for value in values)


def test_linear_is_a_line_to_zero() -> None:
    decay = build_decay("linear", 100)
    assert [decay(step) for step in (0, 50, 150, 200, 300)] == [1, 0.75, 0.25, 0, 0]


def test_exponential_is_a_power_of_the_step() -> None:
    decay = build_decay("exponential", 10)
    assert [decay(step) for step in (0, 20, 30)] == pytest.approx([1, 1 / 4, 1 / 8])


def test_inverse_sigmoid_is_the_papers_formula() -> None:
    k = 50.0  # k / (k + exp(i / k)) is one half where i = k ln k
    half = round(k * math.log(k))
    decay = build_decay("inverse-sigmoid", half)
    assert [decay(step) for step in (0, 100, half, 400)] == pytest.approx(
        [k / (k + math.exp(step / k)) for step in (0, 100, half, 400)], rel=2e-2
    )
