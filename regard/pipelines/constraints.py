"""Constraints on translations, as text."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.data.text.tokenizer import Tokenizer
from regard.decoding.constraints import DecodingConstraints, PhraseAutomaton
from regard.errors import UserError


@dataclass(frozen=True)
class Constraints:
    """The start of every translation, and phrases that are required or forbidden in it."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("required", "forbidden"):
            if isinstance(getattr(self, name), str):
                raise UserError(f"{name}: give a tuple of phrases, such as ({getattr(self, name)!r},)")
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def report(self, text: str) -> dict[str, bool]:
        """Return for each phrase whether the text satisfies the constraint."""
        satisfied = {phrase: unicodedata.normalize("NFC", phrase) in text for phrase in self.required}
        return satisfied | {phrase: unicodedata.normalize("NFC", phrase) not in text for phrase in self.forbidden}

    def to_tokens(self, target: Tokenizer) -> DecodingConstraints:
        """Return the constraints as tokens."""
        self._check()
        prefix = tuple(target.encode(self.prefix)) if self.prefix else ()
        required = tuple(tuple(target.encode_phrase(phrase)) for phrase in self.required)
        forbidden = tuple(
            _build_automaton(target.to_token_script(phrase), target.token_bytes) for phrase in self.forbidden
        )
        return DecodingConstraints(prefix=prefix, required=required, forbidden=forbidden)

    def _check(self) -> None:
        for phrase in (*self.required, *self.forbidden):
            if not phrase.strip():
                raise UserError("a required or forbidden phrase is empty; omit it or give some text")
        for phrase in self.forbidden:
            for text in (*self.required, self.prefix or ""):
                if phrase == text:
                    raise UserError(f"{phrase!r} is both required and forbidden; choose one")
                if phrase in text:
                    raise UserError(f"{phrase!r} is forbidden, but is part of {text!r}, which is required; choose one")


def _build_automaton(phrase: str, token_bytes: Sequence[bytes]) -> PhraseAutomaton:
    """Return an automaton that recognises a phrase in any tokenisation, also inside longer tokens.

    It is the Knuth-Morris-Pratt automaton over bytes, applied to the bytes of every token.
    """
    pattern = unicodedata.normalize("NFC", phrase).encode()
    by_byte = np.zeros((len(pattern) + 1, 256), np.int64)  # the state is the number of matched bytes
    by_byte[-1] = len(pattern)
    fallback = 0
    for state, byte in enumerate(pattern):
        if state:
            by_byte[state] = by_byte[fallback]
            fallback = by_byte[fallback, byte]
        by_byte[state, byte] = state + 1
    transitions = np.empty((len(pattern) + 1, len(token_bytes)), np.int64)
    for token, content in enumerate(token_bytes):
        states = np.arange(len(pattern) + 1)
        for byte in content:
            states = by_byte[states, byte]
        transitions[:, token] = states
    return PhraseAutomaton(transitions)
