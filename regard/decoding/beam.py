"""Beam search over a batch; the allowed tokens and the results are also those of greedy search.

A sentence leaves the batch as soon as its result is decided.

The log-probabilities of the vocabulary stay on the stepper's device; the best candidates of every hypothesis are copied
to the host. `cuda_graph/beam.py` has the same arithmetic for the device.

Shapes: B undecided sentences, K hypotheses per sentence, V vocabulary, N candidates per sentence, L tokens so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.beam_trace import BeamTrace
from regard.decoding.constraints import (
    DecodingConstraints,
    DecodingRequest,
    Ints,
    PhraseAutomaton,
    Requirements,
    track_requirements,
)
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import Bools, Doubles, StateT, Stepper, TokenHypothesis
from regard.errors import UserError

Array = npt.NDArray[Any]

MISSING_PHRASE_PENALTY = 1e6
"""Subtracted from the score of a finished hypothesis for each missing phrase; larger than any difference in score."""
TOP_K_CHUNK = 128


class Candidates(NamedTuple):
    """Continuations of the hypotheses of a group, (B, N) each, best first."""

    log_prob: Doubles  # cumulative
    beam_index: Ints  # index of the hypothesis that is continued
    token: Ints
    token_log_prob: Doubles

    def take(self, index: Ints) -> "Candidates":
        return Candidates(*(_take(part, index) for part in self))

    def first(self, count: int) -> "Candidates":
        parts: list[Array] = [part[:, :count] for part in self]
        return Candidates(*parts)


class FinishedHypotheses(NamedTuple):
    """K hypotheses of each sentence; the ordering score of an empty slot is -inf and its length 0."""

    tokens: Ints  # (B, K, longest)
    token_log_probs: Doubles  # (B, K, longest)
    ordering_scores: Doubles  # scores minus the penalty for missing phrases, (B, K)
    scores: Doubles  # (B, K)
    lengths: Ints  # END included, (B, K)

    def merge(self, new: "FinishedHypotheses") -> "FinishedHypotheses":
        """Return the best K of these and the new hypotheses, best first; ties keep finishing order."""
        parts: list[Array] = [np.concatenate(pair, 1) for pair in zip(self, new, strict=True)]
        both = FinishedHypotheses(*parts)
        order = (-both.ordering_scores).argsort(axis=1, kind="stable")[:, : self.scores.shape[1]]
        return FinishedHypotheses(*(_take(part, order) for part in both))

    def select(self, sentences: Ints) -> "FinishedHypotheses":
        parts: list[Array] = [part[sentences] for part in self]
        return FinishedHypotheses(*parts)


class BeamSearch(Generic[StateT]):
    """A beam search. `run` alternates `_extend`, which appends a token to every hypothesis, and `_remove_decided`."""

    def __init__(
        self, stepper: Stepper[StateT], requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool
    ) -> None:
        self.stepper, self.settings = stepper, settings
        B, K = len(requests), settings.beam_width
        self.constraints = TokenConstraints.of(requests, settings, stepper.eos, stepper.device, stepper.max_length)
        self.required: Requirements | None = None
        if any(map(needs_beam, requests)):
            phrases, terms = [request.required for request in requests], [request.terms for request in requests]
            self.required = track_requirements(phrases, terms, K)
        self.results: list[list[TokenHypothesis]] = [[] for _ in requests]
        self.state = stepper.start([request.source for request in requests], K)
        self.sentences: Ints = np.arange(B)  # index of the sentence in each row
        max_lengths = self.constraints.max_lengths.tolist()
        # Computed one by one: in an array, the rounding of powers depends on the other elements.
        self.final_normalisers: Doubles = np.array([settings.length_normaliser(float(n)) for n in max_lengths])
        self.tokens: Ints = np.full((B, K, max(max_lengths)), stepper.eos)
        self.token_log_probs: Doubles = np.zeros(self.tokens.shape)
        # All hypotheses start equal, so only the first of each group is extended in the first step.
        self.log_probs: Doubles = np.full((B, K), -math.inf)
        self.log_probs[:, :: K // settings.groups] = 0
        self.beam_indices: Ints = np.zeros((B, K), np.int64)
        empty: Doubles = np.full((B, K), -math.inf)
        self.finished = FinishedHypotheses(
            self.tokens.copy(), self.token_log_probs.copy(), empty, empty.copy(), np.zeros((B, K), np.int64)
        )
        self.trace = BeamTrace(B, K, settings, stepper.eos) if trace else None

    def run(self) -> list[list[TokenHypothesis]]:
        step = 0
        while len(self.sentences):
            self._extend(step)
            step += 1
            self._remove_decided(step)
        return self.results

    def _extend(self, step: int) -> None:
        """Append a token to every hypothesis: candidates with END finish, the best K others stay in the beam."""
        B, K = self.log_probs.shape
        last = self.tokens[:, :, step - 1] if step else np.full((B, K), self.stepper.bos)
        log_probs = self.stepper.step(self._to_device(last.reshape(-1)), self.state).view(B, K, -1)
        must_continue = None if self.required is None else self._to_device(self.required.missing > 0)
        allowed = self.constraints.apply(log_probs, self.tokens[:, :, :step], must_continue)
        if self.trace is not None:
            missing = None if self.required is None else self.required.missing > 0
            hypotheses = self.log_probs, self.tokens[:, :, :step]
            self.trace.add_forbidden(log_probs, allowed, *hypotheses, self.constraints.reason, missing)
        size = K // self.settings.groups
        kept: list[Candidates] = []  # of each group
        for first in range(0, K, size):
            candidates = self._candidates(
                allowed[:, first : first + size], first, self._diversity_penalty(allowed, kept)
            )
            is_end = candidates.token == self.stepper.eos
            # Only the first K may finish: others would not have been kept in the beam either.
            if is_end[:, :size].any():
                self._finish(candidates.first(size), is_end[:, :size], step)
            # A stable sort of booleans puts candidates without END first and keeps their order, best first.
            survivors = is_end.argsort(axis=1, kind="stable")[:, :size]
            group = candidates.take(survivors)
            group.log_prob[_take(is_end, survivors)] = -math.inf
            kept.append(group)
            if self.trace is not None:
                self.trace.add_candidates(candidates, survivors, first, step, in_banks=self.required is not None)
        beam = Candidates(*(np.concatenate(parts, 1) for parts in zip(*kept, strict=True)))
        self.log_probs, self.beam_indices = beam.log_prob, beam.beam_index
        self.tokens = _take(self.tokens, beam.beam_index)
        self.token_log_probs = _take(self.token_log_probs, beam.beam_index)
        self.tokens[:, :, step], self.token_log_probs[:, :, step] = beam.token, beam.token_log_prob
        if self.required is not None:
            self.required = self.required.extend(beam.beam_index, beam.token)

    def _to_device(self, x: Array) -> Tensor:
        return torch.from_numpy(x).to(self.stepper.device)

    def _diversity_penalty(self, log_probs: Tensor, kept: Sequence[Candidates]) -> Tensor | None:
        """Return the penalty of each token for its use in earlier groups, (B, V), or None if there is none."""
        if not kept or not self.settings.diversity:
            return None
        penalty = torch.zeros_like(log_probs[:, 0])
        for group in kept:
            token = self._to_device(group.token)
            penalty.scatter_add_(1, token, penalty.new_full(token.shape, self.settings.diversity))
        return penalty

    def _candidates(self, log_probs: Tensor, first: int, penalty: Tensor | None) -> Candidates:
        """Return the best 2K continuations of a group of K hypotheses.

        At most K of them end, so that K others remain. Each is among the best 2K continuations of its hypothesis.
        Sums are computed for these only, in float64, so that long sums remain comparable.
        """
        B, K, V = log_probs.shape
        penalised = log_probs if penalty is None else log_probs - penalty[:, None]
        largest = top_k(penalised.reshape(B * K, V), min(2 * K, V))
        values, token = (_to_host(x).reshape(B, K, -1) for x in largest)
        raise_if_nan(bool(np.isnan(values).any()))  # top_k returns NaN first
        token_log_prob = penalised_log_prob = values  # equal without a penalty
        if self.required is not None:
            token = _append_required(token, self.required.next_tokens[:, first : first + K])
        if self.required is not None or penalty is not None:
            index = self._to_device(token.clip(min=0))
            token_log_prob, penalised_log_prob = (
                np.where(token < 0, -math.inf, _to_host(x.gather(2, index))) for x in (log_probs, penalised)
            )
        parent_log_prob = self.log_probs[:, first : first + K, None]
        beam_index = np.broadcast_to(np.arange(first, first + K)[:, None], token.shape)
        parts: list[Array] = [parent_log_prob + token_log_prob, beam_index, token.clip(min=0), token_log_prob]
        candidates = Candidates(*(x.reshape(B, -1) for x in parts))
        cumulative = (parent_log_prob + penalised_log_prob).reshape(B, -1)
        count = min(2 * K, cumulative.shape[1])
        if self.required is None:
            return candidates.take(torch.from_numpy(cumulative).topk(count, dim=1).indices.numpy())
        progress = self.required.extend(candidates.beam_index, candidates.token)
        dead = progress.dead()
        candidates.log_prob[dead] = cumulative[dead] = -math.inf
        return candidates.take(self._interleave_banks(progress, cumulative)[:, :count])

    def _interleave_banks(self, progress: Requirements, cumulative: Doubles) -> Ints:
        """Return the order of candidates under required phrases (dynamic beam allocation, Post and Vilar 2018).

        Candidates with the same number of required tokens form a bank. The best of each bank come first, then the
        second best, and so on, so that fluent hypotheses do not displace those that have started a phrase. The best
        is the one with the largest cumulative log-probability, minus the diversity penalty of its last token.
        """
        bank = np.where(cumulative == -math.inf, -1, progress.matched_tokens())
        best_first = (-cumulative).argsort(axis=1, kind="stable")
        order = _take(best_first, (-_take(bank, best_first)).argsort(axis=1, kind="stable"))
        bank = _take(bank, order)
        index = np.broadcast_to(np.arange(bank.shape[1]), bank.shape)
        starts = np.ones_like(bank, dtype=np.bool_)
        starts[:, 1:] = bank[:, 1:] != bank[:, :-1]
        rank_in_bank = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
        rank_in_bank = np.where(bank < 0, bank.shape[1], rank_in_bank)
        return _take(order, rank_in_bank.argsort(axis=1, kind="stable"))

    def _finish(self, candidates: Candidates, finishes: Bools, step: int) -> None:
        """Merge the candidates that finish with the hypotheses that have finished before."""
        scores = candidates.log_prob / self.settings.length_normaliser(float(step + 1))
        if self.settings.coverage:
            penalties = _to_host(self.state.coverage_penalties()).reshape(self.log_probs.shape)
            scores = scores + self.settings.coverage * _take(penalties, candidates.beam_index)
        ordering_scores = scores
        if self.required is not None:
            ordering_scores = scores - MISSING_PHRASE_PENALTY * _take(self.required.missing, candidates.beam_index)
        tokens = _take(self.tokens, candidates.beam_index)
        if self.settings.groups > 1:  # groups may find the same hypothesis
            same_length = (self.finished.lengths == step + 1)[:, None]
            duplicate = (tokens[:, :, None] == self.finished.tokens[:, None]).all(-1) & same_length
            finishes = finishes & ~duplicate.any(-1)
        ordering_scores = np.where(finishes, ordering_scores, -math.inf)
        raise_if_nan(bool(np.isnan(ordering_scores).any()))
        token_log_probs = _take(self.token_log_probs, candidates.beam_index)
        token_log_probs[:, :, step] = candidates.token_log_prob
        lengths = np.where(finishes, step + 1, 0)
        new = FinishedHypotheses(tokens, token_log_probs, ordering_scores, scores, lengths)
        self.finished = self.finished.merge(new)

    def _remove_decided(self, step: int) -> None:
        """Remove decided sentences from the batch and reorder the stepper's state."""
        B, K = self.log_probs.shape
        decided = self._decided()
        rows = np.arange(B)[:, None] * K + self.beam_indices
        if decided.any():
            for i in decided.nonzero()[0].tolist():
                self.results[int(self.sentences[i])] = self._result(i, step)
            keep = (~decided).nonzero()[0]
            rows = rows[keep]
            for name in ("sentences", "final_normalisers", "tokens", "token_log_probs", "log_probs", "beam_indices"):
                setattr(self, name, getattr(self, name)[keep])
            self.finished = self.finished.select(keep)
            self.constraints = self.constraints.select(self._to_device(keep))
            self.required = None if self.required is None else self.required.select(keep)
            if self.trace is not None:
                self.trace.select(keep)
        if rows.size:
            self.state = self.state.select(self._to_device(rows.reshape(-1)))

    def _decided(self) -> Bools:
        """Return whether the result of each sentence cannot change any more, (B,)."""
        best = self.log_probs.max(1)
        exhausted: Bools = best == -math.inf
        if self.settings.stops_when_full:
            return exhausted | (self.finished.ordering_scores[:, -1] > -math.inf)
        # Log-probabilities and coverage penalties are never positive, and normalisers grow with the length. A live
        # hypothesis therefore scores at most its present sum divided by the normaliser of the maximum length.
        settled: Bools = self.finished.ordering_scores[:, self.settings.n_best - 1] >= best / self.final_normalisers
        return exhausted | settled

    def _result(self, row: int, step: int) -> list[TokenHypothesis]:
        f = self.finished
        hypotheses = build_hypotheses(f.tokens[row], f.token_log_probs[row], f.lengths[row], f.scores[row])
        count = int((f.ordering_scores[row] > -math.inf).sum())
        result = hypotheses[: min(count, self.settings.n_best)]
        if self.trace is None:
            return result
        tree = self.trace.close(row, result, step, self.settings.stops_when_full)
        return [replace(hypothesis, tree=tree) for hypothesis in result]


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of every row, (R, V), and their indices, (R, k) each, in descending order.

    The k largest values lie in the k chunks of a row with the largest maxima, so that all other values are read once.
    `Tensor.topk` reads the row several times.
    """
    V = x.shape[1]
    if 4 * k * TOP_K_CHUNK > V:
        values, indices = x.topk(k, -1)
        return values, indices
    chunks = V // TOP_K_CHUNK
    chunked = x[:, : chunks * TOP_K_CHUNK].view(-1, chunks, TOP_K_CHUNK)
    chosen = chunked.amax(-1).topk(k, -1, sorted=False).indices
    inside = chunked.gather(1, chosen[:, :, None].expand(-1, -1, TOP_K_CHUNK)).flatten(1)
    values, index = torch.cat((inside, x[:, chunks * TOP_K_CHUNK :]), 1).topk(k, -1)
    chosen = F.pad(chosen, (0, 1), value=chunks)  # the remainder of the row follows the chosen chunks
    return values, chosen.gather(1, index // TOP_K_CHUNK) * TOP_K_CHUNK + index % TOP_K_CHUNK


def _append_required(token: Ints, required: Ints) -> Ints:
    """Append the next required tokens, (B, K, C), to candidate tokens, (B, K, N); duplicates become -1."""
    duplicate = (required[..., None] == token[:, :, None, :]).any(-1)
    earlier = np.tri(required.shape[2], k=-1, dtype=np.bool_)
    duplicate |= ((required[..., :, None] == required[..., None, :]) & earlier).any(-1)
    return np.concatenate((token, np.where(duplicate, -1, required)), 2)


def _to_host(x: Tensor) -> Array:
    """Copy a tensor to the host; floating-point values become float64 there, which some devices lack."""
    x = x.cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _take(x: Array, index: Ints) -> Array:
    """Return x[b, index[b, k]] for x of shape (B, K) or (B, K, L)."""
    return x[np.arange(len(x))[:, None], index]


# Allowed tokens and results, also of greedy search


def needs_beam(constraints: DecodingConstraints) -> bool:
    """Return whether phrases are required, which only beam search supports."""
    return bool(constraints.required) or constraints.terms is not None


@dataclass
class TokenConstraints:
    """Masks tokens that may not follow. `track_requirements` tracks what is required.

    Attributes:
        settings: Settings of the search.
        eos: The END token.
        max_lengths: Maximum number of tokens, END included, (B,).
        prefixes: Prefix tokens, followed by -1, (B, longest prefix).
        forbidden: For each forbidden phrase, the sentences that it applies to, (B,).
    """

    settings: SearchSettings
    eos: int
    max_lengths: Tensor
    prefixes: Tensor
    forbidden: dict[PhraseAutomaton, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._min_max_length = int(self.max_lengths.min()) if len(self.max_lengths) else 0

    @classmethod
    def of(
        cls,
        requests: Sequence[DecodingRequest],
        settings: SearchSettings,
        eos: int,
        device: torch.device,
        model_max_length: int | None = None,
    ) -> Self:
        """Build the constraints of a batch."""
        longest = max(len(request.prefix) for request in requests)
        limits = [max(settings.max_target_length(len(r.source)), len(r.prefix) + 1) for r in requests]
        if model_max_length is not None:
            if max(longest, settings.min_length) + 1 > model_max_length:
                raise UserError(
                    f"a prefix of {longest} tokens or min_length {settings.min_length} is too long: the model has "
                    f"{model_max_length} learned positions"
                )
            limits = [min(limit, model_max_length) for limit in limits]
        prefixes = [[*request.prefix, *[-1] * (longest - len(request.prefix))] for request in requests]
        forbidden = {
            phrase: torch.tensor([phrase in request.forbidden for request in requests], device=device)
            for phrase in dict.fromkeys(phrase for request in requests for phrase in request.forbidden)
        }
        table = torch.tensor(prefixes, device=device, dtype=torch.long).view(len(requests), longest)
        return cls(settings, eos, torch.tensor(limits, device=device), table, forbidden)

    def select(self, sentences: Tensor) -> Self:
        """Return the constraints of the given sentences."""
        forbidden = {phrase: mask[sentences] for phrase, mask in self.forbidden.items()}
        return type(self)(self.settings, self.eos, self.max_lengths[sentences], self.prefixes[sentences], forbidden)

    def apply(self, log_probs: Tensor, tokens: Ints, must_continue: Tensor | None = None) -> Tensor:
        """Return log-probabilities, (B, K, V), with -inf for tokens that may not follow.

        Args:
            log_probs: Log-probabilities of the next tokens. They are returned unchanged if no constraint is active.
            tokens: Tokens of the hypotheses so far, (B, K, L).
            must_continue: Hypotheses that must not end, because they lack a required phrase, (B, K).
        """
        step = tokens.shape[2]
        allowed = log_probs
        if step < self.settings.min_length:
            must_continue = torch.ones(log_probs.shape[:2], dtype=torch.bool, device=log_probs.device)
        if must_continue is not None:
            allowed = allowed.clone()
            allowed[..., self.eos].masked_fill_(must_continue, -math.inf)
        if self.forbidden or self.settings.no_repeat:
            if self.settings.no_repeat and step >= self.settings.no_repeat:
                allowed = self._forbid_repetition(allowed, torch.from_numpy(tokens).to(log_probs.device))
            for phrase, sentences in self.forbidden.items():
                completing = torch.from_numpy(phrase.completing(tokens)).to(log_probs.device)  # (B, K, V)
                allowed = allowed.masked_fill(completing & sentences[:, None, None], -math.inf)
            # If all tokens are forbidden, the hypothesis ends.
            stuck = (allowed == -math.inf).all(-1, keepdim=True)
            allowed = torch.where(stuck, self._only(log_probs, self.eos), allowed)
        if step < self.prefixes.shape[1]:
            forced = self.prefixes[:, step]
            allowed = torch.where((forced >= 0)[:, None, None], self._only(log_probs, forced.clamp(min=0)), allowed)
        if step + 1 >= self._min_max_length:
            at_limit = self.max_lengths == step + 1
            allowed = torch.where(at_limit[:, None, None], self._only(log_probs, self.eos), allowed)
        return allowed

    def reason(self, sentence: int, tokens: Sequence[int], token: int, phrase_missing: bool) -> str:
        """Return the constraint that forbids `token` after `tokens`."""
        step = len(tokens)
        if int(self.max_lengths[sentence]) == step + 1:
            return "only END is allowed at the maximum length"
        if step < self.prefixes.shape[1] and int(self.prefixes[sentence, step]) >= 0:
            return "the prefix has another token"
        if token == self.eos:
            return "a required phrase is missing" if phrase_missing else "it would end before min_length"
        for phrase, sentences in self.forbidden.items():
            if bool(sentences[sentence]) and phrase.completing(np.array(tokens, np.int64))[token]:
                return "it would complete a forbidden phrase"
        return "it would repeat an n-gram"

    def _only(self, log_probs: Tensor, token: int | Tensor) -> Tensor:
        """Return -inf except for one token: the same for all sentences, or one per sentence, (B,)."""
        B, K, _ = log_probs.shape
        index = torch.as_tensor(token, device=log_probs.device).expand(B)[:, None, None].expand(-1, K, 1)
        return torch.full_like(log_probs, -math.inf).scatter(2, index, log_probs.gather(2, index))

    def _forbid_repetition(self, log_probs: Tensor, history: Tensor) -> Tensor:
        n = self.settings.no_repeat
        ngrams = history.unfold(2, n, 1)  # (B, K, L - n + 1, n)
        suffix = history[:, :, None, history.shape[2] - n + 1 :]
        repeated = (ngrams[..., :-1] == suffix).all(-1)
        banned = torch.zeros_like(log_probs, dtype=torch.int8)
        banned.scatter_reduce_(2, ngrams[..., -1], repeated.to(torch.int8), "amax")
        return log_probs.masked_fill(banned.bool(), -math.inf)


def raise_if_nan(found: bool) -> None:
    """Stop a search in which NaN scores were found."""
    if found:
        raise UserError(
            "the model returns NaN scores: its weights are damaged or its training has diverged; use another model, or "
            "train again with a lower optim.lr"
        )


def build_hypotheses(tokens: Ints, log_probs: Doubles, lengths: Ints, scores: Doubles) -> list[TokenHypothesis]:
    """Convert rows of arrays to hypotheses; lengths include END."""
    rows = zip(tokens.tolist(), log_probs.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    return [TokenHypothesis(row[: n - 1], score, row_log_probs[:n]) for row, row_log_probs, n, score in rows]
