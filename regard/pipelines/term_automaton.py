"""Automata that recognise the translations of terms in the text of target tokens."""

import codecs
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

from regard.data.text.inflection import is_word_character
from regard.data.text.tokenizer import Tokenizer, is_unspaced

Kind = Literal["start", "space", "word", "other"]


class _State(NamedTuple):
    """State in one translation: its characters that the text ends with, and what precedes the next character."""

    matched: int = 0
    last: Kind = "start"  # the last character, or the start of the text
    rest: bytes = b""  # bytes of an incomplete character


class TargetAutomaton:
    """Recognises one translation as `regard.data.text.glossary.find_target` does, while a text is generated.

    Args:
        target: The translation of a term.
        tokenizer: Tokenizer of the target language.
    """

    def __init__(self, target: str, tokenizer: Tokenizer) -> None:
        target = tokenizer.to_token_script(target)
        self.target, self._tokenizer, self._bytes = target, tokenizer, tokenizer.token_bytes
        self._initials = {target[0], target[0].upper()}
        self._before, self._after = is_word_character(target[0]), is_word_character(target[-1])
        spaced = not is_unspaced(target)
        self._tokens = tokenizer.encode_phrase(target)
        lengths = [len(self._bytes[token]) for token in self._tokens]
        # What comes before each token of the usual tokenisation, without the leading space.
        self._starts = {end - spaced: token for end, token in zip(accumulate(lengths), self._tokens[1:], strict=False)}
        if spaced and target[0].islower():
            self._capital = tokenizer.encode(target[0].upper() + target[1:])[0]
        else:
            self._capital = self._tokens[0]
        self._advance: dict[tuple[_State, int], tuple[_State, int]] = {}
        self._next: dict[_State, tuple[int, ...]] = {}

    def advance(self, state: _State, token: int) -> tuple[_State, int]:
        """Return the state after another token, and the number of occurrences that it completes."""
        found = self._advance.get((state, token))
        if found is None:
            text, rest = _decode(state.rest + self._bytes[token])
            if state.matched or not text or rest or any(initial in text for initial in self._initials):
                found = self._read(state, text, rest)
            else:  # as with most tokens, only the last character matters
                found = _State(0, _kind(text[-1])), 0
            self._advance[state, token] = found
        return found

    def ends(self, state: _State) -> bool:
        """Return whether an occurrence is complete if the text ends in this state."""
        return state.matched == len(self.target)

    def matched_tokens(self, state: _State) -> int:
        """Return the number of tokens of an incomplete occurrence, or one that waits for the end of a word."""
        if self.ends(state):
            return len(self._tokens)
        matched = len(self.target[: state.matched].encode()) + len(state.rest)
        return sum(start <= matched for start in self._starts) if matched else 0

    @property
    def tokens(self) -> int:
        """Number of tokens of the translation."""
        return len(self._tokens)

    def next_tokens(self, state: _State) -> tuple[int, ...]:
        """Return tokens that start or continue an occurrence."""
        if state not in self._next:
            self._next[state] = tuple(dict.fromkeys(self._propose(state)))
        return self._next[state]

    def _propose(self, state: _State) -> list[int]:
        if self.ends(state):
            return []
        if state.matched or state.rest:
            start = len(self.target[: state.matched].encode()) + len(state.rest)
            if start in self._starts:
                return [self._starts[start]]
            return [] if state.rest else self._tokenizer.encode_continuation(self.target[state.matched :])[:1]
        if state.last == "space" and 0 in self._starts:  # the space is a token of its own
            return [self._starts[0]]
        if state.last == "start":
            return [self._tokens[0], self._capital]
        if self._before and state.last == "other":  # after an opening bracket
            return [self._tokens[0], self._tokenizer.encode_continuation(self.target)[0]]
        return [self._tokens[0]]

    def _read(self, state: _State, text: str, rest: bytes) -> tuple[_State, int]:
        matched, last, completed = state.matched, state.last, 0
        for character in text:
            is_word = is_word_character(character)
            if matched == len(self.target) and not is_word:  # the end of the word
                completed, matched = completed + 1, 0
            matched = self._fall_back(matched, character, last == "word")
            if matched == len(self.target) and not self._after:
                completed, matched = completed + 1, 0
            last = _kind(character)
        return _State(matched, last, rest), completed

    def _fall_back(self, matched: int, character: str, in_word: bool) -> int:
        """Return how many characters of the translation the text ends with after another character."""
        text = self.target[:matched] + character
        for length in range(min(len(text), len(self.target)), 0, -1):
            start = len(text) - length
            before = is_word_character(text[start - 1]) if start else (not matched and in_word)
            if self._matches(text[start:]) and not (self._before and before):
                return length
        return 0

    def _matches(self, text: str) -> bool:
        first = self.target[0]
        return text[1:] == self.target[1 : len(text)] and text[0] in (first, first.upper())


class SentenceTerms:
    """Recognises the translations of the terms of a sentence; see `regard.decoding.constraints.TermAutomaton`.

    Args:
        targets: Automata with the minimum and the maximum number of occurrences.
    """

    def __init__(self, targets: Sequence[tuple[TargetAutomaton, int, float]] = ()) -> None:
        self._targets = tuple(targets)
        self._states: list[tuple[tuple[_State, int], ...]] = []
        self._numbers: dict[tuple[tuple[_State, int], ...], int] = {}
        self._advance: dict[tuple[int, int], int] = {}
        self._missing: list[int] = []
        self._matched: list[int] = []
        self._next: list[tuple[int, ...]] = []
        self._dead: list[bool] = []
        self._add(tuple((_State(), 0) for _ in targets))

    def advance(self, state: int, token: int) -> int:
        number = self._advance.get((state, token))
        if number is None:
            parts = []
            for (automaton, *_), (part, count) in zip(self._targets, self._states[state], strict=True):
                after, completed = automaton.advance(part, token)
                parts.append((after, count + completed))
            number = self._advance[state, token] = self._add(tuple(parts))
        return number

    def missing(self, state: int) -> int:
        return self._missing[state]

    def matched_tokens(self, state: int) -> int:
        return self._matched[state]

    def next_tokens(self, state: int) -> tuple[int, ...]:
        return self._next[state]

    def is_dead(self, state: int) -> bool:
        return self._dead[state]

    def _add(self, parts: tuple[tuple[_State, int], ...]) -> int:
        """Return the number of a state; the properties of a new one are computed."""
        number = self._numbers.setdefault(parts, len(self._states))
        if number < len(self._states):
            return number
        missing, matched, dead = 0, 0, False
        following: list[int] = []
        for (automaton, least, most), (part, count) in zip(self._targets, parts, strict=True):
            final = count + automaton.ends(part)  # if the text ends here
            missing += max(0, least - final) + (final > most)
            dead |= count > most
            matched += automaton.tokens * min(count, least)
            if count < least:
                matched += automaton.matched_tokens(part)
                following += automaton.next_tokens(part)
        self._states.append(parts)
        self._missing.append(missing)
        self._matched.append(matched)
        self._dead.append(dead)
        self._next.append(tuple(dict.fromkeys(following)))
        return number


def _kind(character: str) -> Kind:
    return "word" if is_word_character(character) else "space" if character.isspace() else "other"


@lru_cache(maxsize=2**16)
def _decode(content: bytes) -> tuple[str, bytes]:
    """Return the complete characters of some bytes, and the bytes of an incomplete one at their end."""
    text, length = codecs.utf_8_decode(content, "replace")  # stops before an incomplete character
    return text, content[length:]
