"""Search over a step function, blind to what model it drives: greedy search and sampling here, the beam in beam.py.

A `Stepper` turns sources into a state and tokens into log-probabilities. Everything works on whole batches of
hypotheses: no Python loop over sentences or hypotheses inside a step. What is chosen is kept on the host in arrays of
NumPy, which begins an operation on a small one in a microsecond.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest, Ints, TokenConstraints
from regard.errors import UserError

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class State(Protocol):
    """What a stepper remembers of every hypothesis; rows of one sentence stand side by side."""

    def select(self, rows: Tensor) -> Self:
        """The state of these rows, in this order. Sentences keep theirs, with all of their rows or none."""

    def uncovered(self) -> Tensor:
        """Σ log min(attention received, 1) over each row's source tokens, (rows,): 0 when all were looked at."""


S = TypeVar("S", bound=State)


class Stepper(Protocol[S]):
    """A model that can be decoded."""

    bos: int
    eos: int
    longest: int | None  # the most tokens that a translation can have, END included; None: no limit

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> S:
        """Reads the sources; the state has `copies` rows for each."""

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Reads one token a row, (rows,), and gives the log-probabilities of the next, (rows, V).

        The state that was given is used up: what follows goes on from the one that is returned.
        """

    @property
    def device(self) -> torch.device:
        """Where tokens must lie."""


@dataclass(frozen=True)
class BeamNode:
    """One hypothesis that a beam considered, and what became of it."""

    node: int
    parent: int  # the node it continues; -1: the beginning
    step: int
    token: int
    log_probability: float
    total: float  # sum of log-probabilities
    score: float  # the sum after the length penalty, as if it ended here
    fate: str


@dataclass(frozen=True)
class TokenHypothesis:
    """One hypothesis: tokens without BOS and END, the penalised score, and each token's log-probability, END's too."""

    tokens: list[int]
    score: float
    token_log_probs: list[float]
    tree: list[BeamNode] | None = field(default=None, compare=False, kw_only=True)  # every node of the beam, if traced


@torch.inference_mode()
def search(
    stepper: Stepper[S],
    requests: Sequence[DecodingRequest | Sequence[int]],
    settings: SearchSettings,
    trace: bool = False,
) -> list[list[TokenHypothesis]]:
    """The best hypotheses of every request, or of every plain source, best first; with a trace, each carries its beam.

    Raises:
        UserError: the settings ask for what a sample cannot have, or the model gives NaN.
    """
    from regard.decoding.beam import Beam

    asked = [request if isinstance(request, DecodingRequest) else DecodingRequest(request) for request in requests]
    if not asked:
        return []
    beam_only = settings.coverage > 0 or trace or any(request.required for request in asked)
    if settings.sampling and beam_only:
        raise UserError("required phrases and the tree of a beam need a beam: leave temperature, top_k and top_p away")
    if (settings.beam_width > 1 and not settings.sampling) or beam_only:
        return Beam(stepper, asked, settings, trace).run()
    return _one_by_one(stepper, asked, settings)


def _one_by_one(
    stepper: Stepper[S], requests: Sequence[DecodingRequest], settings: SearchSettings
) -> list[list[TokenHypothesis]]:
    """Greedy search, or independent samples: every row chooses its next token for itself."""
    device, copies = stepper.device, settings.beam_width
    asked = [request for request in requests for _ in range(copies)]
    rules = TokenConstraints.of(asked, settings, stepper.eos, device, stepper.longest)
    state = stepper.start([request.source for request in requests], copies)
    limits = rules.limits.tolist()
    longest = max(limits)
    chance = _chances(requests, copies, longest, settings.seed) if settings.sampling else None
    rows: Ints = np.arange(len(asked))  # which of all rows those still in the batch are
    tokens = torch.full((len(asked),), stepper.bos, device=device)
    written: Ints = np.full((len(asked), longest), stepper.eos)
    gains: Doubles = np.zeros((len(asked), longest))
    totals: Doubles = np.zeros(len(asked))
    lengths: Ints = np.array(limits)
    ended: Bools = np.zeros(len(asked), np.bool_)
    remaining = len(asked)
    for step in range(longest):
        logp, state = stepper.step(tokens, state)
        allowed = rules.apply(logp[:, None], written[rows, None, :step])[:, 0]
        tokens = allowed.argmax(-1) if chance is None else _draw(allowed, chance[rows, step], settings)
        said, gain = tokens.cpu().numpy(), logp.gather(1, tokens[:, None])[:, 0].cpu().double().numpy()
        refuse_nan(bool(np.isnan(gain[~ended]).any()))
        written[rows, step], gains[rows, step] = said, gain
        totals[rows[~ended]] += gain[~ended]
        ends = (said == stepper.eos) & ~ended
        lengths[rows[ends]] = step + 1
        ended |= ends
        left = int((~ended).sum())
        if not left:
            break
        if left == remaining:
            continue
        # Shrinking the batch copies the cache: not for a few. Copies of one sentence leave together.
        remaining, done = left, np.asarray(ended.reshape(-1, copies).all(1))
        if 4 * int(done.sum()) >= len(done):
            keep = (~done).repeat(copies).nonzero()[0]
            rows, ended = rows[keep], ended[keep]
            places = torch.from_numpy(keep).to(device)
            tokens, state, rules = tokens[places], state.select(places), rules.select(places)
    # One by one: in an array, powers depend on who stands beside.
    scores = np.array([total / settings.length_normaliser(float(n)) for total, n in zip(totals, lengths, strict=True)])
    found = collect(written, gains, lengths, scores)
    groups = [found[i : i + copies] for i in range(0, len(found), copies)]
    return [sorted(group, key=lambda one: -one.score) for group in groups]


def refuse_nan(broken: bool) -> None:
    """Ends a search in which scores have turned out to be NaN.

    Raises:
        UserError: they have.
    """
    if broken:
        raise UserError(
            "the model gives scores that are not numbers (NaN): its weights are damaged or its training has diverged; "
            "use another model, or train it anew with a lower optim.lr"
        )


def collect(tokens: Ints, gains: Doubles, lengths: Ints, scores: Doubles) -> list[TokenHypothesis]:
    """Rows of arrays as hypotheses; a length counts END."""
    rows = zip(tokens.tolist(), gains.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    return [TokenHypothesis(row[: n - 1], score, gain[:n]) for row, gain, n, score in rows]


def _chances(requests: Sequence[DecodingRequest], copies: int, steps: int, seed: int) -> Doubles:
    """A number in [0, 1) for every row and step, which depends on the sentence and the seed, never on its company."""
    rows = []
    for request in requests:
        key = zlib.crc32(np.asarray(request.source, np.int64).tobytes())
        rows.append(np.random.default_rng((seed, key)).random((steps, copies)).T)
    return np.concatenate(rows)


def _draw(logp: Tensor, chances: Doubles, settings: SearchSettings) -> Tensor:
    """One token a row from what the settings leave of the distribution."""
    chance = torch.from_numpy(chances).to(logp.device)
    order = logp.double().div(settings.temperature or 1.0).sort(dim=-1, descending=True, stable=True)
    p = order.values.softmax(-1)
    if settings.top_k is not None:
        p[:, settings.top_k :] = 0
    if settings.top_p is not None:
        # The likeliest token always stays, and so does the one that passes the share.
        p = p.masked_fill(p.cumsum(-1) - p >= settings.top_p * p.sum(-1, keepdim=True), 0)
    cumulative = p.cumsum(-1)
    place = torch.searchsorted(cumulative, (chance * cumulative[:, -1])[:, None], right=True)
    place = torch.minimum(place, (p > 0).sum(-1, keepdim=True) - 1).clamp(min=0)  # below 0 where p is NaN
    return order.indices.gather(1, place)[:, 0]
