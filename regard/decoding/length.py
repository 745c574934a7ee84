"""Candidate target lengths of a non-autoregressive model.

Shapes: B sentences, K lengths per sentence.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.models.nat import NATransformer


class LengthCandidate(NamedTuple):
    """A target length and its log-probability, which is None if the length follows from the source length."""

    length: int
    log_prob: float | None


def predict_lengths(
    model: NATransformer, encoder_output: Tensor, layout: Padded | None, source_lengths: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the most probable target lengths and their log-probabilities, (B, K) each.

    A length difference that did not occur in training is a candidate only for sentences without any trained candidate.
    The candidates are then ordered by their distance from the source length; ties prefer the shorter one. All lengths
    are positive.

    Args:
        model: A model with a length classifier.
        encoder_output: Output of the encoder.
        layout: Layout of the encoder output.
        source_lengths: Number of source tokens, END included, (B,).
        count: Number of lengths per sentence. If there are fewer candidates, the remaining log-probabilities are -inf.
    """
    config = model.config
    reach = config.max_length_offset
    difference = torch.arange(-reach, reach + 1, device=source_lengths.device)
    lengths = source_lengths[:, None] - 1 + difference
    possible = lengths >= 1
    if config.max_positions is not None:
        possible &= lengths <= config.max_positions
    log_probs = model.length_logits(encoder_output, layout).float().log_softmax(-1)
    trained = possible & ~model.untrained_lengths()
    any_trained = trained.any(1, keepdim=True)
    allowed = torch.where(any_trained, trained, possible)
    # The logits of untrained lengths differ only by rounding, which depends on the batch.
    nearness = -(2 * difference.abs() + (difference > 0)).to(log_probs.dtype)
    rank = torch.where(any_trained, log_probs, nearness).masked_fill(~allowed, -math.inf)
    best = rank.topk(min(count, log_probs.shape[1]), 1).indices
    return lengths.gather(1, best), log_probs.masked_fill(~allowed, -math.inf).gather(1, best)


def list_candidates(lengths: Tensor, log_probs: Tensor) -> list[list[LengthCandidate]]:
    """Convert the result of `predict_lengths` to lists without the impossible lengths."""
    return [
        [LengthCandidate(length, log_prob) for length, log_prob in zip(*row, strict=True) if log_prob > -math.inf]
        for row in zip(lengths.tolist(), log_probs.tolist(), strict=True)
    ]


def length_log_probs(
    model: NATransformer,
    encoder_output: Tensor,
    layout: Padded | None,
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
) -> list[float]:
    """Return the log-probability of each given target length; differences are clipped to the range of the model."""
    reach = model.config.max_length_offset
    log_probs = model.length_logits(encoder_output, layout).float().log_softmax(-1)
    difference = [target - (source - 1) for target, source in zip(target_lengths, source_lengths, strict=True)]
    index = torch.tensor(difference, device=log_probs.device).clamp(-reach, reach) + reach
    chosen: list[float] = log_probs.gather(1, index[:, None])[:, 0].tolist()
    return chosen
