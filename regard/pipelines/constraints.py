"""What a person wants of a translation, as text, and what a search is told of it, as tokens."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from regard.data.text.tokenizer import Tokenizer
from regard.decoding.constraints import DecodingRequest, Phrase
from regard.errors import UserError


@dataclass(frozen=True)
class Constraints:
    """What translations must begin with, must say, and must not say, as text."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def report(self, text: str) -> dict[str, bool]:
        """Which constraints a translation meets: a required phrase stands in it, a forbidden one does not."""
        met = {phrase: unicodedata.normalize("NFC", phrase) in text for phrase in self.required}
        return met | {phrase: unicodedata.normalize("NFC", phrase) not in text for phrase in self.forbidden}

    def as_request(self, target: Tokenizer) -> DecodingRequest:
        """The constraints as tokens.

        Raises:
            UserError: a phrase is empty, or one wish contradicts another.
        """
        self._check()
        forbidden = {way for phrase in self.forbidden for way in _spellings(phrase, target)}
        required = tuple(_spellings(phrase, target)[0] for phrase in self.required)
        return DecodingRequest((), tuple(target.encode(self.prefix)) if self.prefix else (), required, tuple(forbidden))

    def _check(self) -> None:
        for name in ("required", "forbidden"):
            if isinstance(getattr(self, name), str):
                raise UserError(f"{name}: give a tuple of phrases, such as ({getattr(self, name)!r},)")
        for phrase in (*self.required, *self.forbidden):
            if not phrase.strip():
                raise UserError("a required or forbidden phrase is empty; leave it away or give some text")
        for phrase in self.forbidden:
            for wanted in (*self.required, self.prefix or ""):
                if phrase == wanted:
                    raise UserError(f"{phrase!r} is both required and forbidden; choose one")
                if phrase in wanted:
                    raise UserError(
                        f"{phrase!r} is forbidden, but stands in {wanted!r}, which is asked for; choose one"
                    )


def _spellings(phrase: str, target: Tokenizer) -> list[Phrase]:
    """The tokens of a phrase within a sentence, the likelier way first: behind a space, or close to the rest."""
    spaced, close = target.encode(phrase), target.encode_continuation(phrase)
    ways = [tuple(close), tuple(spaced)] if _is_unspaced(phrase[0]) else [tuple(spaced), tuple(close)]
    return list(dict.fromkeys(ways))


def _is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces between words."""
    name = unicodedata.name(character, "")
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"))
