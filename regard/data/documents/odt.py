"""OpenDocument texts (.odt): paragraphs and headings, also those of notes, comments, frames, headers and footers.

Spans and links are markup, which is placed around the aligned words. Tabs and line breaks end a segment.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

from regard.data.documents.document import Segment, TextFile, write_with
from regard.data.documents.marked_text import Code, MarkedTextBuilder
from regard.data.documents.xml import Node, decode_xml, escape_xml, parse_xml, text_of
from regard.data.documents.zipped import Archive, ZipDocument
from regard.errors import UserError

NAMES = ("content.xml", "styles.xml")
NAMESPACE = re.compile(r"""xmlns:([\w.-]+)\s*=\s*["']urn:oasis:names:tc:opendocument:xmlns:text:1\.0["']""")
PAIRED = {"span", "a", "meta", "ruby", "ruby-base"}
BREAKS = {"tab", "line-break"}
MEDIA_TYPES = (b"application/vnd.oasis.opendocument.text", b"application/vnd.oasis.opendocument.text-template")


class Item(NamedTuple):
    """A piece of a paragraph.

    Attributes:
        kind: "text", "single", "open", "close" or "break".
        node: The node.
        span: Range in the file.
        text: The text of a text.
        code: Markup of an item that is none.
    """

    kind: str
    node: Node
    span: range
    text: str = ""
    code: Code = ()


def parse(data: bytes, name: str, expanded: int | None = None) -> ZipDocument:
    """Parse an OpenDocument text.

    Args:
        data: The file.
        name: Its name, for errors.
        expanded: Maximum number of bytes of the expanded file.
    """
    archive = Archive(data, name, "an .odt file", expanded)
    document = ZipDocument(archive)
    members = {member.filename for member in archive.members}
    if "content.xml" not in members or ("mimetype" in members and archive.read("mimetype").strip() not in MEDIA_TYPES):
        raise UserError(f"{name}: is not an OpenDocument text, whose file content.xml has the text")
    manifest = archive.read("META-INF/manifest.xml") if "META-INF/manifest.xml" in members else b""
    if b"encryption-data" in manifest:
        raise UserError(f"{name}: is encrypted; save it without a password")
    for path in NAMES:
        if path in members:
            file = TextFile(decode_xml(archive.read(path), f"{name}, {path}"))
            _add_segments(file, "" if path == "content.xml" else "styles, ")
            document.parts[path] = file
    return document


def _add_segments(file: TextFile, label: str) -> None:
    """Add the paragraphs and headings of an XML file as segments.

    Args:
        file: The file.
        label: What precedes the number of a paragraph in reports.
    """
    root = parse_xml(file.text, file.characters.name)
    found = NAMESPACE.search(file.text)
    prefix = found[1] if found else "text"
    number, stack = 0, [root]
    while stack:
        node = stack.pop()
        if node.name == "tracked-changes":  # deleted text
            continue
        if node.name in ("p", "h") and node.prefix == prefix:
            number += 1
            # Tabs and line breaks divide a paragraph into segments.
            for is_break, group in groupby(_items(file.text, node), lambda item: item.kind == "break"):
                if not is_break:
                    _add(file, list(group), f"{label}paragraph {number}", prefix)
        stack += reversed(node.children)  # of paragraphs too: notes, comments and frames in them have paragraphs


def _items(text: str, parent: Node) -> Iterator[Item]:
    for node in parent.children:
        span = range(node.start, node.stop)
        if not node.name:
            yield Item("text", node, span, re.sub(r"[ \t\r\n]+", " ", text_of(text, node)))
        elif node.name == "s" and node.prefix == parent.prefix:
            count = node.get(f"{node.prefix}:c") or "1"
            yield Item("text", node, span, " " * min(int(count) if count.isdecimal() else 1, 80))
        elif node.name in PAIRED and node.has_end:
            yield Item("open", node, node.opening, code=(node.opening,))
            yield from _items(text, node)
            yield Item("close", node, node.closing, code=(node.closing,))
        else:
            yield Item("break" if node.name in BREAKS else "single", node, span, code=(span,))


def _add(file: TextFile, group: list[Item], where: str, prefix: str) -> None:
    """Add a group of items as a segment."""
    if not any(map(str.isalnum, "".join(item.text for item in group))):
        return
    builder = MarkedTextBuilder()
    for item in group:
        key = f"{item.node.name} {item.node.start}"
        if item.kind == "text":
            builder.text(item.text)
        elif item.kind == "open":
            builder.open(key, item.code)
        elif item.kind == "close":
            builder.close(key, item.code)
        else:
            builder.single(item.code, ordered=True)
    content = builder.finish()
    span = range(group[0].span.start, group[-1].span.stop)
    write = write_with(partial(_escape, prefix=prefix), content.codes)
    file.segments.append(Segment(content, where, span, write))


def _escape(text: str, prefix: str) -> str:
    """Write characters; each of several spaces except the first is an element <text:s/>, or they would become one."""
    line = " ".join(text.splitlines()) if "\n" in text else text
    return re.sub(r"(?<= ) ", f"<{prefix}:s/>", escape_xml(line))
