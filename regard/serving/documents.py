"""Documents: texts and HTML pages as sentences to translate, rendered again with the translations.

In HTML, inline elements such as links are removed from a sentence before translation, and placed in the translation
around the words to which their words are aligned.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from regard.data.text.sentences import SplitText, by_rank, length_warning, single_sentence, split_sentences
from regard.serving.config import Limits
from regard.serving.messages import Alignments, Job, ModelInfo, Options, Quality, Translation

Format = Literal["text", "html"]

_TOKENS = re.compile(
    r"<!--.*?(?:-->|\Z)|<[!?][^>]*(?:>|\Z)|<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]*)(?:\"[^\"]*\"|'[^']*'|[^\"'>])*+>",
    re.S,
)
_INLINE_NAMES = """a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span strike strong
    sub sup time tt u"""
_INLINE = frozenset(_INLINE_NAMES.split())
_INLINE_VOID = frozenset({"img", "wbr", "input"})
_CODE = frozenset({"code", "kbd", "samp", "var"})
_UNTRANSLATED = _CODE | {"script", "style", "textarea", "pre", "svg", "math", "template", "noscript"}
_NO_TRANSLATE = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.I)

MAX_DEPTH = 50
"""Maximum depth of nested inline elements; the tags of deeper elements are placed separately."""


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
    """Converts texts to documents and jobs for one model, according to its tokenizer and maximum length."""

    def __init__(self, info: ModelInfo, limits: Limits) -> None:
        assert info.tokenizer is not None
        self._tokenizer = info.tokenizer
        # Cached, because the tokens of a sentence are counted both for splitting and for batching.
        self._count_tokens = lru_cache(256)(lambda text: len(self._tokenizer.encode(text)))
        self._longest_source = info.longest_source
        self._max_tokens = min(limits.sentence_tokens, info.max_source_tokens or limits.sentence_tokens)

    def parse(self, text: str, format: Format = "text", split: bool = True, alignments: bool = False) -> "Document":
        """Split a text into sentences, or without `split` only into parts that fit the model."""
        if format == "html":
            return HtmlDocument(text, self._fits)
        split_text = split_sentences(text, self._fits) if split else single_sentence(text, self._fits)
        return TextDocument(split_text, alignments)

    def translation_jobs(self, document: "Document", n_best: int = 1, confidence: bool = False) -> list[Job]:
        """Return the jobs that translate the sentences of a document, with confidences and flags if requested."""
        kind: Alignments = "json" if isinstance(document, TextDocument) else True
        quality: Options = (("confidence", True),) if confidence else ()
        return [
            Job(
                "translate",
                text,
                (("n_best", n_best), ("alignments", aligned and kind), *quality),
                self.count_tokens(text) + 1,
            )
            for text, aligned, _ in document.sentences
        ]

    def length_warning(self, sentence: SourceSentence) -> str | None:
        """Return a warning if a sentence is longer than those of the training data, or was divided."""
        return length_warning(self.count_tokens(sentence.text), self._longest_source, sentence.divided)

    def embedding_jobs(self, texts: Sequence[str], pool: str) -> list[Job]:
        """Return the jobs that embed texts, which are not split."""
        return [Job("embed", text, (("pool", pool),), self.count_tokens(text) + 1) for text in texts]

    def count_tokens(self, text: str) -> int:
        """Return the number of source tokens of a text, without END."""
        return self._count_tokens(text)

    def _fits(self, sentence: str) -> bool:
        return self.count_tokens(sentence) <= self._max_tokens


@dataclass
class Element:
    """An inline element or a single tag, at a range of a text block; `end` is None if the element is not closed."""

    opening: str
    start: int
    end: int | None = None
    closing: str = ""
    children: "list[Element]" = field(default_factory=list)


@dataclass
class TextBlock:
    """Text between two block-level tags, with collapsed white space, and its inline elements."""

    text: str = ""
    elements: list[Element] = field(default_factory=list)
    split: SplitText = field(default_factory=lambda: SplitText("", ()))

    @property
    def has_words(self) -> bool:
        return any(character.isalnum() for character in self.text)

    def render(self, translations: Sequence[Translation]) -> str:
        target, starts = self.split.join_with_starts([translation.text for translation in translations])
        spans = list(_aligned_spans(self.split, translations, starts)) if self.elements else []
        placed = [_place(element, spans, len(target), len(self.text)) for element in self.elements]
        return _render(placed, target, 0, len(target))


class HtmlDocument:
    """An HTML page or fragment, as text blocks and the markup between them."""

    def __init__(self, text: str, fits: Callable[[str], bool]) -> None:
        self._parts: list[str | TextBlock] = list(_parse_blocks(text))
        self._blocks = [part for part in self._parts if isinstance(part, TextBlock)]
        for block in self._blocks:
            block.split = split_sentences(block.text, fits)

    @property
    def sentences(self) -> list[SourceSentence]:
        return [
            SourceSentence(sentence.text, bool(block.elements), sentence.divided)
            for block in self._blocks
            for sentence in block.split.sentences
        ]

    def render(self, translations: Sequence[Translation]) -> str:
        remaining = iter(translations)
        return "".join(
            part if isinstance(part, str) else part.render([next(remaining) for _ in part.split.sentences])
            for part in self._parts
        )


Document = TextDocument | HtmlDocument


def _parse_blocks(text: str) -> Iterator[str | TextBlock]:
    """Yield the text blocks of a page, and the markup between them unchanged."""
    block, raw, open_elements = TextBlock(), list[str](), list[Element]()
    for kind, token in _tokenise(text):
        if kind != "block":
            raw.append(token)
            _append(block, open_elements, kind, token)
            continue
        yield block if block.has_words else "".join(raw)
        yield token
        block, raw, open_elements = TextBlock(), [], []
    yield block if block.has_words else "".join(raw)


def _append(block: TextBlock, open_elements: list[Element], kind: str, token: str) -> None:
    """Append a token to a text block."""
    siblings = open_elements[-1].children if open_elements else block.elements
    if kind == "text":
        plain = re.sub(r"[ \t\n\r\f]+", " ", html.unescape(token))
        after_tag = siblings and siblings[-1].start == len(block.text)
        if plain.startswith(" ") and block.text.endswith(" ") and after_tag:
            siblings[-1].opening += " "  # a tag between two spaces, one of which the sentence keeps
            plain = plain[1:]
        block.text = unicodedata.normalize("NFC", block.text + plain)
    elif kind == "close" and (element := _find_open(token, open_elements)) is not None:
        element.end, element.closing = len(block.text), token
        del open_elements[open_elements.index(element) :]
    elif kind == "open" and len(open_elements) < MAX_DEPTH:
        siblings.append(Element(token, len(block.text)))
        open_elements.append(siblings[-1])
    else:
        siblings.append(Element(token, len(block.text), len(block.text)))


def _tokenise(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, token) pairs.

    The kinds are "text", the inline tags "open", "close" and "single" (without content to translate), and "block",
    which ends a text block.
    """
    position = 0
    while (match := _TOKENS.search(text, position)) is not None:
        if match.start() > position:
            yield "text", text[position : match.start()]
        token, name, position = match[0], (match["name"] or "").lower(), match.end()
        opens = bool(name) and not match["close"] and not token.endswith("/>")
        if opens and name not in _INLINE_VOID and (name in _UNTRANSLATED or _NO_TRANSLATE.search(token)):
            end = _find_element_end(text, name, position)
            position = len(text) if end is None else end
            is_inline = end is not None and name in _INLINE | _CODE  # an unclosed element must stay at the end
            yield ("single" if is_inline else "block"), text[match.start() : position]
        elif not name:
            yield "single", token
        elif name in _INLINE:
            yield ("close" if match["close"] else "open" if opens else "single"), token
        else:
            yield ("single" if name in _INLINE_VOID else "block"), token
    if position < len(text):
        yield "text", text[position:]


def _find_element_end(text: str, name: str, start: int) -> int | None:
    """Return the position after the closing tag of an element whose content begins at `start`."""
    depth = 1
    for match in re.finditer(rf"<(/?){re.escape(name)}\b[^>]*>", text[start:], re.I):
        depth += -1 if match[1] else 0 if match[0].endswith("/>") else 1
        if depth == 0:
            return start + match.end()
    return None


def _find_open(closing_tag: str, open_elements: Sequence[Element]) -> Element | None:
    """Return the innermost open element with the name of a closing tag."""
    name = re.match(r"</([^\s/>]*)", closing_tag)
    for element in reversed(open_elements):
        opening_name = re.match(r"<([^\s/>]*)", element.opening)
        if name and opening_name and name[1].lower() == opening_name[1].lower():
            return element
    return None


@dataclass(frozen=True)
class AlignedSpan:
    """Character ranges of the source and the target that are aligned: a token, or a whole sentence."""

    source: tuple[int, int]
    target: tuple[int, int]
    is_sentence: bool = False


def _aligned_spans(
    split: SplitText, translations: Sequence[Translation], target_starts: Sequence[int]
) -> Iterator[AlignedSpan]:
    """Yield the span of each sentence, and of each target token with the source token of the largest weight."""
    starts = zip(split.starts, target_starts, strict=True)
    for sentence, translation, (source_start, target_start) in zip(split.sentences, translations, starts, strict=True):
        source_end, target_end = source_start + len(sentence.text), target_start + len(translation.text)
        yield AlignedSpan((source_start, source_end), (target_start, target_end), is_sentence=True)
        alignment = translation.alignment
        if alignment is None:
            continue
        for row, target_span in zip(alignment.weights, alignment.target_spans, strict=False):  # END has no span
            weights = row[: len(alignment.source_spans)]
            if weights and target_span[0] < target_span[1]:
                source_span = alignment.source_spans[weights.index(max(weights))]
                yield AlignedSpan(_shift(source_span, source_start), _shift(target_span, target_start))


def _shift(span: tuple[int, int], offset: int) -> tuple[int, int]:
    return span[0] + offset, span[1] + offset


def _place(element: Element, spans: Sequence[AlignedSpan], target_length: int, source_length: int) -> Element:
    """Return the element and its children with their positions in the translation."""
    end = source_length if element.end is None else element.end
    children = [_place(child, spans, target_length, source_length) for child in element.children]
    if element.start == 0 and end == source_length:
        return Element(element.opening, 0, target_length, element.closing, children)
    inside = [
        span.target
        for span in spans
        if (element.start <= span.source[0] and span.source[1] <= end)
        or (not span.is_sentence and span.source[0] < end and element.start < span.source[1])
    ]
    if element.start < end and inside:
        first, last = min(start for start, _ in inside), max(stop for _, stop in inside)
        return Element(element.opening, first, last, element.closing, children)
    # An element without words is placed before the word that follows it.
    following = [span for span in spans if span.source[0] >= element.start and not span.is_sentence]
    if element.start == 0:
        position = 0
    elif following:
        position = min(following, key=lambda span: (span.source[0], span.target[0])).target[0]
    else:
        position = target_length
    return Element(element.opening, position, position, element.closing, children)


def _render(elements: Sequence[Element], target: str, start: int, end: int) -> str:
    """Return a range of the translation with its elements; overlapping elements are written one after another."""
    parts: list[str] = []
    position = start
    for element in sorted(elements, key=lambda element: element.start):
        assert element.end is not None
        first = min(max(element.start, position), end)
        stop = min(max(element.end, first), end)
        while first < stop and target[first].isspace():
            first += 1
        parts += [html.escape(target[position:first], quote=False), element.opening]
        parts += [_render(element.children, target, first, stop), element.closing]
        position = stop
    return "".join([*parts, html.escape(target[position:end], quote=False)])
