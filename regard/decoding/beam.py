"""Beam search over all sentences at once. A sentence leaves the batch as soon as it is decided.

The model and its log-probabilities are where the stepper has them; the best few of every hypothesis come to the host.

Shapes: B sentences still searched, K hypotheses a sentence, V vocabulary, N candidates a sentence, L tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest, Ints, RequiredPhrases, TokenConstraints
from regard.decoding.search import BeamNode, Bools, Doubles, S, Stepper, TokenHypothesis, collect, refuse_nan
from regard.decoding.top_k import top

Array = npt.NDArray[Any]

# What a required phrase that was not said costs an ended hypothesis: more than any difference in score.
OWED = 1e6


class Candidates(NamedTuple):
    """Continuations of a beam, (B, N) each, the best first."""

    total: Doubles  # sum of log-probabilities
    parent: Ints  # the hypothesis it continues
    token: Ints
    gain: Doubles  # the token's log-probability

    def take(self, place: Ints) -> Candidates:
        return Candidates(*(_pick(part, place) for part in self))


class Beam(Generic[S]):
    """One search. `run` alternates `_expand`, which lengthens every hypothesis, and `_release`."""

    def __init__(
        self, stepper: Stepper[S], requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool
    ) -> None:
        self.stepper, self.settings = stepper, settings
        B, K = len(requests), settings.beam_width
        self.rules = TokenConstraints.of(requests, settings, stepper.eos, stepper.device, stepper.longest)
        self.required = RequiredPhrases.of(requests, K)
        self.results: list[list[TokenHypothesis]] = [[] for _ in requests]
        self.state = stepper.start([request.source for request in requests], K)
        self.sentences: Ints = np.arange(B)  # which sentence each row of what follows is about
        limits = self.rules.limits.tolist()
        longest = max(limits)
        # What sums are divided by at a sentence's limit, one by one: in an array, powers depend on who stands beside.
        self.last_divisors: Doubles = np.array([settings.length_normaliser(float(limit)) for limit in limits])
        self.tokens: Ints = np.full((B, K, longest), stepper.eos)
        self.gains: Doubles = np.zeros((B, K, longest))
        # All hypotheses begin alike: only the first of each group may have children in the first step.
        self.totals: Doubles = np.full((B, K), -math.inf)
        self.totals[:, :: K // settings.groups] = 0
        self.parents: Ints = np.zeros((B, K), np.int64)
        self.ended_tokens, self.ended_gains = self.tokens.copy(), self.gains.copy()
        self.ended_worth: Doubles = np.full((B, K), -math.inf)
        self.ended_scores = self.ended_worth.copy()
        self.ended_lengths: Ints = np.zeros((B, K), np.int64)
        self.trace = BeamTrace(B, K) if trace else None

    def run(self) -> list[list[TokenHypothesis]]:
        step = 0
        while len(self.sentences):
            self._expand(step)
            step += 1
            self._release(step)
        return self.results

    def _expand(self, step: int) -> None:
        """One token more for every hypothesis: those that end join the ended ones, the best K others live on."""
        B, K = self.totals.shape
        last = self.tokens[:, :, step - 1] if step else np.full((B, K), self.stepper.bos)
        logp, self.state = self.stepper.step(self._lend(last.reshape(-1)), self.state)
        logp = logp.view(B, K, -1)
        unmet = None if self.required is None else self._lend(self.required.unmet)
        wished, logp = logp, self.rules.apply(logp, self.tokens[:, :, :step], unmet)
        if self.trace is not None:
            self.trace.record_forbidden(self, wished, logp, step)
        size = K // self.settings.groups
        chosen: list[Candidates] = []  # what each group lives on with
        for first in range(0, K, size):
            candidates = self._candidates(logp[:, first : first + size], first, self._handicap(logp, chosen))
            ends = candidates.token == self.stepper.eos
            # Only the first places end, or a hypothesis could end that the beam would not have kept.
            kept_ends = ends.copy()
            kept_ends[:, size:] = False
            if kept_ends.any():
                self._end(candidates, kept_ends, step)
            survivors = ends.argsort(axis=1, kind="stable")[:, :size]
            lives = candidates.take(survivors)
            lives.total[_pick(ends, survivors)] = -math.inf
            chosen.append(lives)
            if self.trace is not None:
                self.trace.record(self, candidates, kept_ends, survivors, first, step)
        self._live_on(Candidates(*(np.concatenate(parts, 1) for parts in zip(*chosen, strict=True))), step)

    def _lend(self, x: Array) -> Tensor:
        """An array as a tensor where the model is."""
        return torch.from_numpy(x).to(self.stepper.device)

    def _handicap(self, logp: Tensor, chosen: Sequence[Candidates]) -> Tensor | None:
        """What every token costs a group since groups before it have chosen it, (B, V); None where it costs nothing."""
        if not chosen or not self.settings.diversity:
            return None
        handicap = torch.zeros_like(logp[:, 0])
        for earlier in chosen:
            token = self._lend(earlier.token)
            handicap.scatter_add_(1, token, handicap.new_full(token.shape, self.settings.diversity))
        return handicap

    def _candidates(self, logp: Tensor, first: int, handicap: Tensor | None) -> Candidates:
        """The best 2K continuations of a group: at most K of them end, so K that go on are always among them.

        Each is one of the best 2K children of its parent, so sums are made for those alone, and in float64: long sums
        stay comparable.
        """
        B, K, V = logp.shape
        ranked = logp if handicap is None else logp - handicap[:, None]
        values, places = top(ranked.reshape(B * K, V), min(2 * K, V))
        token = _fetch(places).reshape(B, K, -1)
        gain = rank = _fetch(values).reshape(B, K, -1)
        refuse_nan(bool(np.isnan(gain).any()))  # it ranks before all numbers, so that it is seen here
        if self.required is not None:
            token = self._with_required(token, self.required.next_tokens[:, first : first + K])
        if self.required is not None or handicap is not None:
            index = self._lend(token.clip(min=0))
            gain, rank = (np.where(token < 0, -math.inf, _fetch(x.gather(2, index))) for x in (logp, ranked))
        totals = self.totals[:, first : first + K, None]
        children = token.shape[2]
        parent = np.broadcast_to(np.arange(first, first + K).repeat(children), (B, K * children))
        rows: list[Array] = [totals + gain, parent, token.clip(min=0), gain]
        every = Candidates(*(x.reshape(B, -1) for x in rows))
        score = every.total if rank is gain else (totals + rank).reshape(B, -1)
        wanted = min(2 * K, K * children)
        if self.required is None:
            return every.take(_best(score, wanted))
        # Hypotheses that have said as much of what is required compete among themselves; then each such bank gives its
        # best in turn. So those that begin a phrase are not outbid by fluent ones that never will.
        bank = np.where(score == -math.inf, -1, self.required.follow(every.parent, every.token).said())
        by_score = (-score).argsort(axis=1, kind="stable")
        in_banks = _pick(by_score, (-_pick(bank, by_score)).argsort(axis=1, kind="stable"))
        banks = _pick(bank, in_banks)
        place = np.broadcast_to(np.arange(banks.shape[1]), banks.shape)
        begins = np.ones_like(banks, dtype=np.bool_)
        begins[:, 1:] = banks[:, 1:] != banks[:, :-1]
        turn = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        turn = np.where(banks < 0, banks.shape[1], turn)
        return every.take(_pick(in_banks, turn.argsort(axis=1, kind="stable"))[:, :wanted])

    @staticmethod
    def _with_required(token: Ints, wanted: Ints) -> Ints:
        """Adds the tokens that continue a required phrase to each hypothesis's children; -1 where they stand there."""
        there = (wanted[..., None] == token[:, :, None, :]).any(-1)
        C = wanted.shape[2]
        earlier = np.tri(C, k=-1, dtype=np.bool_)
        there |= ((wanted[..., :, None] == wanted[..., None, :]) & earlier).any(-1)
        return np.concatenate((token, np.where(there, -1, wanted)), 2)

    def _end(self, candidates: Candidates, ends: Bools, step: int) -> None:
        """Candidates that ended compete with those that ended before for the sentence's K places."""
        scores = candidates.total / self.settings.length_normaliser(float(step + 1))
        if self.settings.coverage:
            uncovered = _fetch(self.state.uncovered()).reshape(self.totals.shape)
            scores = scores + self.settings.coverage * _pick(uncovered, candidates.parent)
        worth = scores if self.required is None else scores - OWED * _pick(self.required.owed, candidates.parent)
        if self.settings.groups > 1:
            # Groups may end in the same words; one of them is enough.
            said = _pick(self.tokens, candidates.parent)
            twice = (said[:, :, None] == self.ended_tokens[:, None]).all(-1) & (self.ended_lengths == step + 1)[:, None]
            ends = ends & ~twice.any(-1)
        K = self.totals.shape[1]
        pool = np.concatenate((self.ended_worth, np.where(ends, worth, -math.inf)), 1)
        refuse_nan(bool(np.isnan(pool).any()))
        place = (-pool).argsort(axis=1, kind="stable")[:, :K]  # of equals, whoever ended first stays first
        self.ended_worth = _pick(pool, place)
        fresh = (place >= K) & (self.ended_worth > -math.inf)  # a place that nobody took stays as it is
        new, old = (place - K).clip(min=0), place.clip(max=K - 1)
        ancestor = _pick(candidates.parent, new)
        gains = _pick(self.gains, ancestor)
        gains[:, :, step] = _pick(candidates.gain, new)
        wide = fresh[:, :, None]
        self.ended_tokens = np.where(wide, _pick(self.tokens, ancestor), _pick(self.ended_tokens, old))
        self.ended_gains = np.where(wide, gains, _pick(self.ended_gains, old))
        self.ended_scores = np.where(fresh, _pick(scores, new), _pick(self.ended_scores, old))
        self.ended_lengths = np.where(fresh, step + 1, _pick(self.ended_lengths, old))

    def _live_on(self, lives: Candidates, step: int) -> None:
        self.totals, self.parents = lives.total, lives.parent
        self.tokens, self.gains = _pick(self.tokens, lives.parent), _pick(self.gains, lives.parent)
        self.tokens[:, :, step] = lives.token
        self.gains[:, :, step] = lives.gain
        if self.required is not None:
            self.required = self.required.follow(lives.parent, lives.token)

    def _release(self, step: int) -> None:
        """Takes decided sentences out of the batch and brings the stepper's state into the new order."""
        B, K = self.totals.shape
        decided = self._decided()
        rows = np.arange(B)[:, None] * K + self.parents
        if decided.any():
            for i in decided.nonzero()[0].tolist():
                found = collect(self.ended_tokens[i], self.ended_gains[i], self.ended_lengths[i], self.ended_scores[i])
                taken = int((self.ended_worth[i] > -math.inf).sum())
                returned = found[: min(taken, self.settings.n_best)]
                if self.trace is not None:
                    unfinished = "enough others had ended" if self._stops_when_full() else "it could no longer win"
                    self.trace.close(i, returned, step, unfinished)
                    returned = [replace(one, tree=self.trace.trees[i]) for one in returned]
                self.results[int(self.sentences[i])] = returned
            keep = (~decided).nonzero()[0]
            rows = rows[keep]
            self._keep(keep)
        if rows.size:
            self.state = self.state.select(self._lend(rows.reshape(-1)))

    def _keep(self, sentences: Ints) -> None:
        for name in ("sentences", "last_divisors", "tokens", "gains", "totals", "parents"):
            setattr(self, name, getattr(self, name)[sentences])
        for name in ("ended_tokens", "ended_gains", "ended_worth", "ended_scores", "ended_lengths"):
            setattr(self, name, getattr(self, name)[sentences])
        self.rules = self.rules.select(self._lend(sentences))
        self.required = None if self.required is None else self.required.select(sentences)
        if self.trace is not None:
            self.trace.keep(sentences)

    def _decided(self) -> Bools:
        """Whether each sentence's best hypotheses are settled."""
        best = self.totals.max(1)
        none_lives: Bools = best == -math.inf
        if self._stops_when_full():
            return none_lives | (self.ended_worth[:, -1] > -math.inf)
        # A sum of log-probabilities only falls, and coverage only costs. What the sum is divided by grows with the
        # length, so the most a living hypothesis can still reach is its present sum divided as at the limit.
        reachable = best / self.last_divisors
        settled: Bools = self.ended_worth[:, self.settings.n_best - 1] >= reachable
        return none_lives | settled

    def _stops_when_full(self) -> bool:
        """Whether a sentence is decided by how many have ended, whatever the living could still reach."""
        return self.settings.stop == "first" or self.settings.beam_width == 1  # a beam of one is greedy search


class BeamTrace:
    """Writes down every candidate of a beam as a node of its sentence's tree."""

    def __init__(self, B: int, K: int) -> None:
        self.trees: list[list[BeamNode]] = [[] for _ in range(B)]
        self.nodes = [[-1] * K for _ in range(B)]  # the node of each living hypothesis
        self.fresh = [[-1] * K for _ in range(B)]

    def record(
        self, beam: Beam[S], candidates: Candidates, ends: Bools, survivors: Ints, first: int, step: int
    ) -> None:
        """Notes the candidates of one group at one step, and which of them live on."""
        normaliser = beam.settings.length_normaliser(float(step + 1))
        lasting = survivors.tolist()
        for b, tree in enumerate(self.trees):
            columns = zip(*(part[b].tolist() for part in (*candidates, ends)), strict=True)
            for place, (total, parent, token, gain, ended) in enumerate(columns):
                if total == -math.inf:
                    continue
                others = "others scored higher" if beam.required is None else "its place went to one that owes less"
                fate = "ended" if ended else "kept" if place in lasting[b] else f"dropped: {others}"
                if token == beam.stepper.eos and not ended:
                    fate = "dropped: it ended outside the beam"
                node = len(tree)
                tree.append(BeamNode(node, self.nodes[b][parent], step, token, gain, total, total / normaliser, fate))
                if fate == "kept":
                    self.fresh[b][first + lasting[b].index(place)] = node
        if first + beam.totals.shape[1] // beam.settings.groups == beam.totals.shape[1]:
            self.nodes = [list(row) for row in self.fresh]

    def record_forbidden(self, beam: Beam[S], wished: Tensor, allowed: Tensor, step: int) -> None:
        """Notes what would have been among the best continuations of a hypothesis, had the rules allowed it."""
        best = wished.topk(min(2 * beam.totals.shape[1], wished.shape[2]), dim=2).indices
        refused = _fetch(allowed.gather(2, best) == -math.inf) & (beam.totals > -math.inf)[:, :, None]
        normaliser = beam.settings.length_normaliser(float(step + 1))
        for b, k, place in np.argwhere(refused).tolist():
            token, said = int(best[b, k, place]), beam.tokens[b, k, :step].tolist()
            owes = beam.required is not None and bool(beam.required.unmet[b, k])
            gain = float(wished[b, k, token])
            total = float(beam.totals[b, k]) + gain
            fate = f"forbidden: {beam.rules.why_not(b, said, token, owes)}"
            tree, parent = self.trees[b], self.nodes[b][k]
            tree.append(BeamNode(len(tree), parent, step, token, gain, total, total / normaliser, fate))

    def close(self, row: int, returned: Sequence[TokenHypothesis], step: int, unfinished: str) -> None:
        """Says what became in the end of a decided sentence's hypotheses that were kept or ended.

        Those returned stay "ended", and those that were continued stay "kept".
        """
        tree = self.trees[row]
        continued = {e.parent for e in tree if e.fate in ("kept", "ended")}
        winners = {tuple(one.tokens) for one in returned}
        said_before: set[tuple[int, ...]] = set()
        for e in list(tree):
            if e.fate == "kept" and e.node not in continued:
                why = unfinished if e.step == step - 1 else "its continuations were outbid"
                tree[e.node] = replace(e, fate=f"dropped: {why}")
            elif e.fate == "ended":
                said = _said(tree, e)
                if said in said_before:
                    tree[e.node] = replace(e, fate="ended: another group had said the same")
                elif said not in winners:
                    tree[e.node] = replace(e, fate="ended: others were better")
                said_before.add(said)

    def keep(self, sentences: Ints) -> None:
        rows = sentences.tolist()
        self.trees = [self.trees[i] for i in rows]
        self.nodes = [self.nodes[i] for i in rows]
        self.fresh = [self.fresh[i] for i in rows]


def _said(tree: Sequence[BeamNode], end: BeamNode) -> tuple[int, ...]:
    """The tokens that lead to an END."""
    tokens, node = [], end.parent
    while node != -1:
        tokens.append(tree[node].token)
        node = tree[node].parent
    return tuple(reversed(tokens))


def _fetch(x: Tensor) -> Array:
    """A tensor as an array; numbers with a point in float64, which not every device has."""
    x = x.cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _pick(x: Array, place: Ints) -> Array:
    """x[b, place[b, k]] for (B, K), or for (B, K, L) whole rows of L."""
    return x[np.arange(len(x))[:, None], place]


def _best(score: Doubles, wanted: int) -> Ints:
    """The places of the best of each row, the best first, (B, wanted)."""
    return torch.from_numpy(score).topk(wanted, dim=1).indices.numpy()
