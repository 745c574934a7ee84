import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.inspection.alignment import (
    Example,
    agreement,
    alignment_error_rate,
    rank_by_agreement,
    rank_heads,
    strongest_links,
)

LINKS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


def test_each_target_token_is_linked_to_what_it_looks_at_most() -> None:
    weights = [[0.1, 0.9], [0.6, 0.4], [0.0, 0.0]]
    assert strongest_links(weights) == {(0, 1), (1, 0)}
    assert strongest_links(weights, least=0.7) == {(0, 1)}


def test_the_error_rate_of_a_worked_example() -> None:
    found, sure, possible = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 2)}, {(1, 1)}
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - (1 + 2) / (3 + 2))


@given(LINKS, LINKS, LINKS)
def test_the_error_rate_lies_between_right_and_wrong(found: set, sure: set, possible: set) -> None:
    error = alignment_error_rate(found, sure, possible)
    assert 0 <= error <= 1
    assert error <= alignment_error_rate(found, sure)
    if found and (sure | possible) >= found >= sure:
        assert error == 0


def test_the_head_that_aligns_best_comes_first_over_all_sentences() -> None:
    one, other = np.eye(3), np.eye(3)[::-1]
    straight = [(i, i) for i in range(3)]
    crossed = [(0, 2), (1, 1), (2, 0)]
    # Head 1 of "b" follows the links of both sentences; head 0 of "a" of the first alone.
    examples = [
        Example({"a": [one, other], "b": [other, one]}, straight),
        Example({"a": [one, one], "b": [one, other]}, crossed),
    ]
    first, *rest = rank_heads(examples)
    assert (first.name, first.head, first.error) == ("b", 1, 0.0)
    assert sorted(judged.error for judged in rest) == [judged.error for judged in rest]
    assert {(judged.name, judged.head): judged.error for judged in rest} == pytest.approx(
        {("a", 0): 1 - 4 / 6, ("a", 1): 1 - 2 / 6, ("b", 0): 1 - 2 / 6}
    )


def test_agreement_is_the_share_of_attention_given_to_the_same_places() -> None:
    assert agreement([[0.7, 0.3]], [[0.5, 0.5]]) == pytest.approx(0.8)
    assert agreement(np.eye(2), np.eye(2)[::-1]) == 0


def test_heads_can_be_ranked_by_a_reference_or_by_their_mean() -> None:
    maps = {"x": np.stack([np.eye(3), np.eye(3)]), "y": np.eye(3)[None, ::-1]}
    assert [judged.name for judged in rank_by_agreement(maps)] == ["x", "x", "y"]
    best = rank_by_agreement(maps, np.eye(3)[::-1])[0]
    assert (best.name, best.error) == ("y", 0)


def test_what_is_no_map_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not \(2, 3, 3\)"):
        strongest_links(np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="at least one example"):
        rank_heads([])
