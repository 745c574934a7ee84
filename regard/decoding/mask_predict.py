"""Iterative decoding of non-autoregressive models (mask-predict, Ghazvininejad et al. 2019).

The functions never synchronise with the device, so that a CUDA graph can capture them.

Shapes: R rows (one per candidate length of every sentence), T target positions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.models.nat import NATransformer


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
