"""Likelihood and alignment of connectionist temporal classification (CTC).

A path has one token or the blank at every position. Its target is obtained by merging repeated tokens and then removing
blanks, so that many paths have the same target: "a·ab" and "aa·a·b" both collapse to "aab". The probability of a target
is the sum over its paths.

The paths of a target pass through its states: a blank, the first token, a blank, the second token, and so on.
`state_log_likelihood` and `align_states` take targets in this form and never synchronise with the device, so that a
CUDA graph can capture them.

Shapes: B sentences, T positions, V vocabulary, U target tokens, L = 2 U + 1 states.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG_ZERO = -1e30
"""Logarithm of zero in differentiable sums, where -inf - (-inf) would be NaN."""


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
