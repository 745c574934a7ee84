"""Sentence splitter: splits a text into sentences and the white space between them, and joins their translations."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

# End of a sentence, including closing quotation marks and brackets. After a full-width mark, the next sentence may
# follow directly; other marks need white space after them. Possessive quantifiers keep the time linear in the length.
_CLOSERS = r"[\"'”’»›）」』】〉》\)\]]*+"
_MARKS = "[.!?…؟۔।։።]"
_LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_ENDS = re.compile(
    rf"(?:[。！？｡]++{_CLOSERS}"
    rf"|(?<!{_MARKS}){_MARKS}++{_CLOSERS}(?=\s)"
    rf"|(?<!\s)[^\S{_LINE_ENDS}]*+[{_LINE_ENDS}])\s*+"
)

# Words whose full stop does not end a sentence, in frequent languages.
_ABBREVIATION_LIST = """mr mrs ms dr prof rev st sr jr gen col sen rep vs no vol fig approx dept est inc ltd co corp e.g
    i.e cf al jan feb mar apr jun jul aug sep sept oct nov dec hr fr nr bzw ca evtl ggf inkl usw vgl z.b d.h u.a o.ä
    abb str bd tel mm mme mlle p.ex sra srta ud uds pág núm avda dott sig ing arch dhr mevr bijv enz"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
_OPENERS = "([\"'“„«"


@dataclass(frozen=True)
class Sentence:
    """A sentence and the white space that follows it."""

    text: str
    space: str


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text; `lead` is the white space before the first one."""

    lead: str
    sentences: tuple[Sentence, ...]

    def join(self, translations: Sequence[str]) -> str:
        """Replace every sentence by its translation and keep the spacing.

        The space between two sentences of a line depends on the script of the translations: none if the script is
        written without spaces, otherwise one.
        """
        return self.join_with_starts(translations)[0]

    def join_with_starts(self, translations: Sequence[str]) -> tuple[str, list[int]]:
        """Return the result of `join` and the position of each translation in it."""
        parts, starts, length = [self.lead], list[int](), len(self.lead)
        next_translations = [*translations, ""][1:]
        for sentence, translation, following in zip(self.sentences, translations, next_translations, strict=True):
            starts.append(length)
            parts += [translation, _space_between(translation, sentence, following)]
            length += len(parts[-2]) + len(parts[-1])
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
        text: Text to split.
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


def _find_sentences(text: str) -> Iterator[Sentence]:
    start = 0
    for match in _ENDS.finditer(text):
        sentence = text[start : match.end()].rstrip()
        if _is_end(text, start, sentence, match.end()):
            yield Sentence(sentence, text[start + len(sentence) : match.end()])
            start = match.end()
    if start < len(text):
        rest = text[start:].rstrip()
        yield Sentence(rest, text[start + len(rest) :])


def _is_end(text: str, start: int, sentence: str, end: int) -> bool:
    """Return False if the full stop before `end` belongs to an abbreviation or an initial."""
    if end == len(text) or "\n" in text[start + len(sentence) : end] or not sentence.endswith("."):
        return True
    if text[end].islower():
        return False
    words = sentence[:-1].rsplit(None, 1)
    last = words[-1].lstrip(_OPENERS) if words else ""
    is_initial = len(last) == 1 and last.isupper()
    return not is_initial and last.lower() not in _ABBREVIATIONS


def _divide(sentence: Sentence, fits: Callable[[str], bool]) -> Iterator[Sentence]:
    """Yield the sentence, or recursively its halves if it does not fit."""
    text = sentence.text
    if len(text) < 2 or fits(text):
        yield sentence
        return
    middle = _find_middle(text)
    left, right = text[:middle].rstrip(), text[middle:].lstrip()
    gap = text[len(left) : len(text) - len(right)]
    yield from _divide(Sentence(left, gap), fits)
    yield from _divide(Sentence(right, sentence.space), fits)


def _find_middle(text: str) -> int:
    """Return the position of the white space nearest to the middle, or the middle if there is none in its vicinity."""
    half = len(text) // 2
    spaces = [match.start() for match in re.finditer(r"\s", text) if abs(match.start() - half) <= len(text) // 4]
    return min(spaces, key=lambda position: abs(position - half), default=half)


def _space_between(before: str, sentence: Sentence, after: str) -> str:
    if not before or not after or sentence.space not in ("", " "):
        return sentence.space
    if not re.search(rf"(?:[。！？｡]|{_MARKS})\W*$", sentence.text):  # a divided sentence
        return sentence.space
    return "" if _is_wide(before[-1]) and _is_wide(after[0]) else " "


def _is_wide(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between sentences."""
    return unicodedata.east_asian_width(character) in ("W", "F")
