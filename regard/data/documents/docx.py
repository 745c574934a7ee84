"""Word documents (.docx): paragraphs of the text, of headers and footers, notes, comments and text boxes.

A paragraph consists of runs with a format each. Runs of equal format are joined; other formats than that of most of the
text become markup, which is placed around the aligned words. Tabs and line breaks end a segment.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from regard.data.documents.document import Segment, TextFile
from regard.data.documents.marked_text import Code, MarkedText, MarkedTextBuilder, Part
from regard.data.documents.xml import Node, decode_xml, escape_xml, parse_xml, text_of
from regard.data.documents.zipped import Archive, ZipDocument
from regard.errors import UserError

NAMES = re.compile(r"word/(document\d*|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
NAMESPACE = re.compile(
    r"""xmlns:([\w.-]+)\s*=\s*["'](?:http://schemas\.openxmlformats\.org/wordprocessingml/2006/main|"""
    r"""http://purl\.oclc\.org/ooxml/wordprocessingml/main)["']"""
)
CONTAINERS = {"hyperlink", "ins", "moveTo", "smartTag", "fldSimple", "customXml", "bdo", "dir"}
BREAKS = {"tab", "br", "cr", "ptab"}
IRRELEVANT = re.compile(r"<\w+:(?:lang|noProof)\b[^<>]*/>")
"""Properties of runs by which Word divides text of the same format."""


@dataclass
class Item:
    """A piece of a paragraph.

    Attributes:
        kind: "text", "single", "open", "close", "break", or "begin", "separate" and "end" of a field.
        start, stop: Range in the file.
        run: The run that contains the item, if one does.
        text: The text of a text.
        key: Name of a pair.
        code: Markup of the item outside of a run.
    """

    kind: str
    start: int
    stop: int
    run: Node | None = None
    text: str = ""
    key: str = ""
    code: Code = ()


def parse(data: bytes, name: str, expanded: int | None = None) -> ZipDocument:
    """Parse a Word document.

    Args:
        data: The file.
        name: Its name, for errors.
        expanded: Maximum number of bytes of the expanded file.
    """
    archive = Archive(data, name, "a .docx file", expanded)
    document = ZipDocument(archive)
    for member in archive.members:
        if match := NAMES.fullmatch(member.filename):
            file = TextFile(decode_xml(archive.read(member), f"{name}, {member.filename}"))
            _Part(file, match[1]).add_segments()
            document.parts[member.filename] = file
    if not any(path.startswith("word/document") for path in document.parts):
        raise UserError(f"{name}: has no file word/document.xml, so it is not a .docx file")
    return document


class _Part:
    """One XML file of a document."""

    def __init__(self, file: TextFile, label: str) -> None:
        self._file, self._text = file, file.text
        self._label = "" if label.startswith("document") else f"{label}, "
        self._root = parse_xml(file.text, file.characters.name)
        found = NAMESPACE.search(file.text)
        self._prefix = found[1] if found else "w"

    def add_segments(self) -> None:
        number = 0
        for node in self._root.walk():
            if self._is(node, "p"):
                number += 1
                items = _match_fields(list(self._items(node)))
                for is_break, group in groupby(items, lambda item: item.kind == "break"):
                    if not is_break:
                        self._add(list(group), f"{self._label}paragraph {number}")

    def _is(self, node: Node, name: str) -> bool:
        return node.name == name and node.prefix == self._prefix

    def _items(self, parent: Node) -> Iterator[Item]:
        for node in parent.children:
            if self._is(node, "r"):
                yield from self._run_items(node)
            elif self._is(node, "sdt") and (content := node.find("sdtContent")) is not None and content.has_end:
                yield from self._pair(node, content)
            elif node.prefix == self._prefix and node.name in CONTAINERS and node.has_end:
                yield from self._pair(node, node)
            elif node.name and node.name != "#" and not self._is(node, "pPr"):
                code = (range(node.start, node.stop),)
                yield Item("single", node.start, node.stop, code=code)

    def _pair(self, node: Node, content: Node) -> Iterator[Item]:
        key = f"{node.name} {node.start}"
        opening, closing = range(node.start, content.inner.start), range(content.inner.stop, node.stop)
        yield Item("open", opening.start, opening.stop, key=key, code=(opening,))
        yield from self._items(content)
        yield Item("close", closing.start, closing.stop, key=key, code=(closing,))

    def _run_items(self, run: Node) -> Iterator[Item]:
        for node in run.children:
            if not node.name or node.name == "#" or self._is(node, "rPr"):
                continue
            if self._is(node, "t"):
                text = "".join(text_of(self._text, child) for child in node.children if not child.name)
                preserved = node.get("xml:space") == "preserve"
                yield Item("text", node.start, node.stop, run, text if preserved else text.strip())
                continue
            kind = "break" if node.prefix == self._prefix and node.name in BREAKS else "single"
            if self._is(node, "fldChar"):
                kind = node.get(f"{self._prefix}:fldCharType") or "single"
            code = (f"<{self._prefix}:r>", self._format(run), range(node.start, node.stop), f"</{self._prefix}:r>")
            yield Item(kind, node.start, node.stop, run, code=code)

    def _format(self, run: Node) -> str:
        """Return the properties of a run as XML."""
        properties = run.find("rPr")
        return self._text[properties.start : properties.stop] if properties is not None else ""

    def _style(self, run: Node) -> str:
        """Return the properties of a run that matter."""
        style = IRRELEVANT.sub("", self._format(run))
        return "" if re.fullmatch(r"<[^<>]*>\s*</[^<>]*>|<[^<>]*/>", style) else style

    def _add(self, group: Sequence[Item], where: str) -> None:
        """Add a group of items as a segment."""
        formats = Counter[str]()
        for item in group:
            if item.run is not None and item.kind == "text":
                formats[self._style(item.run)] += len(item.text)
        if not formats or not any(map(str.isalnum, "".join(item.text for item in group))):
            return
        ((base, _),) = formats.most_common(1)
        builder, styles = MarkedTextBuilder(), _Styles(base)
        for item in group:
            style = self._style(item.run) if item.run is not None else base
            styles.switch(builder, style if item.kind == "text" else base if item.kind != "single" else None)
            if item.kind == "text":
                builder.text(item.text)
            else:
                styles.pushed.append(None)
                if item.kind == "open":
                    builder.open(item.key, item.code)
                elif item.kind == "close":
                    builder.close(item.key, item.code)
                else:
                    builder.single(item.code, ordered=True)
        styles.switch(builder, base)
        content = builder.finish()
        first, last, mark = group[0], group[-1], self._prefix
        start, before, stop, after = first.start, "", last.stop, ""
        if first.run is not None:
            is_first = _content(first.run)[0].start == first.start
            start, before = (first.run.start, "") if is_first else (first.start, f"</{mark}:r>")
        if last.run is not None:
            is_last = _content(last.run)[-1].start == last.start
            stop, after = (last.run.stop, "") if is_last else (last.stop, f"<{mark}:r>{self._format(last.run)}")
        write = _write(content, styles, mark, before, after)
        self._file.segments.append(Segment(content, where, range(start, stop), write))


def _content(run: Node) -> list[Node]:
    """Return the elements of a run without its properties."""
    return [node for node in run.children if node.name not in ("", "#", "rPr")]


class _Styles:
    """Turns changes of the format into markup; `pushed` has a format or None for every code of the text."""

    def __init__(self, base: str) -> None:
        self.base, self.pushed = base, list[str | None]()
        self._current = base

    def switch(self, builder: MarkedTextBuilder, style: str | None) -> None:
        """Start a format, or keep the current one if it is None."""
        if style is None or style == self._current:
            return
        if self._current != self.base:
            builder.close("format", ())
            self.pushed.append("")
        if style != self.base:
            builder.open("format", ())
            self.pushed.append(style)
        self._current = style


def _write(
    content: MarkedText, styles: _Styles, mark: str, before: str, after: str
) -> Callable[[Sequence[Part]], Code]:
    closings = _closings(content)

    def write(parts: Sequence[Part]) -> Code:
        pieces: list[str | range] = [before]
        stack = [styles.base]
        for part in parts:
            if isinstance(part, str):
                text = escape_xml(" ".join(part.splitlines()) if "\n" in part else part)
                pieces.append(f'<{mark}:r>{stack[-1]}<{mark}:t xml:space="preserve">{text}</{mark}:t></{mark}:r>')
            elif styles.pushed[part] is None:
                pieces += content.codes[part]
            elif part in closings:
                stack.pop()
            else:
                stack.append(styles.pushed[part] or styles.base)
        return (*pieces, after)

    return write


def _closings(content: MarkedText) -> set[int | None]:
    """Return the numbers of the codes that end an element."""
    found: set[int | None] = set()
    stack = list(content.elements)
    while stack:
        element = stack.pop()
        found.add(element.closing)
        stack += element.children
    return found


# A field, such as a page number, is a sequence of items: begin, instruction, separator, result, end.
# Fields may nest, in the instruction and in the result.
# The result is text; what precedes it belongs to the opening tag.


@dataclass
class _OpenField:
    """A field whose end has not been read: indices of its begin and its separator."""

    begin: int
    separator: int | None = None


class _FieldPair(NamedTuple):
    """A field that begins and ends in a paragraph: indices of its begin, its separator and its end."""

    begin: int
    separator: int
    end: int


def _match_fields(items: list[Item]) -> list[Item]:
    """Return the items of a paragraph, in which fields that begin and end in it are pairs."""
    return _as_pairs(items, _find_pairs(items))


def _find_pairs(items: list[Item]) -> list[_FieldPair]:
    """Return the fields that can become a pair of an opening and a closing tag."""
    open_fields: list[_OpenField] = []
    pairs: list[_FieldPair] = []
    for i, item in enumerate(items):
        if item.kind == "begin":
            open_fields.append(_OpenField(i))
        elif item.kind == "separate" and open_fields:
            open_fields[-1].separator = i
        elif item.kind == "end" and open_fields:
            field = open_fields.pop()
            if field.separator is not None:
                pair = _FieldPair(field.begin, field.separator, i)
                if _is_movable(items, pair):
                    pairs.append(pair)
    return pairs


def _is_movable(items: list[Item], pair: _FieldPair) -> bool:
    """Return whether the tags of a field can be placed around other words, without text or other tags in them."""
    instruction = items[pair.begin : pair.separator + 1]
    # A tag consists of whole runs, so a run that also has other content would move it along.
    each_fills_its_run = all(
        item.run is not None and len(_content(item.run)) == 1 for item in (*instruction, items[pair.end])
    )
    return each_fills_its_run and all(item.kind in ("begin", "single", "separate") for item in instruction)


def _as_pairs(items: list[Item], pairs: list[_FieldPair]) -> list[Item]:
    """Return the items; of each pair, begin to separator become one opening tag, and the end its closing tag."""
    by_begin, by_end = {pair.begin: pair for pair in pairs}, {pair.end: pair for pair in pairs}
    matched: list[Item] = []
    tag_end = -1  # index of the separator of the last opening tag
    for i, item in enumerate(items):
        if i <= tag_end:
            continue
        if i in by_begin:
            tag_end = by_begin[i].separator
            tag = items[i : tag_end + 1]
            code = tuple(piece for one in tag for piece in one.code)
            matched.append(Item("open", *_run_range(tag[0], tag[-1]), key=f"field {i}", code=code))
        elif i in by_end:
            matched.append(Item("close", *_run_range(item, item), key=f"field {by_end[i].begin}", code=item.code))
        elif item.kind in ("begin", "separate", "end"):  # of a field that is no pair
            matched.append(Item("single", item.start, item.stop, item.run, code=item.code))
        else:
            matched.append(item)
    return matched


def _run_range(first: Item, last: Item) -> tuple[int, int]:
    assert first.run is not None and last.run is not None
    return first.run.start, last.run.stop
