"""HTML pages: the text between block-level tags is a segment, with inline elements in it, and so are some attributes.

Scripts, styles, code and elements with `translate="no"` stay as they are.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, Write, write_with
from regard.data.documents.inline_tags import escape
from regard.data.documents.marked_text import Code, MarkedText, MarkedTextBuilder, Part

_TOKENS = re.compile(
    r"<!--.*?(?:-->|\Z)|<[!?][^>]*(?:>|\Z)|"
    r"<(?P<close>/?)(?P<name>[a-zA-Z][^\s/<>]*)(?:\"[^\"]*\"|'[^']*'|[^\"'<>])*+>",
    re.S,
)
_INLINE_NAMES = """a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span strike strong
    sub sup time tt u"""
_INLINE = frozenset(_INLINE_NAMES.split())
_INLINE_VOID = frozenset({"img", "wbr", "input"})
_CODE = frozenset({"code", "kbd", "samp", "var"})
_UNTRANSLATED = _CODE | {"script", "style", "textarea", "pre", "svg", "math", "template", "noscript"}
_REPORTED = {"pre": "code", "textarea": "form field"}
_NO_TRANSLATE = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.I)
_ATTRIBUTE = re.compile(r"""\s(alt|title|placeholder|aria-label|content)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.I)
_META = re.compile(r"""<meta\b[^>]*\bname\s*=\s*["']?(?:description|keywords)\b""", re.I)
_CHARSET = re.compile(
    rb"""<meta\b[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|<\?xml[^>]{0,100}encoding=["']([\w.:-]{1,40})""", re.I
)


@dataclass(frozen=True)
class Token:
    """A piece of a page: "text", an inline tag ("open", "close", or "single" without content), or a "block" tag.

    Attributes:
        untranslated: Name of the element if the token contains its content, which is not translated.
    """

    kind: str
    start: int
    stop: int
    name: str = ""
    untranslated: bool = False


@dataclass(frozen=True)
class TextBlock:
    """Text between two block-level tags, and its range."""

    content: MarkedText
    start: int
    stop: int


def parse(data: bytes, name: str) -> TextFile:
    """Parse a page."""
    declared = _CHARSET.search(data[:2048])
    charset = (declared[1] or declared[2]).decode() if declared else None
    file = TextFile(Characters.decode(data, name, charset, errors="xmlcharrefreplace"))
    tokens = list(tokenise(file.text))
    lines = _LineNumbers(file.text)
    for token in tokens:
        if token.untranslated:
            reason = _REPORTED.get(
                token.name, None if token.name in _UNTRANSLATED else "marked as not to be translated"
            )
            if reason is not None:
                file.skip(f"line {lines.at(token.start)}", file.text[token.start : token.stop], reason)
        elif token.kind != "text":
            _add_attributes(file, token, f"line {lines.at(token.start)}")
    lines = _LineNumbers(file.text)
    for block in parse_blocks(file.text, tokens):
        if isinstance(block, TextBlock):
            segment = _segment(file.text, block, f"line {lines.at(block.start)}")
            file.segments.append(segment)
    return file


class _LineNumbers:
    """Counts lines up to increasing positions."""

    def __init__(self, text: str) -> None:
        self._text, self._position, self._line = text, 0, 1

    def at(self, position: int) -> int:
        """Return the number of the line at a position, which is not before the last one."""
        self._line += self._text.count("\n", self._position, position)
        self._position = max(position, self._position)
        return self._line


def _add_attributes(file: TextFile, token: Token, where: str) -> None:
    tag = file.text[token.start : token.stop]
    for match in _ATTRIBUTE.finditer(tag):
        if match[1].lower() == "content" and not _META.match(tag):
            continue
        group = 2 if match[2] is not None else 3
        content = MarkedText(html.unescape(match[group]))
        if any(map(str.isalpha, content.text)):
            span = range(token.start + match.start(group), token.start + match.end(group))
            file.segments.append(Segment(content, where, span, write_with(html.escape, ())))


def _segment(text: str, block: TextBlock, where: str) -> Segment:
    """Return the segment of a block, without the white space around it."""
    content, raw = block.content, text[block.start : block.stop]
    start, stop = block.start, block.stop
    lead, tail = len(raw) - len(raw.lstrip(" \t\r\n\f")), len(raw) - len(raw.rstrip(" \t\r\n\f"))
    if lead and content.text.startswith(" ") and content.drop_prefix(1):
        start += lead
    if tail and content.drop_suffix(1):
        stop -= tail
    return Segment(content, where, range(start, stop), _write(content))


def _write(content: MarkedText) -> Write:
    return write_with(escape, content.codes)


def parse_blocks(text: str, tokens: Sequence[Token] | None = None) -> Iterator[range | TextBlock]:
    """Yield the text blocks of a page, and the ranges of the markup between them."""
    builder, start = MarkedTextBuilder(), 0
    for token in tokenise(text) if tokens is None else tokens:
        if token.kind == "block":
            yield from _end_block(builder, start, token.start)
            yield range(token.start, token.stop)
            builder, start = MarkedTextBuilder(), token.stop
        else:
            _append(builder, text, token)
    yield from _end_block(builder, start, len(text))


def _end_block(builder: MarkedTextBuilder, start: int, stop: int) -> Iterator[range | TextBlock]:
    content = builder.finish()
    yield TextBlock(content, start, stop) if content.has_words else range(start, stop)


def _append(builder: MarkedTextBuilder, text: str, token: Token) -> None:
    """Append a token to a text block."""
    code: Code = (range(token.start, token.stop),)
    if token.kind == "text":
        plain = re.sub(r"[ \t\n\r\f]+", " ", html.unescape(text[token.start : token.stop]))
        siblings = builder.siblings
        if plain.startswith(" ") and builder.ends_with_space and siblings and siblings[-1].start == builder.length:
            builder.extend(siblings[-1], (" ",))  # a tag between two spaces, one of which the sentence keeps
            plain = plain[1:]
        builder.text(unicodedata.normalize("NFC", plain))
    elif token.kind == "close":
        builder.close(token.name, code)
    elif token.kind == "open":
        builder.open(token.name, code)
    else:
        builder.single(code)


def tokenise(text: str) -> Iterator[Token]:
    """Yield the tokens of a page."""
    position, last = 0, text.rfind(">") + 1  # what follows the last ">" has no complete tag
    while (match := _TOKENS.search(text, position)) is not None:
        if match.start() > position:
            yield Token("text", position, match.start())
        token, name, position = match[0], (match["name"] or "").lower(), match.end()
        opens = bool(name) and not match["close"] and not token.endswith("/>")
        if opens and name not in _INLINE_VOID and (name in _UNTRANSLATED or _NO_TRANSLATE.search(token)):
            end = _find_element_end(text, name, position, last)
            position = len(text) if end is None else end
            is_inline = end is not None and name in _INLINE | _CODE  # an unclosed element must stay at the end
            yield Token("single" if is_inline else "block", match.start(), position, name, untranslated=True)
        elif not name:
            yield Token("single", match.start(), position)
        elif name in _INLINE:
            yield Token("close" if match["close"] else "open" if opens else "single", match.start(), position, name)
        else:
            yield Token("single" if name in _INLINE_VOID else "block", match.start(), position, name)
    if position < len(text):
        yield Token("text", position, len(text))


def _find_element_end(text: str, name: str, start: int, last: int) -> int | None:
    """Return the position after the closing tag of an element whose content begins at `start`."""
    depth = 1
    for match in re.compile(rf"<(/?){re.escape(name)}\b[^<>]*>", re.I).finditer(text, start, last):
        depth += -1 if match[1] else 0 if match[0].endswith("/>") else 1
        if depth == 0:
            return match.end()
    return None


def join_parts(parts: Sequence[Part], content: MarkedText, text: str) -> str:
    """Return the markup of a translated text block of a page."""
    return "".join(
        escape(part)
        if isinstance(part, str)
        else "".join(
            piece if isinstance(piece, str) else text[piece.start : piece.stop] for piece in content.codes[part]
        )
        for part in parts
    )
