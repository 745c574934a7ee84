"""Translation of segments: which sentences a model translates, and how segments are composed of the results.

`translate_segment` is a generator, so that a program that waits for a model and a server that does not share it: it
yields the sentences to translate and receives their translations.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from regard.data.documents.document import Segment, Untranslated
from regard.data.documents.marked_text import AlignedSpan, MarkedText, Part, Range
from regard.data.documents.placeholders import Reduced, find_placeholders, has_words, keeps
from regard.data.text.sentences import Sentence, SplitText, split_sentences

WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff])\w)+")
"""A word, or a character of a script without spaces."""
TOO_MARKED = "it has too much markup"


@dataclass(frozen=True)
class SentenceRequest:
    """A sentence to translate.

    Attributes:
        text: The sentence.
        needs_alignment: Whether codes or placeholders are placed by the alignment of the translation.
        divided: Whether it is a part of a sentence that does not fit the model.
    """

    text: str
    needs_alignment: bool = False
    divided: bool = False


@dataclass(frozen=True)
class AlignedTranslation:
    """The translation of a sentence, and the spans of its tokens, if they are known; positions are in the sentence."""

    text: str
    spans: Sequence[AlignedSpan] = ()


@dataclass
class TranslatedSegment:
    """The translation of a segment.

    Attributes:
        parts: The translated text and the numbers of its codes.
        sentences: Number of translated sentences.
        placed: Placeholders that the model did not keep, and that were placed by the alignment.
        kept: Sentences that are not translated, because their translation has placeholders that they do not have.
        reason: Why the segment is not translated, or None.
    """

    parts: list[Part]
    sentences: int = 0
    placed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    reason: str | None = None


Requests = list[SentenceRequest]
SegmentTranslation = Generator[Requests, list[AlignedTranslation], TranslatedSegment]


def translate_segment(content: MarkedText, fits: Callable[[str], bool]) -> SegmentTranslation:
    """Translate the text of a segment sentence by sentence; see the module.

    A sentence is translated with its placeholders. If the translation does not contain all of them, the sentence is
    translated once more without them, and they are placed by the alignment.
    """
    if content.is_too_marked:
        return TranslatedSegment(content.source_parts, reason=TOO_MARKED)
    ranges = find_placeholders(content.text, content.protected)
    split = _join_across_placeholders(split_sentences(content.text, fits), ranges)
    sentences = split.sentences
    placeholders_in = [
        _placeholders_in(sentence.text, start, ranges) for sentence, start in zip(sentences, split.starts, strict=True)
    ]
    pending = [i for i, sentence in enumerate(sentences) if has_words(sentence.text, placeholders_in[i])]
    results = [AlignedTranslation(sentence.text, _identity_alignment(sentence.text)) for sentence in sentences]
    needs_alignment = bool(content.elements)
    if pending:
        requests = [SentenceRequest(sentences[i].text, needs_alignment, sentences[i].divided) for i in pending]
        translations = yield requests
        for i, translation in zip(pending, translations, strict=True):
            results[i] = translation
    placed, kept = yield from _repair(split, placeholders_in, pending, results)
    return TranslatedSegment(_compose(content, split, results), len(pending), placed, kept)


class SegmentGroup:
    """Segments that are translated together: `advance` takes the answers to the last requests and returns the next."""

    def __init__(self, generators: Sequence[SegmentTranslation]) -> None:
        self._generators = generators
        self._results: dict[int, TranslatedSegment] = {}
        self._counts: dict[int, int] | None = None

    def advance(self, answers: Sequence[AlignedTranslation] = ()) -> Requests:
        """Return the next sentences to translate; there are none when all segments are translated."""
        remaining, asked = iter(answers), Requests()
        counts = dict.fromkeys(range(len(self._generators)), 0) if self._counts is None else self._counts
        following: dict[int, int] = {}
        for i, count in counts.items():
            answer = [next(remaining) for _ in range(count)]
            try:
                requests = next(self._generators[i]) if self._counts is None else self._generators[i].send(answer)
            except StopIteration as done:
                self._results[i] = done.value
            else:
                following[i] = len(requests)
                asked += requests
        self._counts = following
        return asked

    @property
    def results(self) -> list[TranslatedSegment]:
        """The translated segments."""
        return [self._results[i] for i in range(len(self._generators))]


def _placeholders_in(sentence: str, start: int, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of the ranges that are in a sentence that begins at `start`, as positions in the sentence."""
    stop = start + len(sentence)
    return [
        (max(range_start, start) - start, min(range_stop, stop) - start)
        for range_start, range_stop in ranges
        if range_start < stop and start < range_stop
    ]


def _compose(content: MarkedText, split: SplitText, results: Sequence[AlignedTranslation]) -> list[Part]:
    """Join the results of the sentences, and place the codes of the segment in them."""
    texts = [result.text for result in results]
    if texts == [sentence.text for sentence in split.sentences]:
        return content.source_parts
    target, target_starts = split.join_with_starts(texts)
    spans = list[AlignedSpan]()
    for sentence, result, start, target_start in zip(
        split.sentences, results, split.starts, target_starts, strict=True
    ):
        whole = AlignedSpan((0, len(sentence.text)), (0, len(result.text)), is_sentence=True)
        aligned_spans = result.spans or align_by_length(sentence.text, result.text)
        spans += [span.shift(start, target_start) for span in (whole, *aligned_spans)]
    return content.place(target, spans)


def _repair(
    split: SplitText,
    placeholders_in: Sequence[list[Range]],
    pending: Sequence[int],
    results: list[AlignedTranslation],
) -> Generator[Requests, list[AlignedTranslation], tuple[list[str], list[str]]]:
    """Translate sentences again whose placeholders are not in the result, and replace their `results` in place.

    Return these placeholders, and the sentences that remain as they are.
    """
    wrong: list[int] = []
    placed, kept = list[str](), list[str]()
    for i in pending:
        text = split.sentences[i].text
        placeholders = [text[start:stop] for start, stop in placeholders_in[i]]
        if not keeps(results[i].text, placeholders):
            wrong.append(i)
    if wrong:
        reduced = [Reduced(split.sentences[i].text, placeholders_in[i]) for i in wrong]
        requests = [
            SentenceRequest(one.text, True, split.sentences[i].divided) for i, one in zip(wrong, reduced, strict=True)
        ]
        translations = yield requests
        for i, one, translation in zip(wrong, reduced, translations, strict=True):
            text, spans = one.restore(
                translation.text, translation.spans or align_by_length(one.text, translation.text)
            )
            sentence = split.sentences[i].text
            placeholders = [sentence[start:stop] for start, stop in placeholders_in[i]]
            if keeps(text, placeholders):
                placed += placeholders
            else:  # the model wrote something that looks like a placeholder
                kept.append(sentence)
                text, spans = sentence, _identity_alignment(sentence)
            results[i] = AlignedTranslation(text, spans)
    return placed, kept


def explain(segment: Segment, result: TranslatedSegment) -> list[Untranslated]:
    """Return what is not translated of a segment, with the reason."""
    reason = result.reason or (None if result.sentences else "no words")
    texts = [] if reason is None else [(segment.content.text, reason)]
    texts += [(sentence, "the model adds a placeholder") for sentence in result.kept]
    return [Untranslated.of(segment.where, text, why) for text, why in texts]


def align_by_length(source: str, target: str) -> list[AlignedSpan]:
    """Align each target word to the source word at the nearest relative position, without attention weights."""

    def centre(span: tuple[int, int]) -> float:
        return (span[0] + span[1]) / 2

    source_words = [match.span() for match in WORD.finditer(source)]
    if not source_words:
        return []
    spans = []
    for match in WORD.finditer(target):
        expected = centre(match.span()) * len(source) / len(target)
        nearest = min(source_words, key=lambda word: abs(centre(word) - expected))
        spans.append(AlignedSpan(nearest, match.span()))
    return spans


def _identity_alignment(text: str) -> list[AlignedSpan]:
    """Return an alignment of every word of a text with itself."""
    edges = [0, *(i for i in range(1, len(text)) if text[i].isspace() != text[i - 1].isspace()), len(text)]
    return [AlignedSpan(edge, edge) for edge in pairwise(edges) if not text[edge[0] : edge[1]].isspace()]


def _join_across_placeholders(split: SplitText, ranges: Sequence[Range]) -> SplitText:
    """Join sentences where a placeholder extends over their boundary."""
    merged: list[Sentence] = []
    starts = split.starts
    for sentence, start in zip(split.sentences, starts, strict=True):
        if merged and any(range_start < start < range_stop for range_start, range_stop in ranges):
            last = merged.pop()
            sentence = Sentence(last.text + last.space + sentence.text, sentence.space, sentence.divided)
        merged.append(sentence)
    return SplitText(split.lead, tuple(merged))
