"""A request for a translation, the tokens that its constraints allow, and progress in what they require.

Shapes: B sentences, K hypotheses per sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.decoding.settings import SearchSettings
from regard.errors import UserError

Phrase = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DecodingConstraints:
    """Constraints on a translation as tokens: its start, what is required in it, and what is forbidden."""

    prefix: Phrase = ()
    required: tuple[Phrase, ...] = ()
    forbidden: tuple[PhraseAutomaton, ...] = ()
    terms: TermAutomaton | None = None

    @property
    def needs_beam(self) -> bool:
        """Whether phrases are required, which only beam search supports."""
        return bool(self.required) or self.terms is not None


@dataclass(frozen=True)
class DecodingRequest(DecodingConstraints):
    """A source sentence as tokens, and the constraints on its translation."""

    source: Sequence[int]


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


class TermAutomaton(Protocol):
    """Finite automaton that recognises required terms in a sequence of tokens, however they are tokenised.

    Its states are integers, of which 0 is the start.
    """

    def advance(self, state: int, token: int) -> int:
        """Return the state after another token."""

    def missing(self, state: int) -> int:
        """Return the number of terms that a hypothesis lacks that ends in this state."""

    def matched_tokens(self, state: int) -> int:
        """Return the number of tokens of required terms so far."""

    def next_tokens(self, state: int) -> tuple[int, ...]:
        """Return tokens that start or continue a missing term."""

    def is_dead(self, state: int) -> bool:
        """Return whether a hypothesis that reaches this state is dropped, because it has a replaced word."""


class Requirements(Protocol):
    """Progress of each hypothesis of a beam in what is required of its sentence."""

    @property
    def missing(self) -> Ints:
        """Number of phrases that each hypothesis lacks, (B, K)."""

    @property
    def next_tokens(self) -> Ints:
        """Tokens that continue what is missing, (B, K, N); -1 if there are fewer."""

    def matched_tokens(self) -> Ints:
        """Return the number of required tokens in each hypothesis, (B, K)."""

    def dead(self) -> npt.NDArray[np.bool_]:
        """Return which hypotheses are dropped, (B, K)."""

    def extend(self, parent: Ints, token: Ints) -> Self:
        """Return the progress after appending tokens, (B, N), to the hypotheses with these indices, (B, N)."""

    def select(self, sentences: Ints) -> Self:
        """Return the progress in the given sentences."""


def track_requirements(
    phrases: Sequence[Sequence[Phrase]], terms: Sequence[TermAutomaton | None], beam_width: int
) -> Requirements | None:
    """Return the progress in the required phrases and terms of each sentence; None if no sentence has any."""
    required = RequiredPhrases.of(phrases, beam_width)
    if all(automaton is None for automaton in terms):
        return required
    states = RequiredTerms(list(terms), np.zeros((len(terms), beam_width), np.int64))
    return states if required is None else CombinedRequirements(required, states)


@dataclass(frozen=True, eq=False)
class PhraseAutomaton:
    """Finite automaton that recognises a phrase in a sequence of tokens, however the phrase is tokenised.

    Shapes: S states.

    Attributes:
        transitions: Next state for each state and token, (S, V). The first state is the start; the last state means
            that the phrase has occurred.
    """

    transitions: Ints

    def run(self, tokens: Ints) -> Ints:
        """Return the state after each sequence of tokens, (..., L) -> (...)."""
        state: Ints = np.zeros(tokens.shape[:-1], np.int64)
        for position in range(tokens.shape[-1]):
            state = self.transitions[state, tokens[..., position]]
        return state

    def completing(self, tokens: Ints) -> npt.NDArray[np.bool_]:
        """Return which next tokens complete the phrase after each sequence of tokens, (..., L) -> (..., V)."""
        completing: npt.NDArray[np.bool_] = self.transitions[self.run(tokens)] == len(self.transitions) - 1
        return completing


class RequiredPhrases:
    """Progress of each hypothesis in each required phrase: one Knuth-Morris-Pratt automaton per phrase.

    Shapes: C maximum number of phrases per sentence, P maximum number of tokens per phrase.

    Args:
        phrases: Tokens of the phrases, followed by -1, (B, C, P + 1).
        lengths: Number of tokens of each phrase, (B, C).
        fallbacks: For each number of matched tokens, the number that still match after a mismatch, (B, C, P + 1).
        progress: Number of matched tokens, (B, K, C).
    """

    def __init__(self, phrases: Ints, lengths: Ints, fallbacks: Ints, progress: Ints) -> None:
        self.phrases, self.lengths, self.fallbacks, self.progress = phrases, lengths, fallbacks, progress

    @classmethod
    def of(cls, required: Sequence[Sequence[Phrase]], beam_width: int) -> RequiredPhrases | None:
        """Return the phrases of each sentence of a batch, or None if there are none."""
        C = max(map(len, required))
        if not C:
            return None
        P = max(len(phrase) for row in required for phrase in row)
        phrases = np.full((len(required), C, P + 1), -1)
        fallbacks = np.zeros((len(required), C, P + 1), np.int64)
        lengths = np.zeros((len(required), C), np.int64)
        for b, row in enumerate(required):
            for c, phrase in enumerate(row):
                phrases[b, c, : len(phrase)] = phrase
                fallbacks[b, c, : len(phrase)] = _fallbacks(phrase)
                lengths[b, c] = len(phrase)
        return cls(phrases, lengths, fallbacks, np.zeros((len(required), beam_width, C), np.int64))

    @property
    def missing(self) -> Ints:
        """Number of phrases that each hypothesis lacks, (B, K)."""
        missing: Ints = (self.progress < self.lengths[:, None]).sum(-1)
        return missing

    @property
    def next_tokens(self) -> Ints:
        """Token that continues each phrase, (B, K, C); -1 if the phrase is complete."""
        return _lookup(self.phrases, self.progress)

    def matched_tokens(self) -> Ints:
        """Return the number of required tokens in each hypothesis, (B, K)."""
        matched: Ints = self.progress.sum(-1)
        return matched

    def dead(self) -> npt.NDArray[np.bool_]:
        return np.zeros(self.progress.shape[:2], np.bool_)

    def extend(self, parent: Ints, token: Ints) -> Self:
        """Return the progress after appending tokens, (B, N), to the hypotheses with these indices, (B, N)."""
        progress = self.progress[np.arange(len(parent))[:, None], parent]
        done = progress == self.lengths[:, None]
        for _ in range(self.phrases.shape[2]):
            match = _lookup(self.phrases, progress) == token[:, :, None]
            mismatch = ~match & (progress > 0) & ~done
            if not mismatch.any():
                break
            progress = np.where(mismatch, _lookup(self.fallbacks, progress), progress)
        match = _lookup(self.phrases, progress) == token[:, :, None]
        progress = np.where(match & ~done, progress + 1, progress)
        return type(self)(self.phrases, self.lengths, self.fallbacks, progress)

    def select(self, sentences: Ints) -> Self:
        """Return the phrases of the given sentences."""
        parts = (self.phrases, self.lengths, self.fallbacks, self.progress)
        return type(self)(*(part[sentences] for part in parts))


@dataclass(frozen=True)
class RequiredTerms:
    """Progress of each hypothesis in the required terms: the states of one automaton per sentence.

    Attributes:
        automata: The automaton of each sentence, None if no terms are required.
        states: State of each hypothesis, (B, K).
    """

    automata: list[TermAutomaton | None]
    states: Ints

    @property
    def missing(self) -> Ints:
        return self._count(lambda automaton, state: automaton.missing(state))

    @property
    def next_tokens(self) -> Ints:
        B, K = self.states.shape
        found = [
            [() if automaton is None else automaton.next_tokens(state) for state in row]
            for automaton, row in zip(self.automata, self.states.tolist(), strict=True)
        ]
        tokens = np.full((B, K, max(len(each) for row in found for each in row)), -1)
        for b, row in enumerate(found):
            for k, each in enumerate(row):
                tokens[b, k, : len(each)] = each
        return tokens

    def matched_tokens(self) -> Ints:
        return self._count(lambda automaton, state: automaton.matched_tokens(state))

    def dead(self) -> npt.NDArray[np.bool_]:
        return self._count(lambda automaton, state: automaton.is_dead(state)).astype(np.bool_)

    def extend(self, parent: Ints, token: Ints) -> Self:
        states = self.states[np.arange(len(parent))[:, None], parent]
        for automaton, row, added in zip(self.automata, states, token, strict=True):
            if automaton is not None:
                row[:] = [automaton.advance(s, t) for s, t in zip(row.tolist(), added.tolist(), strict=True)]
        return type(self)(self.automata, states)

    def select(self, sentences: Ints) -> Self:
        return type(self)([self.automata[i] for i in sentences], self.states[sentences])

    def _count(self, count: Callable[[TermAutomaton, int], int]) -> Ints:
        return np.array(
            [
                [0 if automaton is None else count(automaton, state) for state in row]
                for automaton, row in zip(self.automata, self.states.tolist(), strict=True)
            ],
            np.int64,
        ).reshape(self.states.shape)


@dataclass(frozen=True)
class CombinedRequirements:
    """Required phrases and required terms of the same sentences."""

    phrases: RequiredPhrases
    terms: RequiredTerms

    @property
    def missing(self) -> Ints:
        return self.phrases.missing + self.terms.missing

    @property
    def next_tokens(self) -> Ints:
        return np.concatenate((self.phrases.next_tokens, self.terms.next_tokens), 2)

    def matched_tokens(self) -> Ints:
        return self.phrases.matched_tokens() + self.terms.matched_tokens()

    def dead(self) -> npt.NDArray[np.bool_]:
        return self.terms.dead()

    def extend(self, parent: Ints, token: Ints) -> Self:
        return type(self)(self.phrases.extend(parent, token), self.terms.extend(parent, token))

    def select(self, sentences: Ints) -> Self:
        return type(self)(self.phrases.select(sentences), self.terms.select(sentences))


def _lookup(table: Ints, progress: Ints) -> Ints:
    """Look up tables of phrases, (B, C, P + 1), by progress, (B, K, C)."""
    B, _, C = progress.shape
    found: Ints = table[np.arange(B)[:, None, None], np.arange(C), progress]
    return found


def _fallbacks(phrase: Phrase) -> list[int]:
    """Return the failure function of the Knuth-Morris-Pratt algorithm."""
    table = [0] * len(phrase)
    length = 0
    for position in range(1, len(phrase)):
        table[position] = length
        while length and phrase[position] != phrase[length]:
            length = table[length]
        length += phrase[position] == phrase[length]
    return table
