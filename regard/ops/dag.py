"""Directed acyclic graphs of tokens (DA-Transformer, Huang et al. 2022): likelihood and alignment of targets.

A graph has L vertices, of which the first starts and the last ends every path; each vertex in between predicts a token.
A path visits vertices in ascending order. The probability of a target is the sum over all paths with as many inner
vertices as it has tokens,

    P(y) = Σ_{0 < v_1 < ... < v_U < L - 1}  E[0, v_1] P(y_1 | v_1) E[v_1, v_2] ... P(y_U | v_U) E[v_U, L - 1],

where E[i, j] is the probability of the transition from vertex i to vertex j.

The functions never synchronise with the device, so that a CUDA graph can capture them.

Shapes: B sentences, L vertices of the largest graph, U tokens of the longest target.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.dispatch import on_device

BLOCK = 32
"""Number of vertices that the kernels process at once."""
LOG_ZERO = -1e30
"""Logarithm of zero in differentiable sums, where -inf - (-inf) would be NaN."""
BOUNDARY, END = -1, -2
"""Tokens before the first and after the last of a target, in n-grams."""
MIN_LENGTH = 1e-3
"""Least expected length of a path that a length is divided by."""


def mask_transitions(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return scores (B, ..., L, L) with `LOG_ZERO` where no transition is possible: backwards or past the last vertex.

    Args:
        scores: Score of the transition from each vertex (last but one dimension) to each vertex (last dimension).
        lengths: Number of vertices of each graph, (B,).
    """
    vertices = torch.arange(scores.shape[-1], device=scores.device)
    possible = (vertices > vertices[:, None]) & (vertices < lengths[:, None, None])  # (B, L, L)
    for _ in range(scores.dim() - 3):
        possible = possible[:, None]
    return scores.masked_fill(~possible, LOG_ZERO)


def log_likelihood(emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return the log-probability of each target, (B,); -inf with zero gradient if it has more tokens than vertices.

    Args:
        emissions: Log-probability of every target token at every vertex, (B, L, U).
        transitions: Log-probability of the transition between every two vertices, (B, L, L), `LOG_ZERO` if impossible.
        lengths: Number of vertices of each graph, (B,), at least 2.
        target_lengths: Number of tokens of each target, (B,).
    """
    emissions = _mask_emissions(emissions, lengths)
    total: Tensor = _LogLikelihood.apply(  # type: ignore[no-untyped-call]
        emissions, transitions, lengths, target_lengths
    )
    return torch.where(target_lengths <= lengths - 2, total, -math.inf)


def align(emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return the target token at each vertex of the most probable path, (B, L); -1 for vertices outside the path.

    The arguments are those of `log_likelihood`. A target with more tokens than vertices is not aligned.
    """
    ends, origins = best_paths(emissions, transitions, lengths, target_lengths)
    assigned = trace_back(ends, origins, target_lengths)
    return assigned.masked_fill((target_lengths > lengths - 2)[:, None], -1)


def best_paths(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Find the most probable paths with 0 to U tokens by the Viterbi algorithm.

    Paths with more tokens than the target, if target lengths are given, have undefined values.

    Returns:
        The log-probability of the best path by number of tokens and vertex of the last one, with the transition to the
        last vertex, (U + 1, B, L), and for each token and vertex the previous vertex of the path, (U, B, L).
    """
    emissions = _mask_emissions(emissions, lengths)
    if dispatch.dag_kernels_apply(emissions, transitions):
        counts = torch.full_like(lengths, emissions.shape[2]) if target_lengths is None else target_lengths
        best, origins = _best_paths_kernel(emissions, transitions, lengths, counts)
    else:
        best, origins = find_best_paths(emissions, transitions)
    return best + _to_last(transitions, lengths), origins


def trace_back(ends: Tensor, origins: Tensor, counts: Tensor) -> Tensor:
    """Return the best path with a number of tokens, (B,), as the token at each vertex, (B, L), or -1."""
    B, L = ends.shape[1:]
    vertex = _take(ends, counts).argmax(1, keepdim=True)
    assigned = torch.full((B, L + 1), -1, device=ends.device)
    for u in reversed(range(len(origins))):
        active = (u < counts)[:, None]
        assigned.scatter_(1, torch.where(active, vertex, L), u)  # column L is discarded
        vertex = torch.where(active, origins[u].gather(1, vertex), vertex)
    return assigned[:, :L]


def visit_probabilities(transitions: Tensor, lengths: Tensor) -> Tensor:
    """Return the probability that a path visits each vertex, (B, L); differentiable.

    Args:
        transitions: Log-probability of the transition between every two vertices, (B, L, L).
        lengths: Number of vertices of each graph, (B,).
    """
    with torch.autocast(transitions.device.type, enabled=False):
        return _visits(mask_transitions(transitions, lengths).exp())


def ngram_overlap(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, tokens: Tensor, target_lengths: Tensor, n: int
) -> Tensor:
    """Return the expected n-gram precision of each graph times its brevity penalty, (B,) from 0 to 1 (FA-DAT).

    The precision (Ma et al. 2023) is the expected number of n-grams of the target on a path, clipped to their number in
    the target, divided by the expected number of all n-grams on a path. The brevity penalty is that of BLEU with the
    expected number of tokens. Targets and paths begin with BOS and end with END, which count as parts of n-grams.

    The arguments are those of `log_likelihood`, and the tokens of the targets, (B, U). The result is differentiable, in
    float32 or float64.
    """
    with torch.autocast(emissions.device.type, enabled=False):  # half precision would round the products
        return _ngram_overlap(emissions, transitions, lengths, tokens, target_lengths, n)


def _ngram_overlap(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, tokens: Tensor, target_lengths: Tensor, n: int
) -> Tensor:
    L, U = emissions.shape[1:]
    probs = mask_transitions(transitions, lengths).exp()
    visits = _visits(probs)
    vertices, columns = torch.arange(L, device=probs.device), torch.arange(U + 2, device=probs.device)
    is_end = columns == target_lengths[:, None] + 1  # (B, U + 2)
    starts = (vertices == 0)[:, None] & (columns == 0)
    ends = (vertices == lengths[:, None] - 1)[:, :, None] & is_end[:, None]
    e_BLU = F.pad(_mask_emissions(emissions, lengths).to(probs.dtype).exp(), (1, 1))
    e_BLU = torch.where((columns <= target_lengths[:, None])[:, None], e_BLU, 0)
    e_BUL = torch.where(starts | ends, 1.0, e_BLU).transpose(1, 2)
    # Expected number of occurrences of each n-gram of the target, by the vertex of its last token.
    windows = U + 3 - n
    counts, totals = visits[:, None] * e_BUL[:, :windows], visits
    for k in range(1, n):
        counts, totals = (counts @ probs) * e_BUL[:, k : windows + k], (totals[:, None] @ probs)[:, 0]
    is_ngram = columns[:windows] <= target_lengths[:, None] + 2 - n
    allowed = _count_ngrams(F.pad(tokens, (1, 1), value=BOUNDARY).masked_fill(is_end, END), is_ngram, n)
    matches = torch.minimum(counts.sum(2), allowed).sum(1)
    length = (visits.sum(1) - 2).clamp(min=MIN_LENGTH)
    penalty = (1 - target_lengths / length).clamp(max=0).exp()
    overlap: Tensor = penalty * matches / totals.sum(1).clamp(min=MIN_LENGTH)
    return overlap


def _count_ngrams(tokens: Tensor, is_ngram: Tensor, n: int) -> Tensor:
    """Return how often each n-gram, (B, W), occurs in its target at its first position, and 0 at all others."""
    W = is_ngram.shape[1]
    equal = is_ngram[:, :, None] & is_ngram[:, None]
    for k in range(n):
        part = tokens[:, k : W + k]
        equal = equal & (part[:, :, None] == part[:, None])
    is_repeated = equal.tril(-1).any(2)
    return torch.where(is_repeated, 0, equal.sum(2))


def _visits(probs: Tensor) -> Tensor:
    """Return the sum of e E^k over all k, (B, L), where E are the probabilities of transitions and e = (1, 0, ..., 0).

    Each iteration doubles the number of terms. Unlike triangular solvers, products can be captured on every GPU.
    """
    B, L, _ = probs.shape
    visits = probs.new_zeros(B, 1, L)
    visits[..., 0].fill_(1)
    terms = 1
    while terms < L:  # the power L of E is 0
        visits = visits + visits @ probs
        probs, terms = probs @ probs if 2 * terms < L else probs, 2 * terms
    return visits[:, 0]


class _LogLikelihood(torch.autograd.Function):
    """The forward-backward algorithm, whose posteriors are the gradients of the log-likelihood."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
        use_kernels = dispatch.dag_kernels_apply(emissions, transitions)
        graphs = emissions, transitions, lengths, target_lengths
        reached = (_sum_paths_kernel if use_kernels else sum_paths)(*graphs)
        total = (_take(reached, target_lengths) + _to_last(transitions, lengths)).logsumexp(1)
        ctx.save_for_backward(*graphs, reached, total)
        ctx.use_kernels = use_kernels
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        emissions, transitions, lengths, target_lengths, reached, total = ctx.saved_tensors
        grad = torch.where(target_lengths <= lengths - 2, grad, 0)
        total = total.clamp(min=LOG_ZERO / 2)  # targets that do not fit have no posterior
        compute = _posteriors_kernel if ctx.use_kernels else posteriors
        node, edge = compute(emissions, transitions, lengths, target_lengths, reached, total)
        return node * grad[:, None, None], edge * grad[:, None, None], None, None


# The formulas


def find_best_paths(emissions: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the best path to each vertex with each number of tokens, and previous vertices."""
    B, L, U = emissions.shape
    best, origins = [_start(emissions)], torch.empty(U, B, L, dtype=torch.long, device=emissions.device)
    for u in range(U):
        score, origins[u] = (best[-1][:, :, None] + transitions).max(1)
        best.append(score + emissions[:, :, u])
    return torch.stack(best), origins


def sum_paths(emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return the log-probability of reaching each vertex with each number of tokens, (U + 1, B, L)."""
    reached = [_start(emissions)]
    for u in range(emissions.shape[2]):
        reached.append((reached[-1][:, :, None] + transitions).logsumexp(1) + emissions[:, :, u])
    return torch.stack(reached)


def posteriors(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor, reached: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the probabilities that a path of the target has token u at a vertex and that it uses a transition.

    Args:
        reached: Result of `sum_paths`.
        total: Log-probability of each target, (B,).

    Returns:
        Posteriors of vertices, (B, L, U), and of transitions, (B, L, L).
    """
    rest = _to_last(transitions, lengths)  # log-probability of the rest of the target after each vertex, (B, L)
    last = torch.arange(rest.shape[1], device=rest.device) == lengths[:, None] - 1
    edge = (_take(reached, target_lengths) + rest - total[:, None]).exp()[:, :, None] * last[:, None]
    node = torch.zeros_like(emissions)
    for u in reversed(range(emissions.shape[2])):
        active = u < target_lengths
        node[:, :, u] = (reached[u + 1] + rest - total[:, None]).exp() * active[:, None]
        onward = transitions + (emissions[:, :, u] + rest)[:, None]  # from each vertex over the vertex of token u
        edge += (reached[u][:, :, None] + onward - total[:, None, None]).exp() * active[:, None, None]
        rest = torch.where(active[:, None], onward.logsumexp(2), rest)
    return node, edge


# The same by kernels


def _best_paths_kernel(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    from regard.ops.triton import dag as kernels

    B, L, U = emissions.shape
    best = emissions.new_full((U + 1, B, L), LOG_ZERO)
    best[0, :, 0].zero_()
    origins = torch.zeros(U, B, L, dtype=torch.long, device=emissions.device)
    graphs = emissions.transpose(1, 2).contiguous(), transitions.contiguous(), lengths, target_lengths
    with on_device(emissions):
        kernels.best_paths[(B,)](*graphs, best, origins, L, U, BLOCK=BLOCK)
    return best, origins


def _sum_paths_kernel(emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
    from regard.ops.triton import dag as kernels

    B, L, U = emissions.shape
    reached = emissions.new_full((U + 1, B, L), LOG_ZERO)
    reached[0, :, 0].zero_()
    rows = emissions.transpose(1, 2).contiguous()
    with on_device(emissions):
        kernels.sum_paths[(B,)](rows, transitions.contiguous(), lengths, target_lengths, reached, L, U, BLOCK=BLOCK)
    return reached


def _posteriors_kernel(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target_lengths: Tensor, reached: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    from regard.ops.triton import dag as kernels

    B, L, U = emissions.shape
    rests, edge = (
        torch.full_like(reached, LOG_ZERO),
        torch.empty_like(transitions, memory_format=torch.contiguous_format),
    )
    graphs = emissions.transpose(1, 2).contiguous(), transitions.contiguous(), lengths, target_lengths
    blocks = -(-L // BLOCK)
    with on_device(emissions):
        kernels.sum_rests[(B,)](*graphs, rests, L, U, BLOCK=BLOCK)
        kernels.edge_posteriors[(B, blocks, blocks)](*graphs, reached, rests, total, edge, L, U, BLOCK=BLOCK)
    node = (reached[1:] + rests[1:] - total[:, None]).exp()
    active = torch.arange(U, device=total.device)[:, None] < target_lengths
    return (node * active[..., None]).permute(1, 2, 0), edge


def _take(states: Tensor, target_lengths: Tensor) -> Tensor:
    """Return the states, (U + 1, B, L), after the last token of each target, (B, L)."""
    return states[target_lengths.long().clamp(max=len(states) - 1), torch.arange(states.shape[1], device=states.device)]


def _start(emissions: Tensor) -> Tensor:
    """Return the log-probability of each vertex at the start of a path, (B, L)."""
    start = emissions.new_full(emissions.shape[:2], LOG_ZERO)
    start[:, 0].zero_()
    return start


def _to_last(transitions: Tensor, lengths: Tensor) -> Tensor:
    """Return the log-probability of the transition from each vertex to the last one, (B, L)."""
    last = (lengths - 1).long().clamp(min=0)[:, None, None].expand(-1, transitions.shape[1], 1)
    return transitions.gather(2, last)[..., 0]


def _mask_emissions(emissions: Tensor, lengths: Tensor) -> Tensor:
    """Return log-probabilities (B, L, U) with `LOG_ZERO` at the first and the last vertex, which predict no token."""
    vertices = torch.arange(emissions.shape[1], device=emissions.device)
    inner = (vertices > 0) & (vertices < lengths[:, None] - 1)
    return emissions.masked_fill(~inner[..., None], LOG_ZERO)
