"""Greedy search and sampling: every hypothesis chooses its next token independently of the others.

The chosen tokens are kept in NumPy arrays on the host, where operations on small arrays start faster than in PyTorch.
"""

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.decoding.beam import TokenConstraints, build_hypotheses, raise_if_nan
from regard.decoding.constraints import DecodingRequest, Ints
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import Bools, Doubles, StateT, Stepper, TokenHypothesis

MIN_REMOVED_SHARE = 0.25
"""Share of finished sentences from which they are removed from a batch, because that copies the cache."""


def greedy_search(
    stepper: Stepper[StateT], requests: Sequence[DecodingRequest], settings: SearchSettings
) -> list[list[TokenHypothesis]]:
    """Return the greedy hypothesis of every request, or independent samples, best first."""
    device, copies = stepper.device, settings.beam_width
    repeated = [request for request in requests for _ in range(copies)]
    constraints = TokenConstraints.of(repeated, settings, stepper.eos, device, stepper.max_length)
    state = stepper.start([request.source for request in requests], copies)
    if len(repeated) == 1 and not settings.sampling:
        return [[_search_one(stepper, state, constraints, settings)]]
    noise_keys = _noise_keys(requests, copies, settings.seed).to(device) if settings.sampling else None
    lengths: Ints = np.array(constraints.max_lengths.tolist())
    tokens: Ints = np.full((len(repeated), int(lengths.max())), stepper.eos)
    token_log_probs: Doubles = np.zeros(tokens.shape)
    cumulative_log_probs: Doubles = np.zeros(len(repeated))
    rows: Ints = np.arange(len(repeated))  # index of each row that is still in the batch
    ended: Bools = np.zeros(len(repeated), np.bool_)
    last = torch.full((len(repeated),), stepper.bos, device=device)
    for step in range(tokens.shape[1]):
        log_probs = stepper.step(last, state)
        allowed = constraints.apply(log_probs[:, None], tokens[rows, None, :step])[:, 0]
        last = allowed.argmax(-1) if noise_keys is None else _sample_tokens(allowed, noise_keys, step, settings)
        chosen = last.cpu().numpy()
        chosen_log_probs = log_probs.gather(1, last[:, None])[:, 0].cpu().double().numpy()
        raise_if_nan(bool(np.isnan(chosen_log_probs[~ended]).any()))
        tokens[rows, step], token_log_probs[rows, step] = chosen, chosen_log_probs
        cumulative_log_probs[rows[~ended]] += chosen_log_probs[~ended]
        ends = (chosen == stepper.eos) & ~ended
        lengths[rows[ends]] = step + 1
        ended |= ends
        if not ends.any():
            continue
        finished = np.asarray(ended.reshape(-1, copies).all(1))
        if finished.all():
            break
        if finished.mean() >= MIN_REMOVED_SHARE:
            keep = (~finished).repeat(copies).nonzero()[0]
            rows, ended = rows[keep], ended[keep]
            index = torch.from_numpy(keep).to(device)
            last, state, constraints = last[index], state.select(index), constraints.select(index)
            noise_keys = None if noise_keys is None else noise_keys[index]
    # Computed one by one: in an array, the rounding of powers depends on the other elements.
    normalisers = [settings.length_normaliser(float(length)) for length in lengths]
    scores = [log_prob / normaliser for log_prob, normaliser in zip(cumulative_log_probs, normalisers, strict=True)]
    hypotheses = build_hypotheses(tokens, token_log_probs, lengths, np.array(scores))
    groups = [hypotheses[i : i + copies] for i in range(0, len(hypotheses), copies)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


def _search_one(
    stepper: Stepper[StateT], state: StateT, constraints: TokenConstraints, settings: SearchSettings
) -> TokenHypothesis:
    """Return the greedy hypothesis of a single row, without operations on arrays of one element."""
    limit = int(constraints.max_lengths[0])
    tokens: list[int] = []
    token_log_probs: list[float] = []
    log_prob_sum = 0.0  # added as in a batch; from Python 3.12, `sum` rounds differently
    last = torch.full((1,), stepper.bos, device=stepper.device)
    for step in range(limit):
        log_probs = stepper.step(last, state)
        allowed = constraints.apply(log_probs[:, None], np.array(tokens, np.int64).reshape(1, 1, step))[:, 0]
        last = allowed.argmax(-1)
        token = int(last)
        log_prob = float(log_probs[0, token])
        if math.isnan(log_prob):
            raise_if_nan(found=True)
        tokens.append(token)
        token_log_probs.append(log_prob)
        log_prob_sum += log_prob
        if token == stepper.eos:
            break
    score = log_prob_sum / settings.length_normaliser(float(len(tokens)))
    return TokenHypothesis(tokens[:-1], score, token_log_probs)


# Sampling; R rows, V vocabulary, C candidates


def _sample_tokens(log_probs: Tensor, noise_keys: Tensor, step: int, settings: SearchSettings) -> Tensor:
    """Sample a token per row, (R, V) to (R,)."""
    options = settings.temperature, settings.top_k, settings.top_p
    vocabulary = log_probs.shape[1]
    if settings.epsilon is None or settings.epsilon * vocabulary <= 1:
        kept = log_probs if settings.epsilon is None else keep_probable(log_probs, settings.epsilon)
        return sample(kept, gumbel_noise(noise_keys, step, vocabulary), *options)
    # At most 1 / epsilon tokens are probable enough: noise for all others is not needed.
    probable_RC = log_probs.topk(int(1 / settings.epsilon), -1)
    kept = keep_probable(probable_RC.values, settings.epsilon)
    noise = gumbel_noise(noise_keys, step, vocabulary, probable_RC.indices)
    return probable_RC.indices.gather(1, sample(kept, noise, *options)[:, None])[:, 0]


def keep_probable(log_probs: Tensor, epsilon: float) -> Tensor:
    """Set log-probabilities below that of `epsilon` to -inf, except for the most probable token of each row."""
    least = log_probs.amax(-1, keepdim=True).clamp(max=math.log(epsilon))
    return log_probs.masked_fill(log_probs < least, -math.inf)


def sample(
    log_probs: Tensor,
    noise: Tensor,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Sample a token per row by the Gumbel-max trick: log-probabilities and Gumbel noise, (R, V), to tokens, (R,)."""
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


def gumbel_noise(keys: Tensor, step: int, vocabulary: int, tokens: Tensor | None = None) -> Tensor:
    """Return Gumbel noise for every row and token, (R, V), as a hash (SplitMix64) of key, step and token.

    With `tokens`, (R, C), return the noise of these tokens, (R, C).

    The noise of a token depends neither on the batch nor on the rank of the token, so that the rounding errors of a
    batch almost never change a sample.
    """
    counter = (torch.arange(vocabulary, device=keys.device) if tokens is None else tokens) + step * vocabulary + 1
    x = keys[:, None] + counter * -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    x = x ^ ((x >> 31) & (2**33 - 1))
    uniform = (((x >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()


def _noise_keys(requests: Sequence[DecodingRequest], copies: int, seed: int) -> Tensor:
    """Return a random integer per row, (rows,), which depends only on the source, the seed and the copy."""
    rows = []
    for request in requests:
        source = zlib.crc32(np.asarray(request.source, np.int64).tobytes())
        rows.append(np.random.default_rng((seed, source)).integers(2**62, size=copies))
    return torch.from_numpy(np.concatenate(rows))
