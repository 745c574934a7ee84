"""Requests for translations with their constraints, and the progress of hypotheses in what these require.

Shapes: B sentences, K hypotheses per sentence, N candidates per sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

Phrase = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DecodingConstraints:
    """Constraints on a translation as tokens: its start, what is required in it, and what is forbidden."""

    prefix: Phrase = ()
    required: tuple[Phrase, ...] = ()
    forbidden: tuple[PhraseAutomaton, ...] = ()
    terms: TermAutomaton | None = None


@dataclass(frozen=True)
class DecodingRequest(DecodingConstraints):
    """A source sentence as tokens, and the constraints on its translation."""

    source: Sequence[int]


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
