"""Sampling of tokens with reproducible noise.

Shapes: R rows, V vocabulary.
"""

import math

import torch
from torch import Tensor


def sample(
    log_probs: Tensor,
    noise: Tensor,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Sample a token per row by the Gumbel-max trick, (R,).

    Args:
        log_probs: Log-probabilities of the tokens, (R, V).
        noise: Gumbel noise, (R, V).
        temperature: Divisor of the log-probabilities; 1 by default.
        top_k: Number of most probable tokens to sample from; all by default.
        top_p: Probability mass of the nucleus to sample from; all by default.
    """
    scores = log_probs.double() / (temperature or 1.0)
    if top_k is not None and top_k < scores.shape[1]:
        smallest = scores.topk(top_k, -1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -math.inf)
    if top_p is not None:
        order = scores.sort(dim=-1, descending=True, stable=True)
        p = order.values.softmax(-1)
        # The nucleus includes the token that reaches top_p, so that it is never empty.
        outside = p.cumsum(-1) - p >= top_p
        scores = scores.masked_fill(outside.gather(1, order.indices.argsort(-1)), -math.inf)
    return (scores + noise).argmax(-1)


def gumbel_noise(keys: Tensor, step: int, vocabulary: int) -> Tensor:
    """Return Gumbel noise for every row and token, (R, V), as a hash (SplitMix64) of key, step and token.

    The noise of a token depends neither on the batch nor on the rank of the token, so that the rounding errors of a
    batch almost never change a sample.
    """
    counter = torch.arange(1, vocabulary + 1, device=keys.device) + step * vocabulary
    x = keys[:, None] + counter * -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    x = x ^ ((x >> 31) & (2**33 - 1))
    uniform = (((x >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()
