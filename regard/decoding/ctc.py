"""Connectionist temporal classification: what a canvas with blanks says, and where on it a given target stands.

A path has one token, or the blank, at every place. It says what is left once repetitions are joined and then blanks
dropped, so that many paths say the same: "a·ab" and "aa·a·b", say, are both "aab", and only a blank keeps two equal
tokens apart. A target is as likely as all of its paths together.

Shapes: B sentences, T places of the canvas, V vocabulary, K hypotheses, U tokens of a target, L = 2 U + 1 states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding import ctc_loss as ctc_sum

MINIMUM_CHOICE = 8


def collapse(path: list[int], blank: int) -> list[int]:
    """What one path says."""
    return [token for token, _ in groupby(path) if token != blank]


def begins(path: Tensor, blank: int) -> Tensor:
    """Where a token of what the paths (B, T) say begins."""
    return (path != blank) & (path != _later(path, 1, blank))


def places_needed(targets: Tensor, lengths: Tensor) -> Tensor:
    """How many places the shortest path of each target (B, U) has: equal neighbours need a blank between them."""
    inside = torch.arange(1, targets.shape[1], device=targets.device) < lengths[:, None]
    repeats: Tensor = ((targets[:, 1:] == targets[:, :-1]) & inside).sum(1)
    return lengths + repeats


def log_likelihood(logp: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The log-probability of every target, all of its paths together, (B,); -inf where the canvas is too short.

    Where it is too short, gradients are zero.
    """
    loss = F.ctc_loss(
        logp.transpose(0, 1), targets, lengths, target_lengths, blank=blank, reduction="none", zero_infinity=True
    )
    fits = places_needed(targets, target_lengths) <= lengths
    return torch.where(fits, -loss, -math.inf)


def align(logp: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The likeliest of the paths that say each target, (B, T); blanks where no path is long enough."""
    states = states_of(targets, blank)
    emissions = logp.gather(2, states[:, None].expand(-1, logp.shape[1], -1))
    return align_states(emissions, lengths, states, target_lengths, blank)


def states_of(targets: Tensor, blank: int) -> Tensor:
    """What the paths of each target pass through, (B, L): a blank, its first token, a blank, and so on."""
    states = targets.new_full((len(targets), 2 * targets.shape[1] + 1), blank)
    states[:, 1::2] = targets
    return states


def add_up_states(emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """`log_likelihood` of targets given as states, (B, L), whose log-probabilities at every place are (B, T, L).

    Nothing here waits for the device, unlike PyTorch's loss, which is why a recording can have it.
    """
    found = ctc_sum.add_up(emissions, lengths, states, target_lengths, blank)
    fits = places_needed(states[:, 1::2], target_lengths) <= lengths
    return torch.where(fits, found, -math.inf)


def align_states(emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """`align` for targets given as `add_up_states` takes them, by Viterbi's algorithm."""
    T = emissions.shape[1]
    skipping = torch.where(ctc_sum.may_skip(states, blank), 0.0, -math.inf)
    best = torch.full_like(emissions[:, 0], -math.inf)
    best[:, :2] = emissions[:, 0, :2]
    moves = []
    for t in range(1, T):
        ways = torch.stack((best, _later(best, 1, -math.inf), _later(best, 2, -math.inf) + skipping))
        chosen, move = ways.max(0)
        going = (t < lengths)[:, None]
        best = torch.where(going, chosen + emissions[:, t], best)
        moves.append(torch.where(going, move, 0))
    last = 2 * target_lengths[:, None]
    ends = torch.cat((last, (last - 1).clamp(min=0)), 1)
    score, which = best.gather(1, ends).max(1)
    state = ends.gather(1, which[:, None])
    visited = [state]
    for move in reversed(moves):
        state = state - move.gather(1, state)
        visited.append(state)
    path = states.gather(1, torch.cat(visited[::-1], 1)[:, :T])
    possible = (score > -math.inf)[:, None] & (torch.arange(T, device=lengths.device) < lengths[:, None])
    return path.masked_fill(~possible, blank)


def _later(x: Tensor, by: int, filler: float) -> Tensor:
    """Rows moved to the right."""
    return F.pad(x, (by, 0), value=filler)[:, : x.shape[1]]


@dataclass
class _Beam:
    """K prefixes of every sentence; the probability of each is split by whether its last place is blank."""

    tokens: Tensor  # (B, K, T)
    lengths: Tensor  # (B, K)
    last: Tensor  # (B, K): the last token, -1 where there is none
    blank: Tensor  # (B, K): log-probability of the paths that end in a blank
    filled: Tensor  # (B, K): of those that end in the last token

    @property
    def total(self) -> Tensor:
        return torch.logaddexp(self.blank, self.filled)


def search_prefixes(logp: Tensor, lengths: Tensor, blank: int, beam: int) -> list[list[tuple[list[int], float]]]:
    """The `beam` likeliest targets of every sentence, all of their paths counted, best first, by prefix search.

    Only a place's likeliest tokens begin a new prefix there, as many as the beam is wide and a few at the least.
    """
    B, T, V = logp.shape
    outside = torch.arange(T, device=logp.device) >= lengths[:, None]
    # Behind the end of its canvas a sentence says blank for certain, which changes nothing.
    certain = torch.full((V,), -math.inf, device=logp.device).index_fill(0, torch.tensor([blank]).to(logp.device), 0.0)
    logp = torch.where(outside[..., None], certain, logp).double()
    choice = min(V, max(beam, MINIMUM_CHOICE))
    state = _Beam(
        tokens=torch.full((B, 1, T), blank, device=logp.device),
        lengths=torch.zeros((B, 1), dtype=torch.long, device=logp.device),
        last=torch.full((B, 1), -1, device=logp.device),
        blank=logp.new_zeros(B, 1),
        filled=logp.new_full((B, 1), -math.inf),
    )
    for t in range(T):
        state = _extend(state, logp[:, t], blank, beam, choice)
    rows = zip(state.tokens.tolist(), state.lengths.tolist(), state.total.tolist(), strict=True)
    return [
        [(row[:n], score) for row, n, score in zip(*sentence, strict=True) if score > -math.inf] for sentence in rows
    ]


def _extend(state: _Beam, logp: Tensor, blank: int, beam: int, choice: int) -> _Beam:
    """One more place, (B, V): every prefix stays as it is, or gets one more token."""
    total, K, width = state.total, *state.tokens.shape[1:]
    stay_blank = total + logp[:, None, blank]
    repeated = logp.gather(1, state.last.clamp(min=0))
    stay_filled = state.filled + repeated.masked_fill(state.last < 0, -math.inf)
    gain, new = logp.index_fill(1, torch.tensor([blank], device=logp.device), -math.inf).topk(choice, 1)
    again = state.last[..., None] == new[:, None]  # a token directly behind itself needs a blank between
    grown = torch.where(again, state.blank[..., None], total[..., None]) + gain[:, None]  # (B, K, choice)
    # A prefix that grows into one that the beam holds already is joined with it.
    parent = _grows_into(state)  # (B, K, K)
    same = parent[..., None] & (state.last[:, None, :, None] == new[:, None, None, :])  # (B, K from, K to, choice)
    joined = torch.where(same, grown[:, :, None], -math.inf).transpose(1, 2).flatten(2).logsumexp(2)
    stay_filled = torch.logaddexp(stay_filled, joined)
    grown = grown.masked_fill(same.any(2), -math.inf)
    nothing = torch.full_like(grown.flatten(1), -math.inf)
    blanks, fills = torch.cat((stay_blank, nothing), 1), torch.cat((stay_filled, grown.flatten(1)), 1)
    chosen = torch.logaddexp(blanks, fills).topk(min(beam, blanks.shape[1]), 1).indices
    stays = chosen < K
    origin = torch.where(stays, chosen, (chosen - K) // choice)
    token = new.gather(1, ((chosen - K) % choice).clamp(min=0))
    tokens = state.tokens.gather(1, origin[..., None].expand(-1, -1, width))
    lengths = state.lengths.gather(1, origin)
    here = (torch.arange(width, device=logp.device) == lengths[..., None]) & ~stays[..., None]
    return _Beam(
        tokens=torch.where(here, token[..., None], tokens),
        lengths=lengths + ~stays,
        last=torch.where(stays, state.last.gather(1, origin), token),
        blank=blanks.gather(1, chosen),
        filled=fills.gather(1, chosen),
    )


def _grows_into(state: _Beam) -> Tensor:
    """Which prefix is another one without its last token, (B, K from, K to); impossible ones are none."""
    from_, to = state.tokens[:, :, None], state.tokens[:, None]
    length = state.lengths[:, :, None]
    inside = torch.arange(state.tokens.shape[2], device=length.device) < length[..., None]
    possible = (state.total > -math.inf)[:, None]
    return ((from_ == to) | ~inside).all(-1) & (length + 1 == state.lengths[:, None]) & possible
