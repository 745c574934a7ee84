"""The graph of a DA-Transformer is compared with the enumeration of all paths of small graphs."""

import math
from collections import Counter
from itertools import combinations, pairwise, product

import pytest
import torch
from torch import Tensor

from regard.ops import dispatch
from regard.ops.dag import align, best_paths, log_likelihood, mask_transitions, ngram_overlap, visit_probabilities

LENGTHS, TARGET_LENGTHS = [7, 5, 2, 4, 6], [3, 3, 0, 3, 1]  # the fourth target has more tokens than inner vertices


def random_graphs(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return emissions, transitions, lengths and target lengths of graphs of different sizes."""
    source = torch.Generator().manual_seed(seed)
    lengths, target_lengths = torch.tensor(LENGTHS), torch.tensor(TARGET_LENGTHS)
    B, L, U = len(LENGTHS), max(LENGTHS), max(TARGET_LENGTHS)
    emissions = (2 * torch.randn(B, L, 9, generator=source, dtype=torch.float64)).log_softmax(-1)[..., :U]
    scores = mask_transitions(2 * torch.randn(B, L, L, generator=source, dtype=torch.float64), lengths)
    return emissions.to(dtype), scores.log_softmax(-1).to(dtype), lengths, target_lengths


def list_paths(emissions: Tensor, transitions: Tensor, length: int, tokens: int) -> dict[tuple[int, ...], Tensor]:
    """Return the log-probability of each path of one graph, by its inner vertices."""
    paths = {}
    for inner in combinations(range(1, length - 1), tokens):
        vertices = (0, *inner, length - 1)
        moves = sum(transitions[i, j] for i, j in pairwise(vertices))
        paths[inner] = moves + sum(emissions[vertex, u] for u, vertex in enumerate(inner))
    return paths


def sum_over_paths(emissions: Tensor, transitions: Tensor) -> Tensor:
    totals = []
    for e, t, length, tokens in zip(emissions, transitions, LENGTHS, TARGET_LENGTHS, strict=True):
        paths = list_paths(e, t, length, tokens)
        totals.append(torch.stack([*paths.values()]).logsumexp(0) if paths else e.new_tensor(-math.inf))
    return torch.stack(totals)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_likelihood_is_the_sum_over_all_paths(dtype: torch.dtype, tolerance: float) -> None:
    emissions, transitions, lengths, target_lengths = random_graphs(dtype)
    found = log_likelihood(emissions, transitions, lengths, target_lengths)
    expected = sum_over_paths(emissions.double(), transitions.double())
    assert math.isinf(expected[3]) and math.isinf(found[3])
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_gradients_are_those_of_the_sum() -> None:
    emissions, transitions, lengths, target_lengths = random_graphs()
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
    emissions.requires_grad_(), transitions.requires_grad_()
    found = log_likelihood(emissions, transitions, lengths, target_lengths)
    (found.masked_fill(found.isinf(), 0) * weights).sum().backward()
    own = emissions.grad, transitions.grad
    emissions.grad = transitions.grad = None
    expected = sum_over_paths(emissions, transitions)
    (expected.masked_fill(expected.isinf(), 0) * weights).sum().backward()
    torch.testing.assert_close(own, (emissions.grad, transitions.grad))


def test_alignment_is_the_most_probable_path() -> None:
    emissions, transitions, lengths, target_lengths = random_graphs(seed=1)
    found = align(emissions, transitions, lengths, target_lengths).tolist()
    for e, t, length, tokens, row in zip(emissions, transitions, LENGTHS, TARGET_LENGTHS, found, strict=True):
        paths = list_paths(e, t, length, tokens)
        expected = [-1] * len(row)
        if paths:
            for u, vertex in enumerate(max(paths, key=lambda path: float(paths[path]))):
                expected[vertex] = u
        assert row == expected


def test_probabilities_of_all_targets_add_up_to_one() -> None:
    source = torch.Generator().manual_seed(2)
    emissions = torch.randn(1, 5, 2, generator=source, dtype=torch.float64).log_softmax(-1)  # two tokens
    lengths = torch.tensor([5])
    transitions = mask_transitions(torch.randn(1, 5, 5, generator=source, dtype=torch.float64), lengths).log_softmax(-1)
    total = 0.0
    for tokens in range(4):
        for target in (
            torch.cartesian_prod(*[torch.arange(2)] * tokens).view(-1, tokens) if tokens else [torch.empty(0)]
        ):
            chosen = emissions[:, :, target.long()]
            total += float(log_likelihood(chosen, transitions, lengths, torch.tensor([tokens])).exp())
    assert total == pytest.approx(1, abs=1e-12)


VOCABULARY = 3
OVERLAP_LENGTHS = [5, 2, 4, 5]
OVERLAP_TARGETS = [[0, 1, 0, 1, 2], [], [1], [2, 2, 2]]


def overlap_graphs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of all tokens, (B, L, V), transitions and lengths."""
    source = torch.Generator().manual_seed(seed)
    B, L, lengths = len(OVERLAP_LENGTHS), max(OVERLAP_LENGTHS), torch.tensor(OVERLAP_LENGTHS)
    log_probs = torch.randn(B, L, VOCABULARY, generator=source, dtype=torch.float64).log_softmax(-1)
    scores = torch.randn(B, L, L, generator=source, dtype=torch.float64)
    return log_probs, mask_transitions(scores, lengths).log_softmax(-1), lengths


def overlap_of(log_probs: Tensor, transitions: Tensor, lengths: Tensor, n: int) -> Tensor:
    counts = torch.tensor([len(target) for target in OVERLAP_TARGETS])
    tokens = torch.tensor([[*target, *[0] * (5 - len(target))] for target in OVERLAP_TARGETS])
    emissions = log_probs.gather(2, tokens[:, None].expand(-1, log_probs.shape[1], -1))
    return ngram_overlap(emissions, transitions, lengths, tokens, counts, n)


def count_ngrams(tokens: tuple[object, ...], n: int) -> Counter[tuple[object, ...]]:
    """Count the n-grams between BOS and END."""
    padded = ("BOS", *tokens, "END")
    return Counter(padded[i : i + n] for i in range(len(padded) - n + 1))


def enumerate_overlap(log_probs: Tensor, transitions: Tensor, length: int, target: list[int], n: int) -> float:
    """Compute the overlap from every path with every choice of tokens."""
    expected, expected_length = Counter[tuple[object, ...]](), 0.0
    for tokens in range(length - 1):
        for inner in combinations(range(1, length - 1), tokens):
            vertices = (0, *inner, length - 1)
            moves = sum(float(transitions[i, j]) for i, j in pairwise(vertices))
            for chosen in product(range(VOCABULARY), repeat=tokens):
                log_prob = moves + sum(float(log_probs[v, token]) for v, token in zip(inner, chosen, strict=True))
                expected_length += math.exp(log_prob) * tokens
                for ngram, count in count_ngrams(chosen, n).items():
                    expected[ngram] += math.exp(log_prob) * count
    reference = count_ngrams(tuple(target), n)
    matches = sum(min(expected[ngram], count) for ngram, count in reference.items())
    penalty = min(1.0, math.exp(1 - len(target) / max(expected_length, 1e-3)))
    return penalty * matches / max(sum(expected.values()), 1e-3)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_overlap_is_that_of_all_paths(n: int) -> None:
    graphs = overlap_graphs()
    found = overlap_of(*graphs, n)
    for value, log_probs, transitions, length, target in zip(
        found.tolist(), *graphs[:2], OVERLAP_LENGTHS, OVERLAP_TARGETS, strict=True
    ):
        assert value == pytest.approx(enumerate_overlap(log_probs, transitions, length, target, n), rel=1e-10)
    with torch.autocast("cpu", torch.bfloat16):  # products are not rounded
        rounded = overlap_of(graphs[0].float(), graphs[1].float(), graphs[2], n)
    assert torch.allclose(rounded.double(), found, atol=1e-5)


def test_gradients_of_the_overlap_are_finite_differences() -> None:
    log_probs, transitions, lengths = overlap_graphs(seed=1)

    def overlap(log_probs: Tensor, scores: Tensor) -> Tensor:
        return overlap_of(log_probs, mask_transitions(scores, lengths).log_softmax(-1), lengths, 2)

    inputs = log_probs.requires_grad_(), transitions.clamp(min=-9).requires_grad_()
    assert torch.autograd.gradcheck(overlap, inputs)


def test_overlap_does_not_depend_on_padding_or_the_batch() -> None:
    log_probs, transitions, lengths = overlap_graphs(seed=2)
    found = overlap_of(log_probs, transitions, lengths, 2)
    for row, target in enumerate(OVERLAP_TARGETS):
        length, tokens = OVERLAP_LENGTHS[row], torch.tensor([target], dtype=torch.long)
        emissions = log_probs[row : row + 1, :length].gather(2, tokens[:, None].expand(-1, length, -1))
        alone = transitions[row : row + 1, :length, :length], lengths[row : row + 1], tokens
        value = ngram_overlap(emissions, *alone, torch.tensor([len(target)]), 2)
        torch.testing.assert_close(value, found[row : row + 1])


def test_visits_are_the_probabilities_of_all_paths_over_a_vertex() -> None:
    log_probs, transitions, lengths = overlap_graphs(seed=3)
    expected = torch.zeros(log_probs.shape[:2], dtype=torch.float64)
    for row, length in enumerate(OVERLAP_LENGTHS):
        for tokens in range(length - 1):
            for inner in combinations(range(1, length - 1), tokens):
                vertices = [0, *inner, length - 1]
                expected[row, vertices] += transitions[row, vertices[:-1], vertices[1:]].sum().exp()
    torch.testing.assert_close(visit_probabilities(transitions, lengths), expected)


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_kernels_agree_with_the_formulas(monkeypatch: pytest.MonkeyPatch, integers: torch.dtype) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = torch.Generator().manual_seed(3)
    lengths = torch.tensor([70, 2, 33, 5], device=device, dtype=integers)
    target_lengths = torch.tensor([6, 0, 5, 4], device=device, dtype=integers)
    emissions = (3 * torch.randn(4, 70, 50, generator=source)).log_softmax(-1)[..., :6].to(device)
    scores = mask_transitions((3 * torch.randn(4, 70, 70, generator=source)).to(device), lengths)
    results = []
    for use_kernels in (False, True):
        monkeypatch.setattr(dispatch, "KERNELS_ENABLED", use_kernels)
        monkeypatch.setattr(dispatch, "INTERPRETED", device.type == "cpu")
        inputs = emissions.clone().requires_grad_(), scores.log_softmax(-1).requires_grad_()
        found = log_likelihood(*inputs, lengths, target_lengths)
        grads = torch.autograd.grad(torch.where(found.isinf(), 0, found).sum(), inputs)
        aligned = align(emissions, scores.log_softmax(-1), lengths, target_lengths)
        ends, _ = best_paths(emissions, scores.log_softmax(-1), lengths)
        results.append((found, *grads, aligned, ends.max(2).values.clamp(min=-1e29)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
