"""Texts into sentences with the spacing between them, and translations of sentences into a text again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

# What ends a sentence, with the quotation marks and brackets that close behind it. After a full-width mark the next
# sentence may follow at once; other marks end one only before white space. Runs are taken whole, from their first
# character on, so that the time grows with the length of a text and not with its square.
_CLOSERS = r"[\"'”’»›）」』】〉》\)\]]*+"
_ENDS = re.compile(
    rf"(?:[。！？｡]++{_CLOSERS}"
    rf"|(?<![.!?…؟۔।։።])[.!?…؟۔।։።]++{_CLOSERS}(?=\s)"
    r"|(?<!\s)[^\S\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*+[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])\s*+"
)

# Words whose full stop ends no sentence, in the languages that people ask for most.
_SHORT = """mr mrs ms dr prof rev st sr jr gen col sen rep vs no vol fig approx dept est inc ltd co corp e.g i.e cf al
    jan feb mar apr jun jul aug sep sept oct nov dec hr fr nr bzw ca evtl ggf inkl usw vgl z.b d.h u.a o.ä abb str bd
    tel mm mme mlle p.ex sra srta ud uds pág núm avda dott sig ing arch dhr mevr bijv enz"""
_ABBREVIATIONS = frozenset(_SHORT.split())
_OPENERS = "([\"'“„«"


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the white space that follows it in its text."""

    text: str
    space: str


@dataclass(frozen=True)
class SplitText:
    """A text as sentences; `lead` is the white space before the first."""

    lead: str
    sentences: tuple[Sentence, ...]

    def join(self, translations: Sequence[str]) -> str:
        """The text with a translation in place of every sentence, and the spacing that it had.

        Between two sentences of one line the scripts decide: one that is written without spaces needs none, and one
        that is written with spaces gets one, whatever the source had.
        """
        return self.join_with_starts(translations)[0]

    def join_with_starts(self, translations: Sequence[str]) -> tuple[str, list[int]]:
        """The text that `join` gives, and where in it each translation begins."""
        parts, starts, length = [self.lead], list[int](), len(self.lead)
        followings = [*translations, ""][1:]
        for sentence, translation, following in zip(self.sentences, translations, followings, strict=True):
            starts.append(length)
            parts += [translation, _space_between(translation, sentence, following)]
            length += len(parts[-2]) + len(parts[-1])
        return "".join(parts), starts

    @property
    def starts(self) -> list[int]:
        """Where in the source each sentence begins."""
        lengths = (len(sentence.text) + len(sentence.space) for sentence in self.sentences)
        return list(accumulate(lengths, initial=len(self.lead)))[: len(self.sentences)]


def split_sentences(text: str, fits: Callable[[str], bool] = lambda sentence: True) -> SplitText:
    """The sentences of a text; one that does not fit is cut, at white space where there is some.

    `lead`, sentences and spaces joined give the text again. Only white space makes no sentence.
    """
    body = text.lstrip()
    pieces = [piece for whole in _whole_sentences(body) for piece in _cut(whole, fits)]
    return SplitText(text[: len(text) - len(body)], tuple(pieces))


def single_sentence(text: str, fits: Callable[[str], bool] = lambda sentence: True) -> SplitText:
    """The text as a single sentence, or cut as little as it must be to fit."""
    body = text.strip()
    if not body:
        return SplitText(text, ())
    lead = text[: len(text) - len(text.lstrip())]
    return SplitText(lead, tuple(_cut(Sentence(body, text[len(lead) + len(body) :]), fits)))


def _whole_sentences(text: str) -> Iterator[Sentence]:
    start = 0
    for match in _ENDS.finditer(text):
        sentence = text[start : match.end()].rstrip()
        if _ends_here(text, start, sentence, match.end()):
            yield Sentence(sentence, text[start + len(sentence) : match.end()])
            start = match.end()
    if start < len(text):
        rest = text[start:].rstrip()
        yield Sentence(rest, text[start + len(rest) :])


def _ends_here(text: str, start: int, sentence: str, end: int) -> bool:
    """Whether a sentence really ends before `end`: a full stop may belong to an abbreviation, or to an initial."""
    if end == len(text) or "\n" in text[start + len(sentence) : end] or not sentence.endswith("."):
        return True
    if text[end].islower():
        return False
    word = sentence[:-1].rsplit(None, 1)[-1:]
    last = word[0].lstrip(_OPENERS) if word else ""
    is_initial = len(last) == 1 and last.isupper()
    return not is_initial and last.lower() not in _ABBREVIATIONS


def _cut(sentence: Sentence, fits: Callable[[str], bool]) -> Iterator[Sentence]:
    """The sentence, or if it does not fit its two halves, and so on."""
    text = sentence.text
    if len(text) < 2 or fits(text):
        yield sentence
        return
    middle = _find_cut(text)
    left, right = text[:middle].rstrip(), text[middle:].lstrip()
    gap = text[len(left) : len(text) - len(right)]
    yield from _cut(Sentence(left, gap), fits)
    yield from _cut(Sentence(right, sentence.space), fits)


def _find_cut(text: str) -> int:
    """Where to cut a text: at the white space nearest to its middle, if it is not too far from there."""
    half = len(text) // 2
    spaces = [match.start() for match in re.finditer(r"\s", text) if abs(match.start() - half) <= len(text) // 4]
    return min(spaces, key=lambda place: abs(place - half), default=half)


def _space_between(before: str, sentence: Sentence, after: str) -> str:
    if not before or not after or sentence.space not in ("", " "):
        return sentence.space
    if not re.search(r"[。！？｡.!?…؟۔।։።]\W*$", sentence.text):  # cut within: as it was
        return sentence.space
    return "" if _is_wide(before[-1]) and _is_wide(after[0]) else " "


def _is_wide(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces between sentences."""
    return unicodedata.east_asian_width(character) in ("W", "F")
