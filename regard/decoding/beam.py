"""Beam search over all sentences at once. A sentence leaves the batch as soon as it is decided.

Shapes: B sentences still searched, K hypotheses a sentence, V vocabulary, N candidates a sentence, L tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from regard.decoding.rules import Request, RequiredPhrases, Rules
from regard.decoding.search import Expansion, Found, S, Stepper, Trace, collect, refuse_nan
from regard.decoding.settings import SearchSettings

# What a required phrase that was not said costs an ended hypothesis: more than any difference in score.
OWED = 1e6


class Candidates(NamedTuple):
    """Continuations of a beam, (B, N) each, the best first."""

    total: Tensor  # sum of log-probabilities, float64
    parent: Tensor  # the hypothesis it continues
    token: Tensor
    gain: Tensor  # the token's log-probability

    def take(self, place: Tensor) -> Candidates:
        return Candidates(*(part.gather(1, place) for part in self))


class Beam(Generic[S]):
    """One search. `run` alternates `_expand`, which lengthens every hypothesis, and `_release`."""

    def __init__(
        self, stepper: Stepper[S], requests: Sequence[Request], settings: SearchSettings, trace: Trace | None
    ) -> None:
        self.stepper, self.settings = stepper, settings
        B, K, device = len(requests), settings.width, stepper.device
        self.rules = Rules.of(requests, settings, stepper.eos, device, stepper.longest)
        self.required = RequiredPhrases.of(requests, K, device)
        self.results: list[list[Found]] = [[] for _ in requests]
        self.state = stepper.start([request.source for request in requests], K)
        self.sentences = torch.arange(B, device=device)  # which sentence each row of what follows is about
        longest = int(self.rules.limits.max())
        self.tokens = torch.full((B, K, longest), stepper.eos, device=device)
        self.gains = torch.zeros(B, K, longest, device=device, dtype=torch.float64)
        # All hypotheses begin alike: only the first of each group may have children in the first step.
        self.totals = torch.full((B, K), -math.inf, device=device, dtype=torch.float64)
        self.totals[:, :: K // settings.groups] = 0
        self.parents = torch.zeros((B, K), dtype=torch.long, device=device)
        self.ended_tokens, self.ended_gains = self.tokens.clone(), self.gains.clone()
        self.ended_worth = torch.full((B, K), -math.inf, device=device, dtype=torch.float64)
        self.ended_scores = self.ended_worth.clone()
        self.ended_lengths = torch.zeros(B, K, dtype=torch.long, device=device)
        self.recorder = None if trace is None else Recorder(trace, B, K)

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
        last = self.tokens[:, :, step - 1] if step else torch.full_like(self.tokens[:, :, 0], self.stepper.bos)
        logp, self.state = self.stepper.step(last.reshape(-1), self.state)
        logp = logp.view(B, K, -1)
        unmet = None if self.required is None else self.required.unmet
        wished, logp = logp, self.rules.apply(logp, self.tokens[:, :, :step], unmet)
        if self.recorder is not None:
            self.recorder.record_forbidden(self, wished, logp, step)
        size = K // self.settings.groups
        chosen: list[Candidates] = []  # what each group lives on with
        for first in range(0, K, size):
            group = slice(first, first + size)
            handicap = None
            if chosen and self.settings.diversity:
                handicap = torch.zeros_like(logp[:, 0])
                for earlier in chosen:
                    handicap.scatter_add_(1, earlier.token, torch.full_like(earlier.gain, self.settings.diversity))
            candidates = self._candidates(logp[:, group], group, handicap)
            ends = candidates.token == self.stepper.eos
            # Only the first places end, or a hypothesis could end that the beam would not have kept.
            kept_ends = ends & (torch.arange(ends.shape[1], device=ends.device) < size)
            self._end(candidates, kept_ends, step)
            survivors = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, :size]
            lives = candidates.take(survivors)
            dead = ends.gather(1, survivors)
            chosen.append(lives._replace(total=lives.total.masked_fill(dead, -math.inf)))
            if self.recorder is not None:
                self.recorder.record(self, candidates, kept_ends, survivors, first, step)
        self._live_on(Candidates(*(torch.cat(parts, 1) for parts in zip(*chosen, strict=True))), step)

    def _candidates(self, logp: Tensor, group: slice, handicap: Tensor | None) -> Candidates:
        """The best 2K continuations of a group: at most K of them end, so K that go on are always among them.

        Each is one of the best 2K children of its parent, so sums are made for those alone, and in float64: long sums
        stay comparable.
        """
        B, K, V = logp.shape
        ranked = logp if handicap is None else logp - handicap[:, None]
        token = ranked.topk(min(2 * K, V), dim=2).indices
        if self.required is not None:
            token = self._with_required(token, group)
        children = token.shape[2]
        index = token.clamp(min=0)
        gain = logp.gather(2, index).masked_fill(token < 0, -math.inf)
        rank = ranked.gather(2, index).masked_fill(token < 0, -math.inf)
        totals = self.totals[:, group, None]
        parent = torch.arange(group.start, group.stop, device=logp.device)[None, :, None].expand(B, K, children)
        every = Candidates(*((x.reshape(B, -1)) for x in (totals + gain, parent, index, gain)))
        score = (totals + rank).view(B, -1)
        wanted = min(2 * K, K * children)
        if self.required is None:
            return every.take(score.topk(wanted, dim=1).indices)
        # Hypotheses that have said as much of what is required compete among themselves; then each such bank gives its
        # best in turn. So those that begin a phrase are not outbid by fluent ones that never will.
        bank = self.required.follow(every.parent, every.token).said().masked_fill(score == -math.inf, -1)
        by_score = score.argsort(dim=1, descending=True, stable=True)
        in_banks = by_score.gather(1, bank.gather(1, by_score).argsort(dim=1, descending=True, stable=True))
        banks = bank.gather(1, in_banks)
        place = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
        begins = torch.ones_like(banks, dtype=torch.bool)
        begins[:, 1:] = banks[:, 1:] != banks[:, :-1]
        turn = place - torch.where(begins, place, 0).cummax(1).values
        turn = turn.masked_fill(banks < 0, banks.shape[1])
        return every.take(in_banks.gather(1, turn.argsort(dim=1, stable=True))[:, :wanted])

    def _with_required(self, token: Tensor, group: slice) -> Tensor:
        """Adds the tokens that continue a required phrase to each hypothesis's children; -1 where they stand there."""
        assert self.required is not None
        wanted = self.required.next_tokens[:, group]
        there = (wanted[..., None] == token[:, :, None, :]).any(-1)
        C = wanted.shape[2]
        earlier = torch.ones(C, C, dtype=torch.bool, device=token.device).tril(-1)
        there |= ((wanted[..., :, None] == wanted[..., None, :]) & earlier).any(-1)
        return torch.cat((token, wanted.masked_fill(there, -1)), 2)

    def _end(self, candidates: Candidates, ends: Tensor, step: int) -> None:
        """Candidates that ended compete with those that ended before for the sentence's K places."""
        scores = candidates.total / self.settings.normaliser(torch.tensor(step + 1, device=ends.device))
        if self.settings.coverage:
            uncovered = self.state.uncovered().view(self.totals.shape).double()
            scores = scores + self.settings.coverage * uncovered.gather(1, candidates.parent)
        worth = scores if self.required is None else scores - OWED * self.required.owed.gather(1, candidates.parent)
        if self.settings.groups > 1:
            # Groups may end in the same words; one of them is enough.
            said = _rows(self.tokens, candidates.parent)
            twice = (said[:, :, None] == self.ended_tokens[:, None]).all(-1) & (self.ended_lengths == step + 1)[:, None]
            ends = ends & ~twice.any(-1)
        K = self.totals.shape[1]
        pool = torch.cat((self.ended_worth, worth.masked_fill(~ends, -math.inf)), 1)
        self.ended_worth, place = pool.topk(K, dim=1)
        fresh = place >= K
        if not bool(fresh.any()):
            return
        new, old = (place - K).clamp(min=0), place.clamp(max=K - 1)
        ancestor = candidates.parent.gather(1, new)
        gains = _rows(self.gains, ancestor)
        gains[:, :, step] = candidates.gain.gather(1, new)
        wide = fresh[:, :, None]
        self.ended_tokens = torch.where(wide, _rows(self.tokens, ancestor), _rows(self.ended_tokens, old))
        self.ended_gains = torch.where(wide, gains, _rows(self.ended_gains, old))
        self.ended_scores = torch.where(fresh, scores.gather(1, new), self.ended_scores.gather(1, old))
        self.ended_lengths = torch.where(fresh, step + 1, self.ended_lengths.gather(1, old))

    def _live_on(self, lives: Candidates, step: int) -> None:
        self.totals, self.parents = lives.total, lives.parent
        self.tokens, self.gains = _rows(self.tokens, lives.parent), _rows(self.gains, lives.parent)
        self.tokens[:, :, step] = lives.token
        self.gains[:, :, step] = lives.gain
        if self.required is not None:
            self.required = self.required.follow(lives.parent, lives.token)

    def _release(self, step: int) -> None:
        """Takes decided sentences out of the batch and brings the stepper's state into the new order."""
        B, K = self.totals.shape
        decided = self._decided()
        rows = torch.arange(B, device=self.totals.device)[:, None] * K + self.parents
        # A row of NaN has only children of NaN, which rank before all others: one of them lives on or has ended.
        broken = self.totals.isnan().any() | self.ended_worth.isnan().any()
        some_decided, is_broken = torch.stack((decided.any(), broken)).tolist()
        refuse_nan(is_broken)
        if some_decided:
            for i in decided.nonzero()[:, 0].tolist():
                found = collect(self.ended_tokens[i], self.ended_gains[i], self.ended_lengths[i], self.ended_scores[i])
                taken = int((self.ended_worth[i] > -math.inf).sum())
                returned = found[: min(taken, self.settings.n_best)]
                self.results[int(self.sentences[i])] = returned
                if self.recorder is not None:
                    unfinished = "enough others had ended" if self._stops_when_full() else "it could no longer win"
                    self.recorder.close(i, returned, step, unfinished)
            keep = (~decided).nonzero()[:, 0]
            rows = rows[keep]
            self._keep(keep)
        if rows.numel():
            self.state = self.state.select(rows.reshape(-1))

    def _keep(self, sentences: Tensor) -> None:
        for name in ("sentences", "tokens", "gains", "totals", "parents"):
            setattr(self, name, getattr(self, name)[sentences])
        for name in ("ended_tokens", "ended_gains", "ended_worth", "ended_scores", "ended_lengths"):
            setattr(self, name, getattr(self, name)[sentences])
        self.rules = self.rules.select(sentences)
        self.required = None if self.required is None else self.required.select(sentences)
        if self.recorder is not None:
            self.recorder.keep(sentences)

    def _decided(self) -> Tensor:
        """Whether each sentence's best hypotheses are settled."""
        best = self.totals.max(1).values
        none_lives = best == -math.inf
        if self._stops_when_full():
            return none_lives | (self.ended_worth[:, -1] > -math.inf)
        # A sum of log-probabilities only falls, and coverage only costs. What the sum is divided by grows with the
        # length, so the most a living hypothesis can still reach is its present sum divided as at the limit.
        reachable = best / self.settings.normaliser(self.rules.limits)
        return none_lives | (self.ended_worth[:, self.settings.n_best - 1] >= reachable)

    def _stops_when_full(self) -> bool:
        """Whether a sentence is decided by how many have ended, whatever the living could still reach."""
        return self.settings.stop == "first" or self.settings.width == 1  # a beam of one is greedy search


class Recorder:
    """Writes down every candidate of a beam as a node of its sentence's tree."""

    def __init__(self, trace: Trace, B: int, K: int) -> None:
        self.trees: list[list[Expansion]] = [trace.trees.setdefault(b, []) for b in range(B)]
        self.nodes = [[-1] * K for _ in range(B)]  # the node of each living hypothesis
        self.fresh = [[-1] * K for _ in range(B)]

    def record(
        self, beam: Beam[S], candidates: Candidates, ends: Tensor, survivors: Tensor, first: int, step: int
    ) -> None:
        """Notes the candidates of one group at one step, and which of them live on."""
        normaliser = float(beam.settings.normaliser(torch.tensor(step + 1)))
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
                tree.append(Expansion(node, self.nodes[b][parent], step, token, gain, total, total / normaliser, fate))
                if fate == "kept":
                    self.fresh[b][first + lasting[b].index(place)] = node
        if first + beam.totals.shape[1] // beam.settings.groups == beam.totals.shape[1]:
            self.nodes = [list(row) for row in self.fresh]

    def record_forbidden(self, beam: Beam[S], wished: Tensor, allowed: Tensor, step: int) -> None:
        """Notes what would have been among the best continuations of a hypothesis, had the rules allowed it."""
        best = wished.topk(min(2 * beam.totals.shape[1], wished.shape[2]), dim=2).indices
        refused = (allowed.gather(2, best) == -math.inf) & (beam.totals > -math.inf)[:, :, None]
        normaliser = float(beam.settings.normaliser(torch.tensor(step + 1)))
        for b, k, place in refused.nonzero().tolist():
            token, said = int(best[b, k, place]), beam.tokens[b, k, :step].tolist()
            owes = beam.required is not None and bool(beam.required.unmet[b, k])
            gain = float(wished[b, k, token])
            total = float(beam.totals[b, k]) + gain
            fate = f"forbidden: {beam.rules.why_not(b, said, token, owes)}"
            tree, parent = self.trees[b], self.nodes[b][k]
            tree.append(Expansion(len(tree), parent, step, token, gain, total, total / normaliser, fate))

    def close(self, row: int, returned: Sequence[Found], step: int, unfinished: str) -> None:
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

    def keep(self, sentences: Tensor) -> None:
        rows = sentences.tolist()
        self.trees = [self.trees[i] for i in rows]
        self.nodes = [self.nodes[i] for i in rows]
        self.fresh = [self.fresh[i] for i in rows]


def _said(tree: Sequence[Expansion], end: Expansion) -> tuple[int, ...]:
    """The tokens that lead to an END."""
    tokens, node = [], end.parent
    while node != -1:
        tokens.append(tree[node].token)
        node = tree[node].parent
    return tuple(reversed(tokens))


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, k]] for (B, K, L) and (B, K)."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))
