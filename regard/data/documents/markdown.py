"""Markdown, parsed by markdown-it-py: paragraphs, headings, list items and table cells are segments.

Code, HTML blocks, link targets and front matter stay as they are. A translation is written without backslashes where it
is parsed to the same markup, and with a backslash before special characters elsewhere.
"""

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, Write
from regard.data.documents.marked_text import Code, MarkedText, MarkedTextBuilder, Part
from regard.errors import UserError, import_optional

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\r?\n(?:.*?\r?\n)??\1[ \t]*(?:\r?\n|\Z)", re.S)
EXTENSIONS = re.compile(r"\[\^[^\]\s]{1,60}\]|\$\$[^$]{1,2000}\$\$|\$(?=[^\s$])[^$\n]{1,300}(?<=\S)\$(?!\d)")
"""Footnotes and formulas."""
FOOTNOTE = re.compile(r"^([ \t>]*)\[(\^[^\]\s]{1,60})\]:", re.M)
LABEL = re.compile(r"\(\^[^\]\s]{1,60}\):\s*|\[[ xX]\]\s+")
"""Labels of footnotes (in the text that is parsed, see `_Lines`) and check boxes at the start of a text."""
SPECIAL = re.compile(r"([\\`*_\[\]<>~]|&(?=#?\w+;))")
BLOCK_START = re.compile(r"\A(\d{0,9})([-#>+=~.):|])")
CONTAINER_MARKS = re.compile(r"\A(?:[\s>*+-]|\d{1,9}[.)]\s)+")
RISKY = re.compile(r"[\\`*_\[\]<>~&|!\n]|\A\W|\A\d+[.)]|  \Z|:|https?|www")
"""Characters that can be markup; a text without them is a paragraph of text."""
UNTRANSLATED = {"fence": "code", "code_block": "code", "html_block": "HTML"}
CONTAINERS = {"blockquote_open", "list_item_open"}
PAIRS = {"em", "strong", "s", "link"}
MAX_NESTING = 50
"""Maximum depth of nested quotes and list items, of which a list counts twice; deeper text is not translated."""
MAX_INLINE = 100_000
"""Maximum length of a paragraph, because inline markup can take more than linear time to parse."""


def parse(data: bytes, name: str) -> TextFile:
    """Parse a Markdown file."""
    file = TextFile(Characters.decode(data, name))
    front_matter = FRONT_MATTER.match(file.text)
    start = front_matter.end() if front_matter else len(file.text) - len(file.text.lstrip("\ufeff"))
    if front_matter:
        file.skip("line 1", front_matter[0], "front matter")
    parser, lines = _parser(), _Lines(file.text, start)
    longest = max((len(block) for block in re.split(r"\n\s*\n", lines.normalised)), default=0)
    if longest > MAX_INLINE:
        raise UserError(f"{name}: has a paragraph of {longest} characters, but at most {MAX_INLINE:,} are possible")
    references: dict[str, Any] = {}
    try:
        tokens = parser.parse(lines.normalised, references)
    except RecursionError:
        raise UserError(f"{name}: nested too deeply for Markdown") from None
    after = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in CONTAINERS and token.level + 1 >= MAX_NESTING and token.map is not None:
            for line in range(*token.map):  # the parser drops the content
                file.skip(f"line {lines.number(line)}", lines.text(line), f"nested more than {MAX_NESTING} levels deep")
        if token.map is None or before is None:
            after = 0 if token.type == "tr_open" else after
            continue
        where = f"line {lines.number(token.map[0])}"
        if token.type in UNTRANSLATED:
            file.skip(where, token.content, UNTRANSLATED[token.type])
        elif token.type == "inline" and token.content.strip():
            in_cell = before.type in ("td_open", "th_open")
            places = lines.find_cell(token, after) if in_cell else lines.find(token)
            after = places[-1] if in_cell and places else 0
            if not (places and _Inline(parser, references, token, places, in_cell).add_to(file, where)):
                file.skip(where, token.content, "its place in the file is unclear")
    return file


def _parser() -> "MarkdownIt":
    parser: MarkdownIt = import_optional("markdown_it", "documents").MarkdownIt(
        "commonmark", {"maxNesting": MAX_NESTING}
    )
    parser.enable(["table", "strikethrough"])
    parser.disable("text_join")  # joins text and escaped characters, whose places would be lost
    return parser


class _Lines:
    """The lines of a file, and where the content of a block stands in them."""

    def __init__(self, text: str, start: int) -> None:
        self._first = text.count("\n", 0, start) + 1
        # Without an extension of the parser, a footnote of one word would define the target of a link.
        text = self._text = text[:start] + FOOTNOTE.sub(r"\1(\2):", text[start:])
        ends = [match.span() for match in re.finditer(r"\r\n|\n|\r", text[start:])]
        begins = [start, *(start + end for _, end in ends)]
        stops = [*(start + stop for stop, _ in ends), len(text)]
        self._spans = list(zip(begins, stops, strict=True))
        self.normalised = "\n".join(text[a:b] for a, b in self._spans)

    def number(self, line: int) -> int:
        """Return the number in the file of a line of the parser."""
        return self._first + line

    def text(self, line: int) -> str:
        """Return a line of the parser without the marks of quotes and list items."""
        start, stop = self._spans[line]
        return CONTAINER_MARKS.sub("", self._text[start:stop])

    def find(self, token: "Token") -> list[int]:
        """Return the place in the file of every character of an inline token, and of its end; [] if it is unclear."""
        assert token.map is not None
        places: list[int] = []
        contents = token.content.split("\n")
        for line, content in zip(range(token.map[0], token.map[1]), contents, strict=False):
            start, stop = self._spans[line]
            at = (
                self._text.rfind(content, start, stop) if line > token.map[0] else self._text.find(content, start, stop)
            )
            if at < 0:
                return []
            places += range(at, at + len(content) + 1)
        return places if len(places) == len(token.content) + 1 else []

    def find_cell(self, token: "Token", after: int) -> list[int]:
        """Return the same for a cell of a table, behind a place in its line; the parser removes backslashes."""
        assert token.map is not None
        start, stop = self._spans[token.map[0]]
        at = max(start, after)
        written = token.content.replace("|", "\\|")
        found = self._text.find(written, at, stop)
        if found < 0:
            return []
        places, position = list[int](), found
        for character in token.content:
            places.append(position)
            position += 2 if character == "|" else 1
        return [*places, position]


class _Inline:
    """Walks through the tokens of a block and through its characters at the same time."""

    def __init__(
        self,
        parser: "MarkdownIt",
        references: Mapping[str, Any],
        token: "Token",
        places: Sequence[int],
        in_cell: bool,
    ) -> None:
        self._parser, self._references, self._token = parser, references, token
        self._places, self._in_cell = places, in_cell
        self._content, self._position = token.content, 0
        self._builder, self._start = MarkedTextBuilder(), 0
        self._found: list[tuple[MarkedText, int, int]] = []

    def add_to(self, file: TextFile, where: str) -> bool:
        """Add the segments of the block; return whether all markup was found."""
        if not all(self._append(token) for token in self._token.children or ()):
            return False
        self._flush()
        if self._content[self._position :].strip():
            return False
        for content, start, stop in self._found:
            if label := LABEL.match(content.text):
                if not content.drop_prefix(label.end()):
                    if content.text[label.end() :]:
                        file.skip(where, content.text, "its label is inside markup")
                    continue
                start += label.end()
            content.protected += [match.span() for match in EXTENSIONS.finditer(content.text)]
            span = range(self._places[start], self._places[stop - 1] + 1)
            write = self._write(content, self._content[start:stop])
            file.segments.append(Segment(content, where, span, write))
        return True

    def _append(self, token: "Token") -> bool:
        kind, content, start = token.type, token.content, self._position
        if kind in ("text", "text_special"):
            written = token.markup if kind == "text_special" else content
            self._builder.text(content)
            return self._take(written)
        if kind == "softbreak":
            self._builder.text(" ")
            return self._take_match(r" *\n[ \t]*")
        if kind in ("hardbreak", "image"):
            return self._separate(token)
        if kind == "code_inline":
            mark = token.markup
            if not self._take_match(rf"{mark}(?!`)[\s\S]*?(?<!`){mark}(?!`)"):
                return False
            self._builder.text(self._content[start : self._position].replace("\n", " "), protected=True)
            return True
        if kind == "html_inline":
            return self._take(content) and self._append_html(content, start)
        name, _, side = kind.rpartition("_")
        written = self._link_markup(token, side) if name == "link" else token.markup
        if name not in PAIRS or not written or not self._take(written):
            return False
        (self._builder.open if side == "open" else self._builder.close)(name, self._code(start))
        return True

    def _take(self, written: str) -> bool:
        """Move behind characters, if they come next."""
        if not self._content.startswith(written, self._position):
            return False
        self._position += len(written)
        return True

    def _take_match(self, pattern: str) -> bool:
        found = re.compile(pattern).match(self._content, self._position)
        return found is not None and self._take(found[0])

    def _code(self, start: int) -> Code:
        """Return the characters from a place to the current one on one line."""
        code = re.sub(r"\s*\n\s*", " ", self._content[start : self._position])
        return (code.replace("|", "\\|") if self._in_cell else code,)

    def _append_html(self, content: str, start: int) -> bool:
        code, tag = self._code(start), re.match(r"<(/?)([a-zA-Z][\w-]*)", content)
        if tag is None or content.endswith("/>") or tag[2].lower() in ("br", "img", "wbr", "input", "hr"):
            self._builder.single(code)
        else:
            (self._builder.close if tag[1] else self._builder.open)(f"<{tag[2].lower()}>", code)
        return True

    def _separate(self, token: "Token") -> bool:
        """End the segment at a line break or an image, whose description is a segment of its own."""
        self._flush()
        if token.type == "hardbreak":
            found = self._take_match(r"(?:\\| {2,})\n[ \t]*")
        else:
            start, bracket = self._position, self._find_bracket(self._position + 1)
            found = self._content.startswith("![", start) and bracket is not None
            if bracket is not None and found:
                self._position = self._find_link_end(bracket)
                description = html.unescape(self._content[start + 2 : bracket])
                if description.strip() and {child.type for child in token.children or ()} == {"text"}:
                    self._found.append((MarkedText(description), start + 2, bracket))
        self._start = self._position
        return found

    def _link_markup(self, token: "Token", side: str) -> str:
        """Return the characters of the start or the end of a link."""
        if token.info == "auto":  # <https://example.org>
            return "<" if side == "open" else ">"
        return "[" if side == "open" else self._content[self._position : self._find_link_end(self._position)]

    def _find_bracket(self, start: int) -> int | None:
        """Return the place of the bracket that closes the one at a place, by the rules of the parser."""
        from markdown_it.rules_inline import StateInline

        state = StateInline(self._content, self._parser, dict(self._references), [])
        end = self._parser.helpers.parseLinkLabel(state, start)
        return end if end >= 0 else None

    def _find_link_end(self, bracket: int) -> int:
        """Return the place behind the target of a link or image whose label ends at a bracket."""
        text, helpers, stop = self._content, self._parser.helpers, len(self._content)
        position = bracket + 1
        if text.startswith("(", position):
            spaces = re.compile(r"[ \t\n]*")

            def skip(place: int) -> int:
                found = spaces.match(text, place)
                return found.end() if found else place

            position = skip(position + 1)
            target = helpers.parseLinkDestination(text, position, stop)
            position = target.pos if target.ok else position
            title = helpers.parseLinkTitle(text, skip(position), stop)
            position = skip(title.pos if title.ok and skip(position) > position else position)
            if text.startswith(")", position):
                return position + 1
        elif text.startswith("[", position):
            closing = self._find_bracket(position)
            if closing is not None:
                return closing + 1
        return bracket + 1

    def _flush(self) -> None:
        """Add the text since the last flush as a segment, without the white space around it."""
        content, start, stop = self._builder.finish(), self._start, self._position
        text = self._content[start:stop]
        self._builder, self._start = MarkedTextBuilder(), stop
        if not content.text.strip():
            return
        lead, tail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        if not content.elements:
            content.protected = [
                (max(0, a - lead), min(b, len(content.text.rstrip())) - lead) for a, b in content.protected
            ]
            content.text = content.text.strip()
            self._found.append((content, start + lead, stop - tail))
        else:
            self._found.append((content, start, stop))

    def _write(self, content: MarkedText, source: str) -> Write:
        """Return a function that writes a translation so that it is parsed to the markup of the source."""

        def write(parts: Sequence[Part]) -> Code | None:
            plain = content.join(parts)
            if not content.elements and not RISKY.search(plain):
                return (plain,)
            expected = self._structure(source)
            escaped = [SPECIAL.sub(r"\\\1", part) if isinstance(part, str) else part for part in parts]
            for start, stop in content.protected:
                code = content.text[start:stop]
                written = SPECIAL.sub(r"\\\1", code)
                escaped = [part.replace(written, code) if isinstance(part, str) else part for part in escaped]
            for version in (parts, escaped, _space(parts, content), _space(escaped, content)):
                text = content.join(version)
                text = text if version is parts else BLOCK_START.sub(r"\1\\\2", text)
                text = re.sub(r"(?<!\\)\|", r"\\|", text) if self._in_cell else text
                if self._structure(text) == expected:
                    return (text,)
            return None

        return write

    def _structure(self, text: str) -> tuple[list[str], Counter[tuple[str, str]]]:
        """Return the types of blocks, and the number of inline tokens by type and link target."""
        tokens = self._parser.parse(text, dict(self._references))
        children = [child for token in tokens for child in token.children or ()]
        inline = Counter((child.type, str(child.attrs.get("href", ""))) for child in children)
        for kind in ("text", "text_special", "softbreak"):
            del inline[kind, ""]
        return [token.type for token in tokens], inline


def _space(parts: Sequence[Part], content: MarkedText) -> list[Part]:
    """Put spaces around pairs of emphasis, which next to letters and punctuation are not parsed as markup."""
    openings = {element.opening for element in content.elements if element.closing is not None}
    closings = {element.closing for element in content.elements}
    spaced: list[Part] = []
    for part in parts:
        if part in openings and spaced and isinstance(last := spaced[-1], str) and not last[-1:].isspace():
            spaced.append(" ")
        if isinstance(part, str) and spaced and spaced[-1] in closings and not part[:1].isspace():
            spaced.append(" ")
        spaced.append(part)
    return spaced
