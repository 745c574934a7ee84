"""The arithmetic of filling canvases, in which the device is never asked: one pass, several, and lengths to try.

Shapes: B sentences, R rows (every length that is tried of every sentence), T places of the canvas, V vocabulary,
K lengths tried of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.models.nat import NATransformer

Guess = tuple[int, float | None]
"""A length, and its log-probability where it was guessed."""


class Written(NamedTuple):
    """Canvases after a pass, all (R, T)."""

    tokens: Tensor
    gains: Tensor  # log-probabilities
    read: Tensor  # the canvas that the last pass read which wrote anything in this row
    written: Tensor  # whether this pass wrote it


def fill(
    model: NATransformer, memory: Tensor, layout: Padded | None, memory_layout: Padded | None, canvas: Tensor
) -> Tensor:
    """The log-probabilities of what may be written at every place, (R, T, V), by one pass."""
    logp = model.logits(model.decode(canvas, memory, layout, memory_layout)).float().log_softmax(-1)
    for token in model.config.forbidden_tokens:
        logp[..., token] = -math.inf
    return logp


def refine(say: Callable[[Tensor], Tensor], blank: Tensor, lengths: Tensor, iterations: int) -> Iterator[Written]:
    """Fills canvases of masks in so many passes; gives what stands there after each.

    Between two passes the least certain tokens are masked again, fewer each time: after pass r of n, (n - r) / n of
    them (mask-predict, Ghazvininejad et al. 2019). Certainty is the probability a token had when it was written.

    Args:
        say: the log-probabilities of what may be written, (R, T, V), given the canvas.
        blank: canvases of masks, (R, T).
        lengths: how many places each has, (R,).
        iterations: how many passes.
    """
    best = say(blank).max(-1)
    tokens, gains, read = best.indices, best.values, blank
    yield Written(tokens, gains, read, torch.ones_like(blank, dtype=torch.bool))
    for done in range(1, iterations):
        hidden = least_certain(gains, lengths, lengths * (iterations - done) // iterations)
        canvas = torch.where(hidden, blank, tokens)
        best = say(canvas).max(-1)
        tokens, gains = torch.where(hidden, best.indices, tokens), torch.where(hidden, best.values, gains)
        read = torch.where(hidden.any(1, keepdim=True), canvas, read)
        yield Written(tokens, gains, read, hidden)


def active_iterations(longest: int, iterations: int) -> int:
    """How many of the iterations mask a place at all where the longest canvas has so many."""
    return max(1, sum(longest * (iterations - done) // iterations > 0 for done in range(iterations)))


def least_certain(gains: Tensor, lengths: Tensor, counts: Tensor) -> Tensor:
    """Marks so many places of every row (R, T) that were written with the least probability."""
    places = torch.arange(gains.shape[1], device=gains.device)
    inside = places < lengths[:, None]
    order = gains.masked_fill(~inside, math.inf).argsort(stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, places.expand_as(order))
    return ranks < counts[:, None]


def likeliest_lengths(
    model: NATransformer, memory: Tensor, layout: Padded | None, sizes: Tensor, wanted: int
) -> tuple[Tensor, Tensor]:
    """The likeliest lengths and their log-probabilities, (B, K); -inf where there are no more. None is below one.

    A length by which no training pair differed from its source is no guess: such lengths are tried only where there is
    no other, the nearest to the source's length first, and of two the shorter.

    Args:
        model: guesses.
        memory: the encoder's vectors.
        layout: theirs.
        sizes: how many there are of each sentence, (B,), the source's END counted, which the target does not have.
        wanted: how many lengths, or fewer where the model knows fewer.
    """
    config = model.config
    reach = config.length_reach
    further = torch.arange(-reach, reach + 1, device=sizes.device)
    lengths = sizes[:, None] - 1 + further
    possible = lengths >= 1
    if config.positions == "learned":
        possible &= lengths <= config.max_length
    logp = model.length_logits(memory, layout).float().log_softmax(-1)
    known = possible & ~model.untrained_lengths()
    knows = known.any(1, keepdim=True)
    tried = torch.where(knows, known, possible)
    # Unseen lengths are equally likely but for rounding, which depends on the batch: something else must decide.
    nearness = -(2 * further.abs() + (further > 0)).to(logp.dtype)
    rank = torch.where(knows, logp, nearness).masked_fill(~tried, -math.inf)
    best = rank.topk(min(wanted, logp.shape[1]), 1).indices
    return lengths.gather(1, best), logp.masked_fill(~tried, -math.inf).gather(1, best)


def guesses(lengths: Tensor, gains: Tensor) -> list[list[Guess]]:
    """What `likeliest_lengths` found, as lists."""
    return [
        [(length, gain) for length, gain in zip(*row, strict=True) if gain > -math.inf]
        for row in zip(lengths.tolist(), gains.tolist(), strict=True)
    ]
