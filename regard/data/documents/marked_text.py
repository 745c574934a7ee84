"""Text with markup: where tags stand in a text, and where they belong in its translation.

Tags are removed before translation. A pair of tags is placed around the words that are aligned with the words inside
it, or else around the next aligned word, and a single tag before the word that follows it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Code = tuple[str | range, ...]
"""Markup: strings, and ranges of the source file, in which nested segments are replaced."""
Part = str | int
"""A part of a translated segment: text, or the number of a code."""
Range = tuple[int, int]

MAX_DEPTH = 50
"""Maximum depth of nested elements; the tags of deeper elements are placed separately."""
MAX_PLACEMENTS = 20_000_000
"""Maximum product of elements and aligned tokens, because every element is compared with every token."""


@dataclass
class Element:
    """A pair of tags or a single tag, at a range of a text; `end` is None if the element is not closed.

    Attributes:
        opening, closing: Numbers of the codes; `closing` is None for a single tag and for an element without end.
        ordered: Whether the element must not move before an earlier ordered one of its parent.
    """

    opening: int
    start: int
    end: int | None = None
    closing: int | None = None
    children: "list[Element]" = field(default_factory=list)
    ordered: bool = False


@dataclass(frozen=True)
class AlignedSpan:
    """Character ranges of the source and the target that are aligned: a token, or a whole sentence."""

    source: Range
    target: Range
    is_sentence: bool = False

    def shift(self, source: int, target: int) -> "AlignedSpan":
        """Return the span in a text in which the sentence starts at the given positions."""
        return AlignedSpan(
            (self.source[0] + source, self.source[1] + source),
            (self.target[0] + target, self.target[1] + target),
            self.is_sentence,
        )


def align_tokens(
    weights: Sequence[Sequence[float]], sources: Sequence[Range], targets: Sequence[Range]
) -> list[AlignedSpan]:
    """Return the span of each target token and of the source token with the largest weight.

    Args:
        weights: Cross-attention weights; rows are target tokens and columns source tokens, END included.
        sources: Character range of each source token.
        targets: Character range of each target token.
    """
    spans = []
    for row, target in zip(weights, targets, strict=False):  # END has no span
        inside = row[: len(sources)]
        if inside and target[0] < target[1]:
            spans.append(AlignedSpan(sources[list(inside).index(max(inside))], target))
    return spans


@dataclass
class MarkedText:
    """A text without its markup, the elements that stand in it, and the ranges that must not be translated."""

    text: str = ""
    elements: list[Element] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)
    protected: list[Range] = field(default_factory=list)

    @property
    def has_words(self) -> bool:
        return any(character.isalnum() for character in self.text)

    @property
    def source_parts(self) -> list[Part]:
        """The parts of the text itself, in the form that `place` returns."""
        return _render(self.elements, self.text, 0, len(self.text), moves_spaces=False)

    @property
    def is_too_marked(self) -> bool:
        """Whether placing the elements would take too long."""
        return _count(self.elements) * len(self.text) > MAX_PLACEMENTS

    def drop_prefix(self, length: int) -> bool:
        """Remove the first characters unless an element starts in them or no text would remain.

        Returns:
            Whether they were removed.
        """
        if any(element.start < length for element in self.elements) or length >= len(self.text):
            return False
        self.text = self.text[length:]
        self.protected = [(a - length, b - length) for a, b in self.protected if a >= length]
        _shift(self.elements, -length)
        return True

    def drop_suffix(self, length: int) -> bool:
        """Remove the last characters if they are white space after all elements; return whether they were removed."""
        end = len(self.text) - length
        if not self.text[end:].isspace() or any((element.end or 0) > end for element in self.elements):
            return False
        self.text = self.text[:end]
        return True

    def join(self, parts: Iterable[Part]) -> str:
        """Return the text of parts whose codes are strings."""
        return "".join(part if isinstance(part, str) else "".join(map(str, self.codes[part])) for part in parts)

    def place(self, target: str, spans: Sequence[AlignedSpan]) -> list[Part]:
        """Return a translation with the codes at their places."""
        if not self.elements:
            return [target] if target else []
        placed = _place_all(self.elements, spans, len(target), len(self.text))
        return _render(placed, target, 0, len(target))


class MarkedTextBuilder:
    """Appends text and tags to a `MarkedText`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._content = MarkedText()
        self._open: list[tuple[str, Element]] = []
        self.length = 0

    def finish(self) -> MarkedText:
        """Return the text and its markup."""
        self._content.text = "".join(self._pieces)
        return self._content

    @property
    def ends_with_space(self) -> bool:
        """Whether the last character of the text is a space."""
        return bool(self._pieces) and self._pieces[-1].endswith(" ")

    @property
    def siblings(self) -> list[Element]:
        """The elements of the innermost open element, or of the text."""
        return self._open[-1][1].children if self._open else self._content.elements

    def extend(self, element: Element, code: Code) -> None:
        """Append to the opening tag of an element."""
        self._content.codes[element.opening] += code

    def text(self, text: str, protected: bool = False) -> None:
        """Append text; protected text must not be translated."""
        if protected and text:
            self._content.protected.append((self.length, self.length + len(text)))
        if text:
            self._pieces.append(text)
            self.length += len(text)

    def single(self, code: Code, ordered: bool = False) -> None:
        """Append a tag without content."""
        self.siblings.append(Element(self._number(code), self.length, self.length, ordered=ordered))

    def open(self, name: str, code: Code) -> None:
        """Append an opening tag."""
        if len(self._open) >= MAX_DEPTH:
            self.single(code)
            return
        element = Element(self._number(code), self.length)
        self.siblings.append(element)
        self._open.append((name, element))

    def close(self, name: str, code: Code) -> None:
        """Append a closing tag; without an open element of this name it is a single tag."""
        for depth in reversed(range(len(self._open))):
            if self._open[depth][0] == name:
                element = self._open[depth][1]
                element.end, element.closing = self.length, self._number(code)
                del self._open[depth:]
                return
        self.single(code)

    def _number(self, code: Code) -> int:
        self._content.codes.append(code)
        return len(self._content.codes) - 1


def _shift(elements: Iterable[Element], offset: int) -> None:
    for element in elements:
        element.start += offset
        element.end = None if element.end is None else element.end + offset
        _shift(element.children, offset)


def _count(elements: Iterable[Element]) -> int:
    return sum(1 + _count(element.children) for element in elements)


def _place_all(
    elements: Sequence[Element], spans: Sequence[AlignedSpan], target_length: int, source_length: int
) -> list[Element]:
    """Return the elements of one parent with their positions in the translation."""
    placed, last = [], 0
    for element in elements:
        moved = _place(element, spans, target_length, source_length)
        if moved.ordered:
            moved.start = moved.end = last = max(last, moved.start)
        placed.append(moved)
    return placed


def _place(element: Element, spans: Sequence[AlignedSpan], target_length: int, source_length: int) -> Element:
    """Return the element and its children with their positions in the translation."""
    end = source_length if element.end is None else element.end
    children = _place_all(element.children, spans, target_length, source_length)

    def at(start: int, stop: int) -> Element:
        return Element(element.opening, start, stop, element.closing, children, element.ordered)

    if element.start == 0 and end == source_length:
        return at(0, target_length)
    inside = [
        span.target
        for span in spans
        if (element.start <= span.source[0] and span.source[1] <= end)
        or (not span.is_sentence and span.source[0] < end and element.start < span.source[1])
    ]
    if element.start < end and inside:
        return at(min(start for start, _ in inside), max(stop for _, stop in inside))
    tokens = [span for span in spans if not span.is_sentence]
    following = [span for span in tokens if span.source[0] >= element.start]
    if element.start < end and element.closing is not None and tokens:
        # Its words are aligned with no token. An empty pair is no emphasis in Markdown, and an invisible link.
        first = min(following, key=lambda span: (span.source[0], span.target[0])) if following else None
        return at(*(first or max(tokens, key=lambda span: span.source)).target)
    # An element without words is placed before the word that follows it.
    if element.start == 0:
        position = 0
    elif following:
        position = min(following, key=lambda span: (span.source[0], span.target[0])).target[0]
    else:
        position = target_length
    return at(position, position)


def _render(elements: Sequence[Element], target: str, start: int, end: int, moves_spaces: bool = True) -> list[Part]:
    """Return a range of the translation with its elements; overlapping elements are written one after another.

    Args:
        moves_spaces: Whether spaces at the start of an element are written before it.
    """
    parts: list[Part] = []
    position = start
    for element in sorted(elements, key=lambda element: element.start):
        stop = end if element.end is None else element.end
        first = min(max(element.start, position), end)
        stop = min(max(stop, first), end)
        while moves_spaces and first < stop and target[first].isspace():
            first += 1
        parts += [target[position:first], element.opening]
        parts += _render(element.children, target, first, stop, moves_spaces)
        if element.closing is not None:
            parts.append(element.closing)
        position = stop
    return list(_without_empty([*parts, target[position:end]]))


def _without_empty(parts: Iterable[Part]) -> Iterator[Part]:
    return (part for part in parts if part != "")
