"""Connectionist temporal classification (CTC): likelihood, alignment and prefix search.

A path has one token or the blank at every position. Its target is obtained by merging repeated tokens and then removing
blanks, so that many paths have the same target: "a·ab" and "aa·a·b" both collapse to "aab". The probability of a target
is the sum over its paths.

The paths of a target pass through its states: a blank, the first token, a blank, the second token, and so on.
`state_log_likelihood` and `align_states` take targets in this form and never synchronise with the device, so that a
CUDA graph can capture them.

Shapes: B sentences, T positions, V vocabulary, U target tokens, L = 2 U + 1 states, K hypotheses.
"""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.cross_entropy import cross_entropy_

MIN_EXTENSIONS = 8
"""Minimum number of tokens per position that prefix search appends to its prefixes."""
LOG_ZERO = -1e30
"""Logarithm of zero in differentiable sums, where -inf - (-inf) would be NaN."""


def collapse(path: list[int], blank: int) -> list[int]:
    """Return the target of a path."""
    return [token for token, _ in groupby(path) if token != blank]


def token_starts(path: Tensor, blank: int) -> Tensor:
    """Mark the positions of paths (B, T) at which a token of the target starts."""
    return (path != blank) & (path != _shift_right(path, 1, blank))


def min_path_length(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the length of the shortest path of each target (B, U): repeated tokens need a blank in between."""
    inside = torch.arange(1, targets.shape[1], device=targets.device) < lengths[:, None]
    repeats: Tensor = ((targets[:, 1:] == targets[:, :-1]) & inside).sum(1)
    return lengths + repeats


def log_likelihood(log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """Return the log-probability of each target given (B, T, V), (B,); -inf with zero gradient if no path fits."""
    loss = F.ctc_loss(
        log_probs.transpose(0, 1), targets, lengths, target_lengths, blank=blank, reduction="none", zero_infinity=True
    )
    fits = min_path_length(targets, target_lengths) <= lengths
    return torch.where(fits, -loss, -math.inf)


def align(log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """Return the most probable path of each target, (B, T); blanks if no path fits."""
    states = target_states(targets, blank)
    emissions = log_probs.gather(2, states[:, None].expand(-1, log_probs.shape[1], -1))
    return align_states(emissions, lengths, states, target_lengths, blank)


# Targets as states


def target_states(targets: Tensor, blank: int) -> Tensor:
    """Return the states of each target (B, U), (B, L): its tokens with a blank before, between and after them."""
    states = targets.new_full((len(targets), 2 * targets.shape[1] + 1), blank)
    states[:, 1::2] = targets
    return states


def state_emissions(logits: Tensor, states: Tensor, sentences: Tensor, positions: Tensor, index: Tensor) -> Tensor:
    """Return the log-probability of every state at every position, (B, T, L), in float32 or better.

    The logits are overwritten if they need a gradient, so that the log-probabilities of all tokens are never in memory.
    In the backward pass, states with the same token are added in a fixed order, unlike by `gather` on a GPU.

    Args:
        logits: Logits at the positions of all sentences, concatenated, (N, V).
        states: States of the targets, (B, L).
        sentences: Sentence of each position, (N,).
        positions: Number of each position in its sentence, (N,).
        index: Where each position of a sentence is in `logits`; any value past its end, (B, T).
    """
    emissions: Tensor = _StateEmissions.apply(  # type: ignore[no-untyped-call]
        logits, states, sentences, positions, index
    )
    return emissions


class _StateEmissions(torch.autograd.Function):
    """Selection of states; see `state_emissions`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, states: Tensor, sentences: Tensor, positions: Tensor, index: Tensor
    ) -> Tensor:
        of_states = states[sentences]
        chosen = logits.gather(1, of_states).to(torch.promote_types(logits.dtype, torch.float32))
        # Replaces the logits by their probabilities, minus 1 for the first state.
        losses = cross_entropy_(logits, of_states[:, 0], 0.0, backward=ctx.needs_input_grad[0])
        ctx.save_for_backward(states, sentences, positions, logits)
        return (chosen - chosen[:, :1] - losses[:, None])[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        states, sentences, positions, probs = ctx.saved_tensors
        first = (states[:, :, None] == states[:, None]).to(torch.uint8).argmax(2)  # state with the same token, (B, L)
        is_first = first[..., None] == torch.arange(states.shape[1], device=states.device)
        # The first state of each token gets the sum of all, and zeros are added for the others.
        sums = (grad @ is_first.to(grad.dtype))[sentences, positions]
        total = sums.sum(1)
        sums[:, 0] -= total
        gradient = torch.mul(probs, -total[:, None], out=torch.empty_like(probs))
        return gradient.scatter_add_(1, states[sentences], sums.to(probs.dtype)), None, None, None, None


def align_states(emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """Return the most probable path of each target by the Viterbi algorithm; see `align`.

    Args:
        emissions: Log-probability of every state at every position, (B, T, L).
        lengths: Number of positions, (B,).
        states: States of the targets, (B, L).
        target_lengths: Number of target tokens, (B,).
        blank: The blank token.
    """
    T = emissions.shape[1]
    skip_penalty = torch.where(_can_skip(states, blank), 0.0, -math.inf)
    best = torch.full_like(emissions[:, 0], -math.inf)
    best[:, :2] = emissions[:, 0, :2]
    moves = []  # number of states advanced at each position, (B, L)
    for t in range(1, T):
        stay, advance = best, _shift_right(best, 1, -math.inf)
        skip = _shift_right(best, 2, -math.inf) + skip_penalty
        score, move = torch.stack((stay, advance, skip)).max(0)
        active = (t < lengths)[:, None]
        best = torch.where(active, score + emissions[:, t], best)
        moves.append(torch.where(active, move, 0))
    last = 2 * target_lengths[:, None]
    final_states = torch.cat((last, (last - 1).clamp(min=0)), 1)
    score, which = best.gather(1, final_states).max(1)
    state = final_states.gather(1, which[:, None])
    visited = [state]
    for move in reversed(moves):
        state = state - move.gather(1, state)
        visited.append(state)
    path = states.gather(1, torch.cat(visited[::-1], 1)[:, :T])
    valid = (score > -math.inf)[:, None] & (torch.arange(T, device=lengths.device) < lengths[:, None])
    return path.masked_fill(~valid, blank)


def state_log_likelihood(
    emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """Return the log-probability of each target, (B,); see `log_likelihood`, and `align_states` for the arguments."""
    total: Tensor = _StateLogLikelihood.apply(  # type: ignore[no-untyped-call]
        emissions, lengths, states, target_lengths, blank
    )
    fits = min_path_length(states[:, 1::2], target_lengths) <= lengths
    return torch.where(fits, total, -math.inf)


class _StateLogLikelihood(torch.autograd.Function):
    """The forward-backward algorithm.

    `forward` runs the forward recursion on each sequence and on its reversal, side by side. The product of the two
    gives the posterior of every state, which is the gradient of the log-likelihood.
    """

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int
    ) -> Tensor:
        B, T, L = emissions.shape
        positions = _reverse_prefix(torch.arange(T, device=lengths.device), lengths)
        indices = _reverse_prefix(torch.arange(L, device=lengths.device), 2 * target_lengths + 1)
        both = torch.cat((emissions, _reorder(emissions, positions, indices)))
        can_skip = _can_skip(torch.cat((states, states.gather(1, indices))), blank)
        prior, final = _forward_recursion(both, lengths.repeat(2), can_skip)
        last = 2 * target_lengths[:, None]
        in_blank, in_token = final[:B].gather(1, last), final[:B].gather(1, (last - 1).clamp(min=0))
        total = torch.logaddexp(in_blank, torch.where(last > 0, in_token, LOG_ZERO))[:, 0]
        ctx.save_for_backward(emissions, lengths, target_lengths, prior, positions, indices, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        emissions, lengths, target_lengths, prior, positions, indices, total = ctx.saved_tensors
        B, T, L = emissions.shape
        before, after = prior.transpose(0, 1).split(B)
        after = _reorder(after, positions, indices)
        in_sequence = (torch.arange(T, device=lengths.device) < lengths[:, None])[..., None]
        in_target = (torch.arange(L, device=lengths.device) <= 2 * target_lengths[:, None])[:, None]
        valid = in_sequence & in_target & (total > LOG_ZERO / 2)[:, None, None]
        posterior = (before + emissions + after - total[:, None, None]).masked_fill(~valid, LOG_ZERO).exp()
        return posterior * grad[:, None, None], None, None, None, None


def _forward_recursion(emissions: Tensor, lengths: Tensor, can_skip: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over the paths that lead to each state.

    Returns:
        The log-probability of reaching each state at each position, before its emission, (T, B, L), and of being in it
        after the last position, (B, L).
    """
    B, T, L = emissions.shape
    skip_penalty = torch.where(can_skip, 0.0, LOG_ZERO).to(emissions.dtype)
    prior = emissions.new_empty(T, B, L)
    prior[0] = torch.where(torch.arange(L, device=emissions.device) < 2, 0.0, LOG_ZERO)
    padded = F.pad(prior[0] + emissions[:, 0], (2, 0), value=LOG_ZERO)  # neighbours are views of the padded tensor
    current, previous, skipped = padded[:, 2:], padded[:, 1:-1], padded[:, :-2]
    for t in range(1, T):
        torch.logaddexp(torch.logaddexp(current, previous), skipped + skip_penalty, out=prior[t])
        torch.where((t < lengths)[:, None], prior[t] + emissions[:, t], current, out=current)
    return prior, current


def _reorder(x: Tensor, positions: Tensor, indices: Tensor) -> Tensor:
    """Reorder (B, T, L) by positions (B, T) and state indices (B, L)."""
    _, T, L = x.shape
    return x.gather(1, positions[..., None].expand(-1, -1, L)).gather(2, indices[:, None].expand(-1, T, -1))


def _reverse_prefix(index: Tensor, counts: Tensor) -> Tensor:
    """Return indices (B, N) that reverse the first `counts` elements of each row and keep the rest."""
    return torch.where(index < counts[:, None], counts[:, None] - 1 - index, index)


def _can_skip(states: Tensor, blank: int) -> Tensor:
    """Mark tokens that may follow the previous token without a blank: those that differ from it."""
    return (states != blank) & (states != _shift_right(states, 2, blank))


def _shift_right(x: Tensor, by: int, fill: float) -> Tensor:
    return F.pad(x, (by, 0), value=fill)[:, : x.shape[1]]


# Prefix search
#
# The probability of a prefix is that of all paths which collapse to it, split by whether their last position is blank.
# At every position, with the log-probabilities p of the tokens there, a prefix that ends in token c either stays, or is
# extended by a token:
#
#   staying, ending in a blank:  p(blank) + logaddexp(log_prob_blank, log_prob_token)
#   staying, ending in c:        p(c) + log_prob_token, as a repeated token without a blank in between is one token
#   extended by a token n ≠ c:   p(n) + logaddexp(log_prob_blank, log_prob_token)
#   extended by c again:         p(c) + log_prob_blank
#
# Shapes: B sentences, K prefixes per sentence, T positions, V vocabulary, E extensions of a prefix.


@dataclass
class _Prefixes:
    """K prefixes per sentence and their log-probabilities."""

    tokens: Tensor  # (B, K, T)
    lengths: Tensor  # (B, K)
    last: Tensor  # last token, -1 for the empty prefix, (B, K)
    log_prob_blank: Tensor  # of the paths that end in a blank, (B, K)
    log_prob_token: Tensor  # of the paths that end in the last token, (B, K)

    @property
    def log_prob(self) -> Tensor:
        return torch.logaddexp(self.log_prob_blank, self.log_prob_token)


def search_prefixes(log_probs: Tensor, lengths: Tensor, blank: int, beam: int) -> list[list[tuple[list[int], float]]]:
    """Return the `beam` most probable targets of every sentence with their log-probabilities, best first.

    All paths of a target count. A prefix is extended only by the most probable tokens of each position: as many as the
    beam is wide, but at least `MIN_EXTENSIONS`.
    """
    B, T, V = log_probs.shape
    device = log_probs.device
    outside = torch.arange(T, device=device) >= lengths[:, None]
    # A blank of probability 1 after the end of a sequence does not change its prefixes.
    only_blank = torch.full((V,), -math.inf, device=device).index_fill(0, torch.tensor([blank]).to(device), 0.0)
    log_probs = torch.where(outside[..., None], only_blank, log_probs).double()
    prefixes = _Prefixes(
        tokens=torch.full((B, 1, T), blank, device=device),
        lengths=torch.zeros((B, 1), dtype=torch.long, device=device),
        last=torch.full((B, 1), -1, device=device),
        log_prob_blank=log_probs.new_zeros(B, 1),
        log_prob_token=log_probs.new_full((B, 1), -math.inf),
    )
    extensions = min(V, max(beam, MIN_EXTENSIONS))
    for t in range(T):
        prefixes = _advance(prefixes, log_probs[:, t], blank, beam, extensions)
    rows = zip(prefixes.tokens.tolist(), prefixes.lengths.tolist(), prefixes.log_prob.tolist(), strict=True)
    return [
        [(tokens[:n], score) for tokens, n, score in zip(*sentence, strict=True) if score > -math.inf]
        for sentence in rows
    ]


def _advance(prefixes: _Prefixes, log_probs_BV: Tensor, blank: int, beam: int, extensions: int) -> _Prefixes:
    """Process one position: every prefix stays as it is or is extended by one of the most probable tokens."""
    without_blank = log_probs_BV.index_fill(1, torch.tensor([blank], device=log_probs_BV.device), -math.inf)
    candidate_scores_BE, candidates_BE = without_blank.topk(extensions, 1)
    blank_scores_BK = prefixes.log_prob + log_probs_BV[:, None, blank]
    repeated_BK = log_probs_BV.gather(1, prefixes.last.clamp(min=0)).masked_fill(prefixes.last < 0, -math.inf)
    token_scores_BK = prefixes.log_prob_token + repeated_BK
    extended_BKE = _extend(prefixes, candidates_BE, candidate_scores_BE)
    token_scores_BK, extended_BKE = _merge_duplicates(prefixes, candidates_BE, token_scores_BK, extended_BKE)
    return _select_best(prefixes, candidates_BE, blank_scores_BK, token_scores_BK, extended_BKE, beam)


def _extend(prefixes: _Prefixes, candidates_BE: Tensor, scores_BE: Tensor) -> Tensor:
    """Return the log-probability of each prefix extended by each candidate, (B, K, E)."""
    repeats_last = prefixes.last[..., None] == candidates_BE[:, None]  # a token repeats only after a blank
    before = torch.where(repeats_last, prefixes.log_prob_blank[..., None], prefixes.log_prob[..., None])
    return before + scores_BE[:, None]


def _merge_duplicates(
    prefixes: _Prefixes, candidates_BE: Tensor, token_scores_BK: Tensor, extended_BKE: Tensor
) -> tuple[Tensor, Tensor]:
    """Add extensions that are prefixes of the beam already to the scores of these, and exclude them as extensions."""
    is_parent = _is_parent(prefixes)  # (B, K parent, K child), and `same` has the extension of the parent in addition
    same = is_parent[..., None] & (prefixes.last[:, None, :, None] == candidates_BE[:, None, None, :])
    by_parent = torch.where(same, extended_BKE[:, :, None], -math.inf)
    merged_BK = by_parent.transpose(1, 2).flatten(2).logsumexp(2)
    return torch.logaddexp(token_scores_BK, merged_BK), extended_BKE.masked_fill(same.any(2), -math.inf)


def _select_best(
    prefixes: _Prefixes,
    candidates_BE: Tensor,
    blank_scores_BK: Tensor,
    token_scores_BK: Tensor,
    extended_BKE: Tensor,
    beam: int,
) -> _Prefixes:
    """Return the `beam` most probable of the prefixes that stay and those that are extended."""
    (_, K, T), E = prefixes.tokens.shape, candidates_BE.shape[1]
    extended = extended_BKE.flatten(1)
    blank_scores = torch.cat((blank_scores_BK, torch.full_like(extended, -math.inf)), 1)  # (B, K + K · E)
    token_scores = torch.cat((token_scores_BK, extended), 1)
    chosen = torch.logaddexp(blank_scores, token_scores).topk(min(beam, blank_scores.shape[1]), 1).indices
    stays = chosen < K
    origin = torch.where(stays, chosen, (chosen - K) // E)
    new_token = candidates_BE.gather(1, ((chosen - K) % E).clamp(min=0))
    tokens, lengths = prefixes.tokens.gather(1, origin[..., None].expand(-1, -1, T)), prefixes.lengths.gather(1, origin)
    appended = (torch.arange(T, device=tokens.device) == lengths[..., None]) & ~stays[..., None]
    return _Prefixes(
        tokens=torch.where(appended, new_token[..., None], tokens),
        lengths=lengths + ~stays,
        last=torch.where(stays, prefixes.last.gather(1, origin), new_token),
        log_prob_blank=blank_scores.gather(1, chosen),
        log_prob_token=token_scores.gather(1, chosen),
    )


def _is_parent(prefixes: _Prefixes) -> Tensor:
    """Mark pairs (B, K parent, K child) in which the parent is the child without its last token."""
    parent, child = prefixes.tokens[:, :, None], prefixes.tokens[:, None]
    length = prefixes.lengths[:, :, None]
    inside = torch.arange(prefixes.tokens.shape[2], device=length.device) < length[..., None]
    reachable = (prefixes.log_prob > -math.inf)[:, None]
    return ((parent == child) | ~inside).all(-1) & (length + 1 == prefixes.lengths[:, None]) & reachable
