"""CTC is compared with the enumeration of all paths of short sequences."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.ops import dispatch
from regard.ops.ctc import (
    align,
    collapse,
    log_likelihood,
    min_path_length,
    search_prefixes,
    state_emissions,
    state_log_likelihood,
    target_states,
    token_starts,
)

BLANK = 0


def random_log_probs(seed: int, B: int, T: int, V: int, sharpness: float = 1.5) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(B, T, V, generator=source, dtype=torch.float64)).log_softmax(-1)


def paths(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every path given (T, V)."""
    T, V = log_probs.shape
    return {
        path: sum(float(log_probs[t, token]) for t, token in enumerate(path)) for path in product(range(V), repeat=T)
    }


def targets_of(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every target by summing over its paths."""
    found: dict[tuple[int, ...], float] = {}
    for path, score in paths(log_probs).items():
        target = tuple(collapse(list(path), BLANK))
        found[target] = found.get(target, 0.0) + math.exp(score)
    return {target: math.log(p) for target, p in found.items()}


def pad(rows: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.full((len(rows), max(1, int(lengths.max()))), 1)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return table, lengths


@given(st.lists(st.integers(1, 3), max_size=6))
def test_the_shortest_path_has_a_blank_between_repeated_tokens(target: list[int]) -> None:
    table, lengths = pad([tuple(target)])
    shortest = next(
        T
        for T in range(2 * len(target) + 1)
        if any(collapse(list(path), BLANK) == target for path in _some_paths(target, T))
    )
    assert min_path_length(table, lengths).tolist() == [shortest]


def _some_paths(target: list[int], T: int) -> list[list[int]]:
    """Return the target with blanks before some of its tokens, if the result has T positions."""
    return [
        path
        for blanks in product((0, 1), repeat=len(target))
        if len(path := [x for b, token in zip(blanks, target, strict=True) for x in [BLANK] * b + [token]]) == T
    ]


def by_states(log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """`log_likelihood` by `state_log_likelihood`."""
    states = target_states(targets, blank)
    emissions = log_probs.gather(2, states[:, None].expand(-1, log_probs.shape[1], -1))
    return state_log_likelihood(emissions, lengths, states, target_lengths, blank)


@pytest.mark.parametrize("packed", [False, True])
def test_emissions_of_states_have_the_gradient_of_their_selection(packed: bool) -> None:
    """Tokens that occur in several states, the blank among them, receive the sum of their gradients."""
    states = target_states(torch.tensor([[1, 2, 1, 1], [3, 3, 2, BLANK]]), BLANK)
    lengths = [5, 2] if packed else [5, 5]
    sentences = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    index = (torch.tensor([[0], [5]]) + torch.arange(5)).clamp(max=len(sentences) - 1)
    inside = torch.arange(5) < torch.tensor(lengths)[:, None]
    weights = torch.randn(2, 5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * inside[..., None]
    found = []
    for ours in (True, False):
        logits = (3 * random_log_probs(1, 1, len(sentences), 4)[0]).requires_grad_()
        if ours:
            emissions = state_emissions(logits * 1, states, sentences, positions, index)
        else:
            emissions = logits.log_softmax(-1).gather(1, states[sentences])[index]
        (grad,) = torch.autograd.grad((emissions * weights).sum(), logits)
        found.append((emissions.detach(), grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-12)


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_state_emissions_by_kernels_agree_with_the_formulas(
    interpreted: None, dtype: torch.dtype, tolerance: float
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.Generator().manual_seed(0)
    states = torch.randint(0, 6, (4, 5), generator=source).to(device)
    index = torch.arange(4 * 3, device=device)
    logits = torch.randn(12, 6, generator=source).to(device, dtype).requires_grad_()
    found = state_emissions(logits * 1, states, index // 3, index % 3, index.view(4, 3))
    expected = logits.float().log_softmax(-1).gather(1, states[index // 3]).view(4, 3, 5)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.rand(expected.shape, generator=source).to(device)
    grads = [torch.autograd.grad((each * weights).sum(), logits)[0] for each in (found, expected)]
    torch.testing.assert_close(grads[0], grads[1], atol=tolerance, rtol=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_of_state_emissions_on_a_gpu_are_equal_each_time() -> None:
    states = target_states(torch.randint(1, 5, (40, 30), device="cuda"), BLANK)
    index = torch.arange(40 * 64, device="cuda")
    logits = torch.randn(len(index), 50, device="cuda", requires_grad=True)
    weights = torch.rand(40, 64, 61, device="cuda")

    def gradient() -> Tensor:
        emissions = state_emissions(logits * 1, states, index // 64, index % 64, index.view(40, 64))
        return torch.autograd.grad((emissions * weights).sum(), logits)[0]

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(10))


@pytest.mark.parametrize("likelihood", [log_likelihood, by_states])
@pytest.mark.parametrize("T", [1, 2, 4, 5])
def test_the_likelihood_is_the_sum_over_all_paths(T: int, likelihood: Callable[..., Tensor]) -> None:
    log_probs = random_log_probs(T, 1, T, 3)
    for target, expected in targets_of(log_probs[0]).items():
        targets, lengths = pad([target])
        found = likelihood(log_probs, torch.tensor([T]), targets, lengths, BLANK)
        assert float(found) == pytest.approx(expected, abs=1e-9)


@given(seed=st.integers(0, 1000), B=st.integers(1, 4), T=st.integers(1, 9), U=st.integers(0, 5), data=st.data())
def test_state_log_likelihood_agrees_with_torch_ctc_loss_and_its_gradient(
    seed: int, B: int, T: int, U: int, data: st.DataObject
) -> None:
    rows = st.lists(st.integers(1, 3), max_size=U).map(tuple)
    targets, sizes = pad(data.draw(st.lists(rows, min_size=B, max_size=B)))
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B)))
    found = []
    for likelihood in (log_likelihood, by_states):
        logits = random_log_probs(seed, B, T, 4).requires_grad_()
        total = likelihood(logits.log_softmax(-1), lengths, targets, sizes, BLANK)
        torch.where(total > -math.inf, total, 0).sum().backward()
        found.append((total.detach(), logits.grad))
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-9)


def test_the_probabilities_of_all_targets_sum_to_one() -> None:
    assert sum(math.exp(score) for score in targets_of(random_log_probs(0, 1, 5, 3)[0]).values()) == pytest.approx(1)


def test_state_log_likelihood_is_precise_for_peaked_distributions() -> None:
    targets, sizes = pad([(1, 2, 2, 3), (1,)])
    logits = 60 * random_log_probs(2, 2, 12, 4).float().requires_grad_()
    lengths = torch.tensor([12, 7])
    ours, theirs = (
        likelihood(logits.log_softmax(-1), lengths, targets, sizes, BLANK) for likelihood in (by_states, log_likelihood)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    (grad,) = torch.autograd.grad(ours.sum(), logits)
    assert grad.isfinite().all()


@pytest.mark.parametrize("likelihood", [log_likelihood, by_states])
def test_a_target_that_does_not_fit_has_probability_zero_and_no_gradient(
    likelihood: Callable[..., Tensor],
) -> None:
    logits = torch.randn(3, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    targets, lengths = pad([(1, 2, 1, 2, 1), (1, 1, 1), (1, 2)])  # five tokens; three with two blanks; two
    found = likelihood(logits.log_softmax(-1), torch.tensor([4, 4, 4]), targets, lengths, BLANK)
    assert (found == -math.inf).tolist() == [True, True, False]
    (grad,) = torch.autograd.grad(torch.where(found > -math.inf, found, 0).sum(), logits)
    assert (grad[:2] == 0).all()
    assert (grad[2] != 0).any()


def test_the_gradient_of_state_log_likelihood_passes_gradcheck() -> None:
    targets, sizes = pad([(1, 2, 2), (3,), (), (1, 2, 3)])
    lengths = torch.tensor([6, 3, 2, 4])
    states = target_states(targets, BLANK)
    emissions = random_log_probs(4, 4, 6, 4).gather(2, states[:, None].expand(-1, 6, -1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: state_log_likelihood(x, lengths, states, sizes, BLANK), [emissions])


@pytest.mark.parametrize("T", [1, 3, 5])
def test_the_alignment_is_the_most_probable_path_of_the_target(T: int) -> None:
    log_probs = random_log_probs(10 + T, 1, T, 3)
    every = paths(log_probs[0])
    for target in targets_of(log_probs[0]):
        targets, lengths = pad([target])
        found = align(log_probs, torch.tensor([T]), targets, lengths, BLANK)[0].tolist()
        best = max((path for path in every if tuple(collapse(list(path), BLANK)) == target), key=lambda p: every[p])
        assert found == list(best)


def test_alignments_do_not_depend_on_the_batch() -> None:
    log_probs, lengths = random_log_probs(3, 4, 6, 4), torch.tensor([6, 3, 4, 2])
    targets, sizes = pad([(1, 2, 2), (3,), (), (1, 2, 3)])
    together = align(log_probs, lengths, targets, sizes, BLANK)
    for b in range(4):
        T, U = int(lengths[b]), int(sizes[b])
        alone = align(log_probs[b : b + 1, :T], lengths[b : b + 1], targets[b : b + 1, :U], sizes[b : b + 1], BLANK)
        assert together[b, :T].tolist() == alone[0].tolist()
        assert (together[b, T:] == BLANK).all()
    assert (together[3] == BLANK).all()  # three tokens do not fit into two positions


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
