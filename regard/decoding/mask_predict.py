"""Decoding of non-autoregressive models with a length classifier: candidate lengths, and mask-predict for each of them.

Mask-predict (Ghazvininejad et al. 2019) predicts all tokens and then the least confident ones again. Functions on
tensors never synchronise with the device, so that a CUDA graph can capture them.

Shapes: B sentences, K lengths per sentence, R rows (one per candidate length of every sentence), T target positions, V
vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.masks import Padded
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


class NATOutput(NamedTuple):
    """Predicted targets, (R, T) each."""

    tokens: Tensor
    log_probs: Tensor  # log-probability of each token when it was predicted
    decoder_input: Tensor  # input of the last iteration that updated the row


def token_log_probs(
    model: NATransformer,
    encoder_output: Tensor,
    layout: Padded | None,
    source_layout: Padded | None,
    decoder_input: Tensor,
) -> Tensor:
    """Return the log-probabilities of the tokens at every position, (R, T, V), with -inf for forbidden tokens."""
    return log_probs_of(model, model.decode(decoder_input, encoder_output, layout, source_layout))


def log_probs_of(model: NATransformer, x: Tensor) -> Tensor:
    """Return the log-probabilities of decoder outputs, (R, T, W) to (R, T, V), with -inf for forbidden tokens."""
    log_probs = model.logits(x).float().log_softmax(-1)
    for token in model.config.forbidden_tokens:
        log_probs[..., token] = -math.inf
    return log_probs


def mask_predict(
    predict: Callable[[Tensor], Tensor], masked: Tensor, lengths: Tensor, iterations: int
) -> Iterator[tuple[NATOutput, Tensor]]:
    """Predict all tokens, then mask and predict the least confident ones again.

    After iteration i of n, the share (n - i) / n of the tokens is masked again. The confidence of a token is its
    probability when it was predicted.

    Args:
        predict: Function from a decoder input, (R, T), to log-probabilities, (R, T, V).
        masked: Decoder inputs that consist of mask tokens, (R, T).
        lengths: Number of target positions of each row, (R,).
        iterations: Number of iterations.

    Yields:
        For each iteration, the targets and a mask of the tokens that it predicted, (R, T).
    """
    best = predict(masked).max(-1)
    tokens, log_probs, last_input = best.indices, best.values, masked
    yield NATOutput(tokens, log_probs, last_input), torch.ones_like(masked, dtype=torch.bool)
    for done in range(1, iterations):
        remask = least_confident(log_probs, lengths, lengths * (iterations - done) // iterations)
        decoder_input = torch.where(remask, masked, tokens)
        best = predict(decoder_input).max(-1)
        tokens = torch.where(remask, best.indices, tokens)
        log_probs = torch.where(remask, best.values, log_probs)
        last_input = torch.where(remask.any(1, keepdim=True), decoder_input, last_input)
        yield NATOutput(tokens, log_probs, last_input), remask


def active_iterations(length: int, iterations: int) -> int:
    """Return the number of iterations that mask at least one token of a target of this length."""
    return max(1, sum(length * (iterations - done) // iterations > 0 for done in range(iterations)))


def least_confident(log_probs: Tensor, lengths: Tensor, counts: Tensor) -> Tensor:
    """Mark the `counts` positions of every row (R, T) with the lowest log-probability, padding excluded."""
    positions = torch.arange(log_probs.shape[1], device=log_probs.device)
    order = log_probs.masked_fill(positions >= lengths[:, None], math.inf).argsort(stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, positions.expand_as(order))
    return ranks < counts[:, None]
