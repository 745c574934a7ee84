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


def test_target_tokens_are_linked_to_their_largest_weight() -> None:
    weights = [[0.1, 0.9], [0.6, 0.4], [0.0, 0.0]]
    assert strongest_links(weights) == {(0, 1), (1, 0)}
    assert strongest_links(weights, least=0.7) == {(0, 1)}


def test_alignment_error_rate_of_an_example() -> None:
    found, sure, possible = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 2)}, {(1, 1)}
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - (1 + 2) / (3 + 2))


@given(LINKS, LINKS, LINKS)
def test_alignment_error_rate_is_bounded(found: set, sure: set, possible: set) -> None:
    error = alignment_error_rate(found, sure, possible)
    assert 0 <= error <= 1
    assert error <= alignment_error_rate(found, sure)
    if found and (sure | possible) >= found >= sure:
        assert error == 0


def test_heads_are_ranked_by_their_error_over_all_sentences() -> None:
    diagonal, reversed_ = np.eye(3), np.eye(3)[::-1]
    straight = [(i, i) for i in range(3)]
    crossed = [(0, 2), (1, 1), (2, 0)]
    # Head 1 of "b" follows the links of both sentences, head 0 of "a" only those of the first.
    examples = [
        Example({"a": [diagonal, reversed_], "b": [reversed_, diagonal]}, straight),
        Example({"a": [diagonal, diagonal], "b": [diagonal, reversed_]}, crossed),
    ]
    first, *rest = rank_heads(examples)
    assert (first.name, first.head, first.error) == ("b", 1, 0.0)
    assert sorted(head.error for head in rest) == [head.error for head in rest]
    assert {(ranked.name, ranked.head): ranked.error for ranked in rest} == pytest.approx(
        {("a", 0): 1 - 4 / 6, ("a", 1): 1 - 2 / 6, ("b", 0): 1 - 2 / 6}
    )


def test_agreement_is_the_overlap_of_two_maps() -> None:
    assert agreement([[0.7, 0.3]], [[0.5, 0.5]]) == pytest.approx(0.8)
    assert agreement(np.eye(2), np.eye(2)[::-1]) == 0


def test_heads_are_ranked_by_agreement_with_a_reference_or_their_mean() -> None:
    maps = {"x": np.stack([np.eye(3), np.eye(3)]), "y": np.eye(3)[None, ::-1]}
    assert [head.name for head in rank_by_agreement(maps)] == ["x", "x", "y"]
    best = rank_by_agreement(maps, np.eye(3)[::-1])[0]
    assert (best.name, best.error) == ("y", 0)


def test_invalid_maps_and_no_examples_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"not \(2, 3, 3\)"):
        strongest_links(np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="at least one example"):
        rank_heads([])
