"""CTC prefix search is compared with the enumeration of all paths of short sequences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.ctc import collapse, search_prefixes, token_starts
from tests.ops.test_ctc import BLANK, random_log_probs, targets_of


@given(st.lists(st.integers(0, 3), max_size=12))
def test_collapse_merges_repetitions_and_removes_blanks(path: list[int]) -> None:
    joined = [token for i, token in enumerate(path) if i == 0 or token != path[i - 1]]
    target = collapse(path, BLANK)
    assert target == [token for token in joined if token != BLANK]
    if path:
        row = torch.tensor([path])
        assert row[token_starts(row, BLANK)].tolist() == target


@pytest.mark.parametrize(("T", "V"), [(1, 3), (3, 4), (5, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_prefix_search_with_a_wide_beam_agrees_with_enumeration(T: int, V: int, seed: int) -> None:
    log_probs = random_log_probs(seed, 1, T, V)
    expected = sorted(targets_of(log_probs[0]).items(), key=lambda item: -item[1])
    found = search_prefixes(log_probs, torch.tensor([T]), BLANK, beam=1000)[0]
    assert len(found) == len(expected)
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-9)
    assert {tuple(tokens): round(score, 9) for tokens, score in found} == {
        target: round(score, 9) for target, score in expected
    }


def test_prefix_search_sums_over_paths() -> None:
    """The best single path is all blank, but the paths of "a" have a higher total probability."""
    log_probs = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]], dtype=torch.float64).log()
    (best, score), *_ = search_prefixes(log_probs, torch.tensor([2]), BLANK, beam=2)[0]
    assert best == [1]
    assert math.exp(score) == pytest.approx(1 - 0.36)
    assert collapse(log_probs[0].argmax(-1).tolist(), BLANK) == []


def test_a_narrow_beam_never_overestimates_and_finds_the_best_of_a_peaked_distribution() -> None:
    log_probs = random_log_probs(5, 3, 5, 3, sharpness=4)
    for sentence, found in zip(
        log_probs, search_prefixes(log_probs, torch.tensor([5] * 3), BLANK, beam=5), strict=True
    ):
        true = targets_of(sentence)
        assert len(found) == 5
        assert found[0][0] == list(max(true, key=lambda target: true[target]))
        assert all(score <= true[tuple(tokens)] + 1e-9 for tokens, score in found)


def test_prefix_search_does_not_depend_on_the_batch() -> None:
    log_probs, lengths = random_log_probs(8, 3, 6, 5), torch.tensor([6, 2, 4])
    together = search_prefixes(log_probs, lengths, BLANK, beam=4)
    for b, T in enumerate(lengths.tolist()):
        alone = search_prefixes(log_probs[b : b + 1, :T], torch.tensor([T]), BLANK, beam=4)[0]
        assert [tokens for tokens, _ in together[b]] == [tokens for tokens, _ in alone]
        assert [score for _, score in together[b]] == pytest.approx([score for _, score in alone])
