"""HTML whose text is translated and whose tags stay: each round the words that its own words became.

Elements that stand within a sentence, such as links, are taken out of it, and put back where the alignment of the
translation says that their words went. So the text of the answer is the translation of the text of the question.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from regard.data.text.sentences import SplitText, split_sentences
from regard.serving.messages import Translation

_TOKENS = re.compile(
    r"<!--.*?(?:-->|\Z)|<[!?][^>]*(?:>|\Z)|<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]*)(?:\"[^\"]*\"|'[^']*'|[^\"'>])*+>",
    re.S,
)
_WITHIN_LINES = """a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span strike strong
    sub sup time tt u"""
_INLINE = frozenset(_WITHIN_LINES.split())
_VOID_INLINE = frozenset({"img", "wbr", "input"})
_CODE = frozenset({"code", "kbd", "samp", "var"})
_UNTRANSLATED = _CODE | {"script", "style", "textarea", "pre", "svg", "math", "template", "noscript"}
_LEFT_ALONE = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.I)

DEPTH = 50
"""Elements within each other that are told apart; deeper ones are points."""


@dataclass
class Mark:
    """An element, or a mere point, within the text of a passage; `end` is None where it stays open."""

    opening: str
    start: int
    end: int | None = None
    closing: str = ""
    children: list[Mark] = field(default_factory=list)


@dataclass
class Passage:
    """Text between two tags that break it, with the elements within; its white space is that of a line."""

    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    split: SplitText = field(default_factory=lambda: SplitText("", ()))

    @property
    def speaks(self) -> bool:
        """Whether there is anything to translate."""
        return any(character.isalnum() for character in self.text)

    def render(self, translations: Sequence[Translation]) -> str:
        """The passage in the other language."""
        target, starts = self.split.join_with_starts([one.text for one in translations])
        links = list(_links(self.split, translations, starts)) if self.marks else []
        placed = [_place(mark, links, len(target), len(self.text)) for mark in self.marks]
        return _write(placed, target, 0, len(target))


@dataclass(frozen=True)
class Link:
    """A stretch of the source and the stretch of the translation that it became; `whole` ones are sentences."""

    source: tuple[int, int]
    target: tuple[int, int]
    whole: bool = False


class Page:
    """A text with markup: its sentences, and its form again with their translations in place."""

    def __init__(self, text: str, fits: Callable[[str], bool]) -> None:
        self._parts: list[str | Passage] = list(_read(text))
        for part in self._parts:
            if isinstance(part, Passage):
                part.split = split_sentences(part.text, fits)
        self.passages = [part for part in self._parts if isinstance(part, Passage)]

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        """Every sentence, and whether it has to come with its alignment."""
        return [(s.text, bool(passage.marks)) for passage in self.passages for s in passage.split.sentences]

    def render(self, translations: Sequence[Translation]) -> str:
        """The text with a translation for every sentence."""
        rest = iter(translations)
        return "".join(
            part if isinstance(part, str) else part.render([next(rest) for _ in part.split.sentences])
            for part in self._parts
        )


def _read(text: str) -> Iterator[str | Passage]:
    """Passages, and what stands between them as it is."""
    passage, raw, open_marks = Passage(), list[str](), list[Mark]()
    for kind, token in _lex(text):
        if kind != "break":
            raw.append(token)
            _add(passage, open_marks, kind, token)
            continue
        yield passage if passage.speaks else "".join(raw)
        yield token
        passage, raw, open_marks = Passage(), [], []
    yield passage if passage.speaks else "".join(raw)


def _add(passage: Passage, open_marks: list[Mark], kind: str, token: str) -> None:
    """Puts a piece to the end of a passage."""
    marks = open_marks[-1].children if open_marks else passage.marks
    if kind == "text":
        plain = re.sub(r"[ \t\n\r\f]+", " ", html.unescape(token))
        if plain.startswith(" ") and passage.text.endswith(" ") and marks and marks[-1].start == len(passage.text):
            marks[-1].opening += " "  # a point between two spaces, of which the sentence needs one
            plain = plain[1:]
        passage.text = unicodedata.normalize("NFC", passage.text + plain)
    elif kind == "close" and (opened := _matching(token, open_marks)) is not None:
        opened.end, opened.closing = len(passage.text), token
        del open_marks[open_marks.index(opened) :]
    elif kind == "open" and len(open_marks) < DEPTH:
        marks.append(Mark(token, len(passage.text)))
        open_marks.append(marks[-1])
    else:
        marks.append(Mark(token, len(passage.text), len(passage.text)))


def _lex(text: str) -> Iterator[tuple[str, str]]:
    """Pieces in order: text, tags that open, close or are a point within a line, and tags that break it."""
    place = 0
    while (match := _TOKENS.search(text, place)) is not None:
        if match.start() > place:
            yield "text", text[place : match.start()]
        token, name, place = match[0], (match["name"] or "").lower(), match.end()
        opens = bool(name) and not match["close"] and not token.endswith("/>")
        if opens and name not in _VOID_INLINE and (name in _UNTRANSLATED or _LEFT_ALONE.search(token)):
            end = _end_of_element(text, name, place)
            place = len(text) if end is None else end
            moves = end is not None and name in _INLINE | _CODE  # what is never closed must stay behind all else
            yield ("point" if moves else "break"), text[match.start() : place]
        elif not name:
            yield "point", token
        elif name in _INLINE:
            yield ("close" if match["close"] else "open" if opens else "point"), token
        else:
            yield ("point" if name in _VOID_INLINE else "break"), token
    if place < len(text):
        yield "text", text[place:]


def _end_of_element(text: str, name: str, place: int) -> int | None:
    """Behind the tag that closes an element whose inside begins at `place`; elements of its name may stand within."""
    depth = 1
    for match in re.finditer(rf"<(/?){re.escape(name)}\b[^>]*>", text[place:], re.I):
        depth += -1 if match[1] else 0 if match[0].endswith("/>") else 1
        if depth == 0:
            return place + match.end()
    return None


def _matching(token: str, open_marks: Sequence[Mark]) -> Mark | None:
    name = re.match(r"</([^\s/>]*)", token)
    for mark in reversed(open_marks):
        opened = re.match(r"<([^\s/>]*)", mark.opening)
        if name and opened and name[1].lower() == opened[1].lower():
            return mark
    return None


def _links(split: SplitText, translations: Sequence[Translation], starts: Sequence[int]) -> Iterator[Link]:
    """What became what: every sentence, and within it every token and the source token that it looked at most."""
    for sentence, one, s, t in zip(split.sentences, translations, split.starts, starts, strict=True):
        yield Link((s, s + len(sentence.text)), (t, t + len(one.text)), whole=True)
        if one.alignment is None:
            continue
        for row, (a, b) in zip(one.alignment.weights, one.alignment.target_spans, strict=False):  # not END's row
            looked = row[: len(one.alignment.source_spans)]
            if not looked or a == b:
                continue
            c, d = one.alignment.source_spans[looked.index(max(looked))]
            yield Link((s + c, s + d), (t + a, t + b))


def _place(mark: Mark, links: Sequence[Link], length: int, source_length: int) -> Mark:
    """The mark, and all within it, where it belongs in the translation."""
    end = source_length if mark.end is None else mark.end
    children = [_place(child, links, length, source_length) for child in mark.children]
    if mark.start == 0 and end == source_length:
        return Mark(mark.opening, 0, length, mark.closing, children)
    within = [
        link.target
        for link in links
        if (mark.start <= link.source[0] and link.source[1] <= end)
        or (not link.whole and link.source[0] < end and mark.start < link.source[1])
    ]
    if mark.start < end and within:
        return Mark(mark.opening, min(a for a, _ in within), max(b for _, b in within), mark.closing, children)
    following = [link for link in links if link.source[0] >= mark.start and not link.whole]
    place = min(following, key=lambda link: (link.source[0], link.target[0])).target[0] if following else length
    place = place if mark.start else 0
    return Mark(mark.opening, place, place, mark.closing, children)


def _write(marks: Sequence[Mark], target: str, start: int, end: int) -> str:
    """A stretch of the translation with its marks; those that would overlap stand one behind the other."""
    parts: list[str] = []
    place = start
    for mark in sorted(marks, key=lambda mark: mark.start):
        assert mark.end is not None
        begin = min(max(mark.start, place), end)
        stop = min(max(mark.end, begin), end)
        while begin < stop and target[begin].isspace():
            begin += 1
        parts += [html.escape(target[place:begin], quote=False), mark.opening]
        parts += [_write(mark.children, target, begin, stop), mark.closing]
        place = stop
    return "".join([*parts, html.escape(target[place:end], quote=False)])
