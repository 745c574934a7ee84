"""Documents: texts and HTML pages as sentences to translate, rendered again with the translations.

In HTML, inline elements such as links are removed from a sentence before translation, and placed in the translation
around the words to which their words are aligned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from regard.data.documents.html import join_parts, parse_blocks
from regard.data.documents.marked_text import AlignedSpan, MarkedText, align_tokens
from regard.data.text.sentences import SplitText, by_rank, length_warning, single_sentence, split_sentences
from regard.data.text.tokenizer import Vocabularies
from regard.serving.config import Limits
from regard.serving.messages import Alignments, Job, ModelInfo, Options, Quality, Terms, Translation

Format = Literal["text", "html"]


class SourceSentence(NamedTuple):
    """A sentence, whether rendering its translation needs the alignment, and whether it is a part of a sentence."""

    text: str
    needs_alignment: bool
    divided: bool = False


@dataclass(frozen=True)
class TextDocument:
    """A plain text."""

    split: SplitText
    alignments: bool = False

    @property
    def sentences(self) -> list[SourceSentence]:
        return [SourceSentence(one.text, self.alignments, one.divided) for one in self.split.sentences]

    def render(self, translations: Sequence[Translation]) -> str:
        return self.split.join([translation.text for translation in translations])


@dataclass
class TranslatedDocument:
    """A document with the n best translations of each sentence, and warnings about sentences that are too long."""

    document: "Document"
    n_best_lists: list[list[Translation]]
    warnings: list[str | None]

    @property
    def terms(self) -> list[dict[str, Any]]:
        """The terms of a glossary in the best translations of all sentences."""
        return [term for translations in self.n_best_lists for term in translations[0].terms or ()]

    def render_n_best(self, count: int) -> list[str]:
        """Return up to `count` different translations of the document.

        The k-th one contains the k-th translation of each sentence, or its last one if there are fewer.
        """
        versions = [self.document.render(translations) for translations in by_rank(self.n_best_lists)[:count]]
        return list(dict.fromkeys(versions)) or [self.document.render([])]

    @property
    def quality(self) -> Quality:
        """The lowest confidence of the best translations, and the flags of all of them."""
        found = [n_best[0].quality for n_best in self.n_best_lists if n_best]
        qualities = [quality for quality in found if quality is not None]
        flags = {name: detail for quality in reversed(qualities) for name, detail in quality.flags.items()}
        known = [quality.confidence for quality in qualities if quality.confidence is not None]
        is_known = len(known) == len(self.n_best_lists)
        return Quality(min(known, default=1.0) if is_known else None, [], flags)


class JobBuilder:
    """Converts texts to documents and jobs for one model, according to its tokenizer and maximum length.

    Attributes:
        languages: source and target language; by default those of the model. Texts in the other script of Chinese are
            converted.
    """

    def __init__(self, info: ModelInfo, limits: Limits, languages: tuple[str, str] | None = None) -> None:
        assert info.tokenizer is not None
        self.languages = languages or info.languages
        self._info, self._limits, self._tokenizer = info, limits, info.tokenizer
        self._options: Options = ()
        if languages is not None and info.languages is not None and languages != info.languages:
            self._options = (("languages", languages),)
            vocabularies = Vocabularies(info.tokenizer, info.tokenizer).with_scripts(languages, info.languages)
            self._tokenizer = vocabularies.source
        # Cached, because the tokens of a sentence are counted both for splitting and for batching.
        self._count_tokens = lru_cache(256)(lambda text: len(self._tokenizer.encode(text)))
        self._longest_source = info.longest_source
        self._max_tokens = min(limits.sentence_tokens, info.max_source_tokens or limits.sentence_tokens)

    def in_scripts(self, languages: tuple[str, str]) -> "JobBuilder":
        """Return a builder for the same model and other scripts of Chinese.

        Raises:
            UserError: The package for the conversion is missing.
        """
        return JobBuilder(self._info, self._limits, languages)

    def parse(self, text: str, format: Format = "text", split: bool = True, alignments: bool = False) -> "Document":
        """Split a text into sentences, or without `split` only into parts that fit the model."""
        if format == "html":
            return HtmlDocument(text, self.fits)
        split_text = split_sentences(text, self.fits) if split else single_sentence(text, self.fits)
        return TextDocument(split_text, alignments)

    def translation_jobs(
        self, document: "Document", n_best: int = 1, confidence: bool = False, glossary: Terms = ()
    ) -> list[Job]:
        """Return the jobs that translate the sentences of a document, with confidences and flags if requested."""
        # The alignments of a plain text are only copied to the response, so the worker encodes them as JSON. Those of
        # HTML are sent as numbers, with which this process places the inline elements.
        alignment_form: Alignments = "json" if isinstance(document, TextDocument) else True
        quality: Options = (("confidence", True),) if confidence else ()
        terms: Options = (("glossary", glossary),) if glossary else ()
        jobs = []
        for sentence in document.sentences:
            alignments: Alignments = alignment_form if sentence.needs_alignment else False
            options: Options = (("n_best", n_best), ("alignments", alignments), *quality, *terms)
            jobs.append(self.translation_job(sentence.text, options))
        return jobs

    def translation_job(self, sentence: str, options: Options) -> Job:
        """Return the job that translates a sentence."""
        return Job("translate", sentence, (*options, *self._options), self._job_size(sentence))

    def length_warning(self, sentence: SourceSentence) -> str | None:
        """Return a warning if a sentence is longer than those of the training data, or was divided."""
        return length_warning(self.count_tokens(sentence.text), self._longest_source, sentence.divided)

    def embedding_jobs(self, texts: Sequence[str], pool: str) -> list[Job]:
        """Return the jobs that embed texts, which are not split."""
        return [Job("embed", text, (("pool", pool),), self._job_size(text)) for text in texts]

    def _job_size(self, text: str) -> int:
        """Return the number of source tokens of a text, with END."""
        return self.count_tokens(text) + 1

    def count_tokens(self, text: str) -> int:
        """Return the number of source tokens of a text, without END."""
        return self._count_tokens(text)

    def fits(self, sentence: str) -> bool:
        """Return whether a sentence is short enough for the model and the limits."""
        return self.count_tokens(sentence) <= self._max_tokens


class HtmlDocument:
    """An HTML page or fragment, as text blocks and the markup between them."""

    def __init__(self, text: str, fits: Callable[[str], bool]) -> None:
        self._text = text
        self._parts = [
            part if isinstance(part, range) else (part.content, split_sentences(part.content.text, fits))
            for part in parse_blocks(text)
        ]
        self._blocks = [part for part in self._parts if not isinstance(part, range)]

    @property
    def sentences(self) -> list[SourceSentence]:
        return [
            SourceSentence(sentence.text, bool(content.elements), sentence.divided)
            for content, split in self._blocks
            for sentence in split.sentences
        ]

    def render(self, translations: Sequence[Translation]) -> str:
        remaining = iter(translations)
        return "".join(
            self._text[part.start : part.stop]
            if isinstance(part, range)
            else self._render(*part, [next(remaining) for _ in part[1].sentences])
            for part in self._parts
        )

    def _render(self, content: MarkedText, split: SplitText, translations: Sequence[Translation]) -> str:
        target, starts = split.join_with_starts([translation.text for translation in translations])
        spans = list(_aligned_spans(split, translations, starts)) if content.elements else []
        return join_parts(content.place(target, spans), content, self._text)


Document = TextDocument | HtmlDocument


def _aligned_spans(
    split: SplitText, translations: Sequence[Translation], target_starts: Sequence[int]
) -> Iterator[AlignedSpan]:
    """Yield the span of each sentence, and of each target token with the source token of the largest weight."""
    starts = zip(split.starts, target_starts, strict=True)
    for sentence, translation, (source_start, target_start) in zip(split.sentences, translations, starts, strict=True):
        yield AlignedSpan(
            (source_start, source_start + len(sentence.text)),
            (target_start, target_start + len(translation.text)),
            is_sentence=True,
        )
        alignment = translation.alignment
        if alignment is not None:
            for span in align_tokens(alignment.weights, alignment.source_spans, alignment.target_spans):
                yield span.shift(source_start, target_start)
