"""Sentence splitter: splits a text into sentences and the white space between them, and joins their translations."""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TypeVar

ItemT = TypeVar("ItemT")

# End of a sentence, and the white space after it as a group. After a full-width mark, and after any mark between two
# Chinese or Japanese characters, the next sentence may follow directly; other marks need white space after them.
# Possessive quantifiers keep the time linear in the length.
_CLOSERS = "\"'”’»›）」』】〉》)]"
_QUESTION_MARKS, _WIDE_MARKS, _MARKS = "!?؟", "。！？｡．", ".!?…؟۔।॥։።។။"
_CLOSED = rf"[{re.escape(_CLOSERS)}]*+"
_CJK = "[\u3040-\u30ff\u3400-\u9fff]"
_LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_ENDS = re.compile(
    rf"(?:(?:[。！？｡]|．(?!\d))++{_CLOSED}"
    rf"|(?<![{_MARKS}])[{_MARKS}]++{_CLOSED}(?=\s)"
    rf"|(?<={_CJK})[.!?]++{_CLOSED}(?={_CJK})"
    rf"|(?<!\s)(?=[^\S{_LINE_ENDS}]*+[{_LINE_ENDS}]))(\s*+)"
)

# Words of frequent languages whose full stop does not end a sentence, and words of which this is true before a number.
_ABBREVIATION_LIST = """mr mrs ms dr prof rev st gen col sen rep messrs vs e.g i.e cf al hr fr bzw evtl ggf inkl vgl z.b
    d.h u.a o.ä p.ex mme mlle sra srta ud uds dott sig ing arch dhr mevr bijv"""
_NUMBERED_LIST = """no nos nr vol fig figs abb bd p pp pág núm art sec ch chap eq approx ca est tel str avda jan feb mar
    apr jun jul aug sep sept oct nov dec"""
_ABBREVIATIONS, _NUMBERED = frozenset(_ABBREVIATION_LIST.split()), frozenset(_NUMBERED_LIST.split())
# German writes ordinal numbers with a full stop, and the nouns after them with a capital letter.
_ORDINAL_LIST = "am im vom zum beim der die das dem den des bis seit jede jeder jedes jedem jeden"
_BEFORE_ORDINALS = frozenset(_ORDINAL_LIST.split())
_MONTHS = ("Jan", "Feb", "März", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez")
_ENUMERATOR = re.compile(r"\(?(?:\d{1,3}(?:\.\d{1,3})*|[a-zA-Z])\)?\.")  # 1., 2.3., a. at the start of a line
_OPENERS = "([\"'“„«"
_LONGEST_WORD = 40
"""Number of characters before a full stop that decide whether it ends a sentence."""


@dataclass(frozen=True)
class Sentence:
    """A sentence and the white space that follows it; `divided` marks a part of a sentence that does not fit."""

    text: str
    space: str
    divided: bool = False


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text; `lead` is the white space before the first one."""

    lead: str
    sentences: tuple[Sentence, ...]

    @classmethod
    def of(cls, text: str) -> "SplitText":
        """Return a text as one sentence with its white space; a text of white space has no sentences."""
        return cls("", (Sentence(text, ""),)) if text.strip() else cls(text, ())

    def join(self, translations: Sequence[str]) -> str:
        """Replace every sentence by its translation and keep the spacing.

        Where the translations are in a script without spaces between sentences and the sentences are not, or the other
        way round, the space between two sentences of a line becomes that of the translations.
        """
        return self.join_with_starts(translations)[0]

    def join_with_starts(self, translations: Sequence[str]) -> tuple[str, list[int]]:
        """Return the result of `join` and the position of each translation in it."""
        parts, starts, length = [self.lead], list[int](), len(self.lead)
        next_pairs = [*zip(self.sentences, translations, strict=True), (Sentence("", ""), "")][1:]
        for sentence, translation, (after, translated) in zip(self.sentences, translations, next_pairs, strict=True):
            starts.append(length)
            space = sentence.space
            if space in ("", " ") and translation and translated:
                usual, wanted = _usual_space(sentence.text, after.text), _usual_space(translation, translated)
                space = space if usual == wanted else wanted
            parts += [translation, space]
            length += len(translation) + len(space)
        return "".join(parts), starts

    @property
    def starts(self) -> list[int]:
        """Position of each sentence in the text."""
        lengths = (len(sentence.text) + len(sentence.space) for sentence in self.sentences)
        return list(accumulate(lengths, initial=len(self.lead)))[: len(self.sentences)]


def split_sentences(text: str, fits: Callable[[str], bool] = lambda sentence: True) -> SplitText:
    """Split a text into sentences.

    The result contains all characters of the text. A text of white space has no sentences.

    Args:
        fits: Returns whether a sentence is short enough; others are divided, at white space if possible.
    """
    body = text.lstrip()
    sentences = [part for sentence in _find_sentences(body) for part in _divide(sentence, fits)]
    return SplitText(text[: len(text) - len(body)], tuple(sentences))


def single_sentence(text: str, fits: Callable[[str], bool] = lambda sentence: True) -> SplitText:
    """Return the text as one sentence, which is divided only if it does not fit."""
    body = text.strip()
    if not body:
        return SplitText(text, ())
    lead = text[: len(text) - len(text.lstrip())]
    return SplitText(lead, tuple(_divide(Sentence(body, text[len(lead) + len(body) :]), fits)))


def length_warning(tokens: int, longest: int | None, divided: bool = False) -> str | None:
    """Return a warning if a sentence is longer than those of the training data, or was divided; otherwise None.

    Args:
        longest: Number of tokens of the longest source in the training data; None if unknown.
        divided: Whether it is a part of a sentence that does not fit the model.
    """
    if longest is not None and tokens > longest:
        return f"{tokens} tokens, but the longest training source has {longest}; the translation may be incomplete"
    return "too long for the model, so it was divided; the translation may be incomplete" if divided else None


class LengthWarnings:
    """Counts the texts with sentences that are longer than those of the training data; `noun` names such a text."""

    def __init__(self, noun: str = "text") -> None:
        self._noun, self._texts, self._first = noun, 0, ""

    def add(self, number: int, warning: str | None) -> None:
        """Count a text if it has a warning; `number` is the number of the text."""
        if warning is not None:
            self._texts += 1
            self._first = self._first or f"{self._noun} {number}: {warning}"

    def log(self) -> None:
        """Log the message, if any."""
        if self.message is not None:
            logging.getLogger("regard").warning(self.message)

    @property
    def message(self) -> str | None:
        """One sentence about the first of these texts and their number; None if there are none."""
        others = f" (and {self._texts - 1} more)" if self._texts > 1 else ""
        return f"{self._first}{others}" if self._texts else None


def by_rank(n_best_lists: Sequence[Sequence[ItemT]]) -> list[list[ItemT]]:
    """Return for every rank the item of each list at that rank; a shorter list repeats its last item."""
    ranks = max(map(len, n_best_lists), default=0)
    return [[items[min(rank, len(items) - 1)] for items in n_best_lists] for rank in range(ranks)]


def _find_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text with the space that follows each."""
    start = previous = 0
    has_case = not text.islower()  # in a text without capital letters, a small letter may start a sentence
    has_words = False
    for match in _ENDS.finditer(text):
        stop, end = match.span(1)
        has_words = has_words or any(map(str.isalnum, text[previous:stop]))
        previous = end
        if "\n" in match[1] or (has_words and (end == len(text) or _is_end(text, start, stop, end, has_case))):
            yield Sentence(text[start:stop], match[1])
            start, has_words = end, False
    if start < len(text):
        rest = text[start:].rstrip()
        yield Sentence(rest, text[start + len(rest) :])


def _is_end(text: str, start: int, stop: int, end: int, has_case: bool) -> bool:
    """Return whether text[start:stop] is a sentence, and not the start of one that continues after the white space."""
    last, following = text[stop - 1], text[end]
    if stop == end or last in _QUESTION_MARKS or last in _WIDE_MARKS:
        return True
    if has_case and following.islower() and (last in _CLOSERS or last in ".…"):
        return False  # "Why?" she asked
    if last != "." or text[stop - 2 : stop] == "..":
        return True
    before, word = ["", "", *text[max(start, stop - _LONGEST_WORD) : stop - 1].split()][-2:]
    word = word.lstrip(_OPENERS)
    if all(len(letter) == 1 and letter.isupper() for letter in word.split(".")):  # J. Smith, U.S. Senate
        return word == "I" and before.islower()  # so do I.
    if _ENUMERATOR.fullmatch(text, start, stop):
        return False
    if word.isdecimal() and len(word) <= 3:
        return before.lower() not in _BEFORE_ORDINALS and not text.startswith(_MONTHS, end)
    if word.lower() in _NUMBERED:
        return not following.isdecimal()
    return word.lower() not in _ABBREVIATIONS


def _divide(sentence: Sentence, fits: Callable[[str], bool]) -> Iterator[Sentence]:
    """Yield the sentence, or recursively its halves if it does not fit."""
    text = sentence.text
    if len(text) < 2 or fits(text):
        yield sentence
        return
    middle = _find_middle(text)
    left, right = text[:middle].rstrip(), text[middle:].lstrip()
    gap = text[len(left) : len(text) - len(right)]
    yield from _divide(Sentence(left, gap, divided=True), fits)
    yield from _divide(Sentence(right, sentence.space, divided=True), fits)


def _find_middle(text: str) -> int:
    """Return the position of the white space nearest to the middle, or the middle if there is none in its vicinity."""
    half = len(text) // 2
    spaces = [match.start() for match in re.finditer(r"\s", text) if abs(match.start() - half) <= len(text) // 4]
    return min(spaces, key=lambda position: abs(position - half), default=half)


def _usual_space(before: str, after: str) -> str:
    """Return what separates two sentences in their script: nothing in Chinese and Japanese, otherwise a space."""
    return "" if _is_unspaced(reversed(before)) and _is_unspaced(iter(after)) else " "


def _is_unspaced(characters: Iterator[str]) -> bool:
    """Return whether the first character, or the first letter after punctuation, is Chinese or Japanese."""
    first = next(characters)
    letter = next((one for one in chain([first], characters) if one.isalnum()), first)
    return any(unicodedata.east_asian_width(one) in "WF" and not "가" <= one <= "힣" for one in (first, letter))
