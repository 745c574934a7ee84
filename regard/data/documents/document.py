"""The contract of all formats: a document has segments, a list of what is not translated, and writes itself again."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.documents.characters import Characters
from regard.data.documents.marked_text import Code, MarkedText, Part

SHOWN = 80
"""Characters of an untranslated text in a report."""
Write = Callable[[Sequence[Part]], Code | None]
"""Converts a translated segment to the text of the file, which may contain ranges of the source; None if impossible."""


@dataclass(frozen=True)
class Untranslated:
    """Text that is not translated, with its place and the reason."""

    where: str
    text: str
    reason: str

    @classmethod
    def of(cls, where: str, text: str, reason: str) -> "Untranslated":
        """Return the beginning of a text on one line. Halves of characters, which JSON cannot contain, are replaced."""
        shown = " ".join(text.split())[:SHOWN]
        return cls(where, shown.encode("utf-8", "replace").decode("utf-8"), reason)


@dataclass
class Segment:
    """A text to translate.

    Attributes:
        content: The text and its markup.
        where: Place in the file, for the report: "line 3".
        span: Range of the file that the translation replaces.
        write: Converts the translation to the text of the file.
        in_place: Whether the span contains the source text; then a translation that equals the source changes nothing.
    """

    content: MarkedText
    where: str
    span: range
    write: Write
    in_place: bool = True


class Document(Protocol):
    """A parsed file."""

    segments: list[Segment]
    untranslated: list[Untranslated]

    def render(self, translations: Mapping[int, Sequence[Part]]) -> bytes:
        """Return the file with the translations of segments, which are given by their numbers."""


@dataclass
class TextFile:
    """A file whose segments are ranges of its text.

    Attributes:
        characters: The text and its encoding.
        segments: Texts to translate.
        untranslated: Texts that are not translated.
        fixed: Changes that do not depend on the translations, such as a declaration of their language.
    """

    characters: Characters
    segments: list[Segment] = field(default_factory=list)
    untranslated: list[Untranslated] = field(default_factory=list)
    fixed: list[tuple[range, Code]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.characters.text

    def skip(self, where: str, text: str, reason: str) -> None:
        """Report text that is not translated."""
        self.untranslated.append(Untranslated.of(where, text, reason))

    def render(self, translations: Mapping[int, Sequence[Part]]) -> bytes:
        return self.characters.encode(self.render_text(translations))

    def render_text(self, translations: Mapping[int, Sequence[Part]]) -> str:
        """Return the text of the file with the translations."""
        edits = list(self.fixed) if translations else []
        for number, parts in translations.items():
            segment = self.segments[number]
            if segment.in_place and list(parts) == segment.content.source_parts:
                continue
            code = segment.write(parts)
            if code is None:
                self.skip(segment.where, segment.content.text, "the markup of its translation would be invalid")
            else:
                edits.append((segment.span, code))
        return apply_edits(self.text, edits)


def apply_edits(text: str, edits: Sequence[tuple[range, Code]]) -> str:
    """Replace ranges of a text. A replacement may refer to ranges inside its own, in which other edits apply."""
    ordered = sorted(edits, key=lambda edit: (edit[0].start, -edit[0].stop))
    starts = [span.start for span, _ in ordered]

    def resolve(start: int, stop: int) -> Iterator[str]:
        position = start
        for span, code in ordered[bisect_left(starts, start) :]:
            if span.start >= stop:
                break
            if span.start < position or span.stop > stop:  # inside an edit that is written already, or around this one
                continue
            yield text[position : span.start]
            for piece in code:
                if isinstance(piece, str):
                    yield piece
                else:
                    yield from resolve(piece.start, piece.stop)
            position = span.stop
        yield text[position:stop]

    return "".join(resolve(0, len(text)))


def write_with(escape: Callable[[str], str], codes: Sequence[Code], before: str = "", after: str = "") -> Write:
    """Return a function that escapes the text of a translation and puts the codes in place."""

    def write(parts: Sequence[Part]) -> Code:
        pieces: list[str | range] = [before]
        for part in parts:
            pieces += [escape(part)] if isinstance(part, str) else codes[part]
        return (*pieces, after)

    return write
