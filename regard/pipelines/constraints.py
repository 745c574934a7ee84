"""Constraints on translations, as text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from regard.data.text.tokenizer import Tokenizer
from regard.decoding.constraints import DecodingRequest, Phrase
from regard.errors import UserError


@dataclass(frozen=True)
class Constraints:
    """The start of every translation, and phrases that are required or forbidden in it."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def report(self, text: str) -> dict[str, bool]:
        """Return for each phrase whether the text satisfies the constraint."""
        satisfied = {phrase: unicodedata.normalize("NFC", phrase) in text for phrase in self.required}
        return satisfied | {phrase: unicodedata.normalize("NFC", phrase) not in text for phrase in self.forbidden}

    def to_request(self, target: Tokenizer) -> DecodingRequest:
        """Return the constraints as tokens, in a request without a source.

        Raises:
            UserError: a phrase is empty, or two constraints contradict each other.
        """
        self._check()
        forbidden = {tokens for phrase in self.forbidden for tokens in _tokenisations(phrase, target)}
        required = tuple(_tokenisations(phrase, target)[0] for phrase in self.required)
        prefix = tuple(target.encode(self.prefix)) if self.prefix else ()
        return DecodingRequest((), prefix, required, tuple(forbidden))

    def _check(self) -> None:
        for name in ("required", "forbidden"):
            if isinstance(getattr(self, name), str):
                raise UserError(f"{name}: give a tuple of phrases, such as ({getattr(self, name)!r},)")
        for phrase in (*self.required, *self.forbidden):
            if not phrase.strip():
                raise UserError("a required or forbidden phrase is empty; omit it or give some text")
        for phrase in self.forbidden:
            for text in (*self.required, self.prefix or ""):
                if phrase == text:
                    raise UserError(f"{phrase!r} is both required and forbidden; choose one")
                if phrase in text:
                    raise UserError(f"{phrase!r} is forbidden, but is part of {text!r}, which is required; choose one")


def _tokenisations(phrase: str, target: Tokenizer) -> list[Phrase]:
    """Return the tokens of a phrase after a space and without one; first the usual form of its script."""
    after_space, continued = tuple(target.encode(phrase)), tuple(target.encode_continuation(phrase))
    forms = [continued, after_space] if _is_unspaced(phrase[0]) else [after_space, continued]
    return list(dict.fromkeys(forms))


def _is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    name = unicodedata.name(character, "")
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"))
