"""The graph of a DA-Transformer is compared with the enumeration of all paths of small graphs."""

import math
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from regard.ops import dispatch
from regard.ops.dag import align, best_paths, log_likelihood, mask_transitions

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
