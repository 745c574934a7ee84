"""CTC held to its definition: every path of tiny canvases, enumerated."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.decoding.ctc import (
    add_up_states,
    align,
    begins,
    collapse,
    log_likelihood,
    places_needed,
    search_prefixes,
    states_of,
)

BLANK = 0


def canvas(seed: int, B: int, T: int, V: int, sharpness: float = 1.5) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(B, T, V, generator=source, dtype=torch.float64)).log_softmax(-1)


def paths(logp: Tensor) -> dict[tuple[int, ...], float]:
    """The log-probability of every path of one canvas, (T, V)."""
    T, V = logp.shape
    return {path: sum(float(logp[t, token]) for t, token in enumerate(path)) for path in product(range(V), repeat=T)}


def targets_of(logp: Tensor) -> dict[tuple[int, ...], float]:
    """The log-probability of everything that one canvas can say, by adding up its paths."""
    found: dict[tuple[int, ...], float] = {}
    for path, score in paths(logp).items():
        said = tuple(collapse(list(path), BLANK))
        found[said] = found.get(said, 0.0) + math.exp(score)
    return {said: math.log(p) for said, p in found.items()}


def pad(rows: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.full((len(rows), max(1, int(lengths.max()))), 1)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return table, lengths


@given(st.lists(st.integers(0, 3), max_size=12))
def test_collapse_joins_repetitions_and_drops_blanks(path: list[int]) -> None:
    joined = [token for i, token in enumerate(path) if i == 0 or token != path[i - 1]]
    said = collapse(path, BLANK)
    assert said == [token for token in joined if token != BLANK]
    if path:
        row = torch.tensor([path])
        assert row[begins(row, BLANK)].tolist() == said


@given(st.lists(st.integers(1, 3), max_size=6))
def test_a_target_needs_a_place_a_token_and_one_between_equal_ones(target: list[int]) -> None:
    table, lengths = pad([tuple(target)])
    shortest = next(
        T
        for T in range(2 * len(target) + 1)
        if any(collapse(list(path), BLANK) == target for path in _some_paths(target, T))
    )
    assert places_needed(table, lengths).tolist() == [shortest]


def _some_paths(target: list[int], T: int) -> list[list[int]]:
    """The target with blanks put before some of its tokens, T places long."""
    return [
        path
        for blanks in product((0, 1), repeat=len(target))
        if len(path := [x for b, token in zip(blanks, target, strict=True) for x in [BLANK] * b + [token]]) == T
    ]


def by_states(logp: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """`log_likelihood` by our own recursion."""
    states = states_of(targets, blank)
    emissions = logp.gather(2, states[:, None].expand(-1, logp.shape[1], -1))
    return add_up_states(emissions, lengths, states, target_lengths, blank)


@pytest.mark.parametrize("likelihood", [log_likelihood, by_states])
@pytest.mark.parametrize("T", [1, 2, 4, 5])
def test_the_likelihood_is_the_sum_over_all_paths(T: int, likelihood: Callable[..., Tensor]) -> None:
    logp = canvas(T, 1, T, 3)
    for said, expected in targets_of(logp[0]).items():
        targets, lengths = pad([said])
        found = likelihood(logp, torch.tensor([T]), targets, lengths, BLANK)
        assert float(found) == pytest.approx(expected, abs=1e-9)


@given(seed=st.integers(0, 1000), B=st.integers(1, 4), T=st.integers(1, 9), U=st.integers(0, 5), data=st.data())
def test_the_likelihood_of_states_and_its_gradients_are_those_of_the_loss_of_pytorch(
    seed: int, B: int, T: int, U: int, data: st.DataObject
) -> None:
    rows = st.lists(st.integers(1, 3), max_size=U).map(tuple)
    targets, sizes = pad(data.draw(st.lists(rows, min_size=B, max_size=B)))
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B)))
    found = []
    for likelihood in (log_likelihood, by_states):
        logits = canvas(seed, B, T, 4).requires_grad_()
        total = likelihood(logits.log_softmax(-1), lengths, targets, sizes, BLANK)
        torch.where(total > -math.inf, total, 0).sum().backward()
        found.append((total.detach(), logits.grad))
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-9)


def test_all_that_a_canvas_can_say_has_probability_one() -> None:
    assert sum(math.exp(score) for score in targets_of(canvas(0, 1, 5, 3)[0]).values()) == pytest.approx(1)


def test_the_likelihood_of_states_is_as_precise_where_a_canvas_is_sure_of_itself() -> None:
    targets, sizes = pad([(1, 2, 2, 3), (1,)])
    logits = 60 * canvas(2, 2, 12, 4).float().requires_grad_()
    lengths = torch.tensor([12, 7])
    ours, theirs = (
        likelihood(logits.log_softmax(-1), lengths, targets, sizes, BLANK) for likelihood in (by_states, log_likelihood)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    (grad,) = torch.autograd.grad(ours.sum(), logits)
    assert grad.isfinite().all()


@pytest.mark.parametrize("likelihood", [log_likelihood, by_states])
def test_a_target_longer_than_the_canvas_is_impossible_and_passes_no_gradient(
    likelihood: Callable[..., Tensor],
) -> None:
    logits = torch.randn(3, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    targets, lengths = pad([(1, 2, 1, 2, 1), (1, 1, 1), (1, 2)])  # five tokens; three with two blanks; two
    found = likelihood(logits.log_softmax(-1), torch.tensor([4, 4, 4]), targets, lengths, BLANK)
    assert (found == -math.inf).tolist() == [True, True, False]
    (grad,) = torch.autograd.grad(torch.where(found > -math.inf, found, 0).sum(), logits)
    assert (grad[:2] == 0).all()
    assert (grad[2] != 0).any()


def test_the_gradient_of_the_sum_is_its_slope() -> None:
    targets, sizes = pad([(1, 2, 2), (3,), (), (1, 2, 3)])
    lengths = torch.tensor([6, 3, 2, 4])
    states = states_of(targets, BLANK)
    emissions = canvas(4, 4, 6, 4).gather(2, states[:, None].expand(-1, 6, -1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: add_up_states(x, lengths, states, sizes, BLANK), [emissions])


@pytest.mark.parametrize("T", [1, 3, 5])
def test_the_alignment_is_the_likeliest_path_that_says_the_target(T: int) -> None:
    logp = canvas(10 + T, 1, T, 3)
    every = paths(logp[0])
    for said in targets_of(logp[0]):
        targets, lengths = pad([said])
        found = align(logp, torch.tensor([T]), targets, lengths, BLANK)[0].tolist()
        best = max((path for path in every if tuple(collapse(list(path), BLANK)) == said), key=lambda p: every[p])
        assert found == list(best)


def test_alignments_do_not_depend_on_their_company() -> None:
    logp, lengths = canvas(3, 4, 6, 4), torch.tensor([6, 3, 4, 2])
    targets, sizes = pad([(1, 2, 2), (3,), (), (1, 2, 3)])
    together = align(logp, lengths, targets, sizes, BLANK)
    for b in range(4):
        T, U = int(lengths[b]), int(sizes[b])
        alone = align(logp[b : b + 1, :T], lengths[b : b + 1], targets[b : b + 1, :U], sizes[b : b + 1], BLANK)
        assert together[b, :T].tolist() == alone[0].tolist()
        assert (together[b, T:] == BLANK).all()
    assert (together[3] == BLANK).all()  # three tokens do not fit into two places


@pytest.mark.parametrize(("T", "V"), [(1, 3), (3, 4), (5, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_prefix_search_finds_what_enumeration_finds(T: int, V: int, seed: int) -> None:
    logp = canvas(seed, 1, T, V)
    expected = sorted(targets_of(logp[0]).items(), key=lambda item: -item[1])
    found = search_prefixes(logp, torch.tensor([T]), BLANK, beam=1000)[0]
    assert len(found) == len(expected)
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-9)
    assert {tuple(tokens): round(score, 9) for tokens, score in found} == {
        said: round(score, 9) for said, score in expected
    }


def test_prefix_search_finds_what_the_best_path_misses() -> None:
    """The classical example: "nothing" is the best single path, but the paths of "a" together are likelier."""
    logp = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]], dtype=torch.float64).log()
    (best, score), *_ = search_prefixes(logp, torch.tensor([2]), BLANK, beam=2)[0]
    assert best == [1]
    assert math.exp(score) == pytest.approx(1 - 0.36)
    assert collapse(logp[0].argmax(-1).tolist(), BLANK) == []


def test_a_narrow_beam_never_counts_more_than_there_is_and_finds_the_best_of_a_sharp_canvas() -> None:
    logp = canvas(5, 3, 5, 3, sharpness=4)
    for sentence, found in zip(logp, search_prefixes(logp, torch.tensor([5] * 3), BLANK, beam=5), strict=True):
        true = targets_of(sentence)
        assert len(found) == 5
        assert found[0][0] == list(max(true, key=lambda said: true[said]))
        assert all(score <= true[tuple(tokens)] + 1e-9 for tokens, score in found)


def test_prefix_search_does_not_depend_on_company() -> None:
    logp, lengths = canvas(8, 3, 6, 5), torch.tensor([6, 2, 4])
    together = search_prefixes(logp, lengths, BLANK, beam=4)
    for b, T in enumerate(lengths.tolist()):
        alone = search_prefixes(logp[b : b + 1, :T], torch.tensor([T]), BLANK, beam=4)[0]
        assert [tokens for tokens, _ in together[b]] == [tokens for tokens, _ in alone]
        assert [score for _, score in together[b]] == pytest.approx([score for _, score in alone])
