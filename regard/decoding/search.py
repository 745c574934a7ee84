"""Search over a step function: greedy and beam, batched over sentences, blind to what model it drives.

A `Stepper` turns sources into a state and tokens into log-probabilities. Everything here works on whole batches of
hypotheses as tensors: no Python loop over sentences or hypotheses inside a step.

Shapes: B sentences still searched, K hypotheses a sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings


class State(Protocol):
    """What a stepper remembers of every hypothesis; rows of one sentence stand side by side."""

    def select(self, rows: Tensor) -> Self:
        """The state of these rows, in this order. Sentences keep theirs, with all of their rows or none."""


S = TypeVar("S", bound=State)


class Stepper(Protocol[S]):
    """A model that can be decoded."""

    bos: int
    eos: int

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> S:
        """Reads the sources; the state has `copies` rows for each."""

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Reads one token a row, (rows,), and gives the log-probabilities of the next, (rows, V)."""

    @property
    def device(self) -> torch.device:
        """Where tokens must lie."""


class SearchSettings(Settings):
    """How to look for the best hypothesis."""

    beam: int = Field(5, ge=1, description="hypotheses kept a sentence; 1 is greedy search")
    n_best: int = Field(1, ge=1, description="hypotheses returned a sentence")
    length_penalty: Literal["average", "wu", "none"] = Field(
        "average", description="score divided by length^alpha, by ((5 + length) / 6)^alpha, or not at all"
    )
    alpha: float = Field(1.0, ge=0)
    stop: Literal["exact", "first"] = Field(
        "exact", description="stop when nothing unfinished can still win, or as soon as `beam` hypotheses have ended"
    )
    max_ratio: float = Field(2.0, ge=0, description="a translation has at most max_ratio · source + max_extra tokens")
    max_extra: int = Field(20, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} is more than the {self.beam} hypotheses of the beam")
        return self

    def limit(self, source_length: int) -> int:
        """The most tokens, END included, that a translation of so many source tokens may have."""
        return max(1, int(self.max_ratio * source_length) + self.max_extra)

    def normaliser(self, length: Tensor) -> Tensor:
        """What a sum of log-probabilities over so many tokens is divided by."""
        length = length.double()
        if self.length_penalty == "none":
            return torch.ones_like(length)
        return (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Found:
    """One hypothesis: tokens without BOS and END, the penalised score, and each token's log-probability, END's too."""

    tokens: list[int]
    score: float
    log_probabilities: list[float]


@torch.inference_mode()
def search(stepper: Stepper[S], sources: Sequence[Sequence[int]], settings: SearchSettings) -> list[list[Found]]:
    """The best hypotheses of every source, best first."""
    if not sources:
        return []
    if settings.beam == 1:
        return _greedy(stepper, sources, settings)
    return _Beam(stepper, sources, settings).run()


def _greedy(stepper: Stepper[S], sources: Sequence[Sequence[int]], settings: SearchSettings) -> list[list[Found]]:
    device = stepper.device
    limits = torch.tensor([settings.limit(len(source)) for source in sources], device=device)
    state = stepper.start(sources, 1)
    rows = torch.arange(len(sources), device=device)  # which sentence each row still in the batch is
    tokens = torch.full_like(rows, stepper.bos)
    written = torch.full((len(sources), int(limits.max())), stepper.eos, device=device)
    gains = torch.zeros(written.shape, device=device)
    lengths = limits.clone()
    ended = torch.zeros_like(rows, dtype=torch.bool)
    for step in range(written.shape[1]):
        logp, state = stepper.step(tokens, state)
        gain, tokens = logp.max(-1)
        last = (limits[rows] == step + 1) & ~ended
        tokens = torch.where(last, stepper.eos, tokens)
        gain = torch.where(last, logp[:, stepper.eos], gain)
        written[rows, step], gains[rows, step] = tokens, gain
        ends = (tokens == stepper.eos) & ~ended
        lengths[rows[ends]] = step + 1
        ended |= ends
        left = int((~ended).sum())
        if not left:
            break
        if left <= 0.75 * len(rows):  # shrinking the batch copies the cache: not for a single sentence
            keep = (~ended).nonzero()[:, 0]
            rows, tokens, ended, state = rows[keep], tokens[keep], ended[keep], state.select(keep)
    totals = torch.stack([gains[i, :n].double().sum() for i, n in enumerate(lengths.tolist())])
    scores = totals / settings.normaliser(lengths)
    return [[found] for found in _collect(written, gains, lengths, scores)]


class _Beam:
    """Beam search over all sentences at once. A sentence leaves the batch as soon as it is decided."""

    def __init__(self, stepper: Stepper[S], sources: Sequence[Sequence[int]], settings: SearchSettings) -> None:
        self.stepper, self.settings = stepper, settings
        B, K, device = len(sources), settings.beam, stepper.device
        limits = [settings.limit(len(source)) for source in sources]
        self.limits = torch.tensor(limits, device=device)
        self.results: list[list[Found]] = [[] for _ in sources]
        self.state = stepper.start(sources, K)
        self.sentences = torch.arange(B, device=device)  # which sentence each row of what follows is about
        longest = max(limits)
        self.tokens = torch.full((B, K, longest), stepper.eos, device=device)
        self.gains = torch.zeros(B, K, longest, device=device)
        # All hypotheses begin alike: only the first may have children in the first step.
        self.totals = torch.full((B, K), -math.inf, device=device, dtype=torch.float64)
        self.totals[:, 0] = 0
        self.ended_tokens, self.ended_gains = self.tokens.clone(), self.gains.clone()
        self.ended_scores = torch.full((B, K), -math.inf, device=device, dtype=torch.float64)
        self.ended_lengths = torch.zeros(B, K, dtype=torch.long, device=device)

    def run(self) -> list[list[Found]]:
        step = 0
        while len(self.sentences):
            self._expand(step)
            step += 1
            self._release(step)
        return self.results

    def _expand(self, step: int) -> None:
        """One token more for every hypothesis: those that end join the ended ones, the best K others live on."""
        B, K = self.totals.shape
        eos = self.stepper.eos
        last = self.tokens[:, :, step - 1] if step else torch.full_like(self.tokens[:, :, 0], self.stepper.bos)
        logp, self.state = self.stepper.step(last.reshape(-1), self.state)
        V = logp.shape[-1]
        logp = logp.view(B, K, V)
        at_limit = (self.limits == step + 1)[:, None, None]
        if at_limit.any():
            only_end = torch.full_like(logp[:1, :1], -math.inf)
            only_end[..., eos] = 0
            logp = torch.where(at_limit, logp + only_end, logp)
        # 2K candidates: at most K of them end, so K that go on are always among them. Each comes from the best 2K
        # children of its parent, so sums are made for those alone, and in float64: long sums stay comparable.
        gain, token = logp.topk(min(2 * K, V), dim=2)
        children = token.shape[2]
        best, place = (self.totals[:, :, None] + gain).view(B, -1).topk(min(2 * K, K * children), dim=1)
        parent, token, gain = place // children, token.view(B, -1).gather(1, place), gain.view(B, -1).gather(1, place)
        ends = token == eos
        self._end(best, parent, gain, ends & (torch.arange(best.shape[1], device=best.device) < K), step)
        self._live_on(best.masked_fill(ends, -math.inf), parent, token, gain, step)

    def _end(self, totals: Tensor, parent: Tensor, gain: Tensor, ends: Tensor, step: int) -> None:
        """Candidates that ended compete with those that ended before for the sentence's K places."""
        scores = totals / self.settings.normaliser(torch.tensor(step + 1, device=totals.device))
        pool = torch.cat((self.ended_scores, scores.masked_fill(~ends, -math.inf)), 1)
        K = self.totals.shape[1]
        self.ended_scores, place = pool.topk(K, dim=1)
        if not bool((place >= K).any()):
            return
        new = (place - K).clamp(min=0)
        ancestor = parent.gather(1, new)
        children = _rows(self.gains, ancestor)
        children[:, :, step] = gain.gather(1, new)
        old = place.clamp(max=K - 1)
        fresh = (place >= K)[:, :, None]
        self.ended_tokens = torch.where(fresh, _rows(self.tokens, ancestor), _rows(self.ended_tokens, old))
        self.ended_gains = torch.where(fresh, children, _rows(self.ended_gains, old))
        self.ended_lengths = torch.where(fresh[:, :, 0], step + 1, self.ended_lengths.gather(1, old))

    def _live_on(self, totals: Tensor, parent: Tensor, token: Tensor, gain: Tensor, step: int) -> None:
        K = self.totals.shape[1]
        self.totals, place = totals.topk(K, dim=1)
        parent = parent.gather(1, place)
        self.tokens, self.gains = _rows(self.tokens, parent), _rows(self.gains, parent)
        self.tokens[:, :, step] = token.gather(1, place)
        self.gains[:, :, step] = gain.gather(1, place)
        self.parents = parent

    def _release(self, step: int) -> None:
        """Takes decided sentences out of the batch and brings the stepper's state into the new order."""
        B, K = self.totals.shape
        decided = self._decided(step)
        first = torch.arange(B, device=self.totals.device)[:, None] * K
        rows = first + self.parents
        if bool(decided.any()):
            for i in decided.nonzero()[:, 0].tolist():
                found = _collect(self.ended_tokens[i], self.ended_gains[i], self.ended_lengths[i], self.ended_scores[i])
                best = [one for one in found if one.score > -math.inf]
                self.results[int(self.sentences[i])] = best[: self.settings.n_best]
            keep = (~decided).nonzero()[:, 0]
            rows = rows[keep]
            for name in ("sentences", "limits", "tokens", "gains", "totals"):
                setattr(self, name, getattr(self, name)[keep])
            for name in ("ended_tokens", "ended_gains", "ended_scores", "ended_lengths"):
                setattr(self, name, getattr(self, name)[keep])
        if rows.numel():
            self.state = self.state.select(rows.reshape(-1))

    def _decided(self, step: int) -> Tensor:
        """Whether each sentence's best hypotheses are settled."""
        none_lives = self.totals[:, 0] == -math.inf
        if self.settings.stop == "first":
            return none_lives | (self.ended_scores[:, -1] > -math.inf)
        # A sum of log-probabilities only falls. What it is divided by grows with the length, so that the most a living
        # hypothesis can still reach is its present sum at the length where the quotient is largest: the limit.
        reachable = self.totals[:, 0] / self.settings.normaliser(self.limits)
        return none_lives | (self.ended_scores[:, self.settings.n_best - 1] >= reachable)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, k]] for (B, K, L) and (B, K)."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


def _collect(tokens: Tensor, gains: Tensor, lengths: Tensor, scores: Tensor) -> list[Found]:
    rows = zip(tokens.tolist(), gains.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    return [Found(row[: n - 1], score, gain[:n]) for row, gain, n, score in rows]
