"""The beam's part of a step: which hypotheses live on, which have ended, and when a sentence is decided.

What `regard.decoding.beam` says with arrays of the host, this says in place: no number is brought to the host. A token
is written once, at the place that its hypothesis had at that step; a hypothesis is a line through these places, and
when hypotheses change places only their lines do. The lines of the ended stand behind those of the living.

Shapes: B sentences, K hypotheses a sentence, T steps, C children of a hypothesis, N candidates a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decoding.config import SearchSettings
from regard.decoding.cuda_graph.beam_kernel import Launcher, usable
from regard.decoding.cuda_graph.model_step import Shape
from regard.decoding.search import TokenHypothesis
from regard.decoding.top_k import top


class Board:
    """The hypotheses of a search of one shape. Position 0 of a line is BOS, as the model reads it."""

    def __init__(self, shape: Shape, bos: int, eos: int, vocabulary: int, device: torch.device) -> None:
        self.shape, self.bos, self.eos = shape, bos, eos
        B, K, _, T = shape

        def numbers(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.step = numbers(1)
        self.lines = numbers(B, 2 * K, T + 1, dtype=torch.int32)
        self.tokens = numbers(B, T + 1, K)
        self.gains = numbers(B, T + 1, K, dtype=torch.float32)
        self.last = numbers(B, K)  # what every living hypothesis says last
        self.totals = numbers(B, K, dtype=torch.float64)
        self.worth = numbers(B, K, dtype=torch.float64)  # the scores of the ended, the best first
        self.lengths = numbers(B, K)  # of the ended, END counted
        self.end_gains = numbers(B, K, dtype=torch.float32)
        self.limits = numbers(B)
        self.limit_normaliser = numbers(B, dtype=torch.float64)
        # The settings, as numbers that one recorded step can be replayed with.
        self.normaliser = numbers(T + 1, dtype=torch.float64)  # what a sum over so many tokens is divided by
        self.shortest = numbers(1)
        self.decisive = numbers(1)  # the place among the ended on which it hangs whether a sentence is decided
        self.when_full = numbers(1, dtype=torch.bool)
        self.news = numbers(2)  # how many sentences are undecided; whether there has been a NaN
        self._own = torch.arange(K, device=device, dtype=torch.int32)
        self.launcher = Launcher(self, vocabulary) if usable(device, K) else None

    def start(self, limits: Tensor, settings: SearchSettings) -> None:
        """All sentences before their first token; where there are fewer than rows, the others are decided already."""
        (_, K, _, T), n = self.shape, len(limits)
        self.step.zero_()
        self.news.zero_()
        self.last.fill_(self.bos)
        self.lines[:, :K, 0] = self._own
        # All hypotheses begin alike: only the first may have children in the first step.
        self.totals.fill_(-math.inf)
        self.totals[:n, 0] = 0
        self.worth.fill_(-math.inf)
        self.limits.fill_(T)
        self.limits[:n] = limits
        self.limit_normaliser.copy_(settings.length_normaliser(self.limits.double()))
        self.normaliser.copy_(
            settings.length_normaliser(torch.arange(T + 1, device=limits.device).clamp(min=1).double())
        )
        self.shortest.fill_(settings.min_length)
        full = settings.stop == "first" or settings.beam_width == 1  # as `Beam` has it
        self.when_full.fill_(full)
        self.decisive.fill_(K - 1 if full else settings.n_best - 1)

    @property
    def living(self) -> Tensor:
        """At which place of every step the tokens of each living hypothesis stand, its last one too, (B, K, T)."""
        return self.lines[:, : self.shape.beam, : self.shape.target]

    def advance(self, logits: Tensor) -> None:
        """One token more for every hypothesis, given the logits of all tokens, (B, K, V)."""
        if self.launcher is None:
            self._advance(logits)
        else:
            self.launcher.advance(logits)

    def _advance(self, logits: Tensor) -> None:
        """The meaning of `advance`, as plain operations."""
        B, K, _, T = self.shape
        gain, token = self._children(logits)
        C = token.shape[2]
        every = (self.totals[:, :, None] + gain).flatten(1)
        best, place = every.topk(min(2 * K, K * C), 1)
        parent, token, gain = place // C, token.flatten(1).gather(1, place), gain.flatten(1).gather(1, place)
        ends = token == self.eos
        total, survivor = best.masked_fill(ends, -math.inf).topk(K, 1)
        # Only the first K places end, or a hypothesis could end that the beam would not have kept.
        score = (best[:, :K] / self.normaliser.index_select(0, self.step + 1)).masked_fill(~ends[:, :K], -math.inf)
        worth, rank = torch.cat((self.worth, score), 1).topk(K, 1)
        self.worth.copy_(worth)

        now = self.step + 1
        ended_from = torch.cat(((self._own + K).expand(B, K), parent[:, :K]), 1).gather(1, rank)
        come_from = torch.cat((parent.gather(1, survivor), ended_from), 1)
        self.lines.copy_(self.lines.gather(1, come_from[:, :, None].expand(-1, -1, T + 1)))
        self.lines[:, :K].index_copy_(2, now, self._own[:, None].expand(B, K, 1))
        self.last.copy_(token.gather(1, survivor))
        self.tokens.index_copy_(1, now, self.last[:, None])
        self.gains.index_copy_(1, now, gain.gather(1, survivor)[:, None])
        self.lengths.copy_(torch.cat((self.lengths, now.expand(B, K)), 1).gather(1, rank))
        self.end_gains.copy_(torch.cat((self.end_gains, gain[:, :K]), 1).gather(1, rank))

        decided = self._decided(total[:, 0])
        self.totals.copy_(total.masked_fill(decided[:, None], -math.inf))  # which no later step can bring back to life
        self.news.copy_(torch.stack(((~decided).sum(), best[:, 0].isnan().any() | (self.news[1] > 0))))
        self.step.copy_(now)

    def _children(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest tokens after each hypothesis and their log-probabilities, (B, K, C) each, as the rules allow.

        END is not among them before the shortest length, and nothing else is at the limit.
        """
        B, K, V = logits.shape
        logp = logits.float().log_softmax(-1)
        end = logp[..., self.eos]
        end.masked_fill_(self.step < self.shortest, -math.inf)
        gain, token = (x.view(B, K, -1) for x in top(logp.flatten(0, 1), min(2 * K, V)))
        at_limit = (self.limits == self.step + 1)[:, None, None]
        only_end = torch.full_like(gain, -math.inf)
        only_end[..., 0] = end
        return torch.where(at_limit, only_end, gain), token.masked_fill(at_limit, self.eos)

    def _decided(self, best: Tensor) -> Tensor:
        """Whether each sentence's best hypotheses are settled, given the best total among its living, (B,)."""
        settled = self.worth.index_select(1, self.decisive)[:, 0]
        # The most that a living hypothesis can still reach is its present sum divided as at the limit.
        beyond_reach = self.when_full | (settled >= best / self.limit_normaliser)
        return (best == -math.inf) | ((settled > -math.inf) & beyond_reach)

    def undecided(self) -> Tensor:
        """The rows in which something lives."""
        return (self.totals[:, 0] != -math.inf).nonzero()[:, 0]

    def take_over(self, other: Board, rows: Tensor) -> None:
        """Goes on with these rows of another; further rows are decided."""
        n = len(rows)
        for name in ("step", "normaliser", "shortest", "decisive", "when_full", "news"):
            getattr(self, name).copy_(getattr(other, name))
        for name in ("lines", "tokens", "gains", "last", "totals", "worth", "lengths", "end_gains", "limits"):
            getattr(self, name)[:n] = getattr(other, name)[rows]
        self.limit_normaliser[:n] = other.limit_normaliser[rows]
        self.totals[n:] = -math.inf

    def collect(self, rows: Sequence[int], n_best: int) -> list[list[TokenHypothesis]]:
        """The best hypotheses of these rows that have ended."""
        _, K, _, T = self.shape
        at = torch.tensor(rows, dtype=torch.long, device=self.lines.device)
        lines = self.lines[at, K : K + n_best, :T].long()

        def follow(x: Tensor) -> list[list[list[int]]]:
            by_step = x[at, None, :T].expand(-1, n_best, -1, -1)
            followed: list[list[list[int]]] = by_step.gather(3, lines[..., None])[..., 0].tolist()
            return followed

        parts = (self.worth, self.lengths, self.end_gains)
        columns = (follow(self.tokens), follow(self.gains), *(part[at, :n_best].tolist() for part in parts))
        return [
            [
                TokenHypothesis(tokens[1:length], score, [*gains[1:length], last])
                for tokens, gains, score, length, last in zip(*sentence, strict=True)
                if score > -math.inf
            ]
            for sentence in zip(*columns, strict=True)
        ]
