"""OpenDocument texts (.odt): paragraphs and headings, also those of notes, comments, frames, headers and footers.

Spans and links are markup, which is placed around the aligned words. Tabs and line breaks end a segment.
"""

import re
from collections.abc import Iterator
from itertools import groupby

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
            for is_break, group in groupby(_items(file.text, node), lambda item: item[0] == "break"):
                if not is_break:
                    _add(file, list(group), f"{label}paragraph {number}")
        stack += reversed(node.children)


Item = tuple[str, Node, str, Code, range]
"""Kind ("text", "single", "open", "close" or "break"), node, text, code, and range in the file."""


def _items(text: str, parent: Node) -> Iterator[Item]:
    for node in parent.children:
        span = range(node.start, node.stop)
        if not node.name:
            yield "text", node, re.sub(r"[ \t\r\n]+", " ", text_of(text, node)), (), span
        elif node.name == "s" and node.prefix == parent.prefix:
            count = node.get(f"{node.prefix}:c") or "1"
            yield "text", node, " " * min(int(count) if count.isdecimal() else 1, 80), (), span
        elif node.name in PAIRED and node.has_end:
            yield "open", node, "", (node.opening,), node.opening
            yield from _items(text, node)
            yield "close", node, "", (node.closing,), node.closing
        else:
            yield "break" if node.name in BREAKS else "single", node, "", (span,), span


def _add(file: TextFile, group: list[Item], where: str) -> None:
    """Add a group of items as a segment."""
    if not any(map(str.isalnum, "".join(text for _, _, text, _, _ in group))):
        return
    builder = MarkedTextBuilder()
    for kind, node, text, code, _ in group:
        key = f"{node.name} {node.start}"
        if kind == "text":
            builder.text(text)
        elif kind == "open":
            builder.open(key, code)
        elif kind == "close":
            builder.close(key, code)
        else:
            builder.single(code, ordered=True)
    content = builder.finish()
    span = range(group[0][4].start, group[-1][4].stop)
    file.segments.append(Segment(content, where, span, write_with(_escape, content.codes)))


def _escape(text: str) -> str:
    """Write characters; several spaces would become one."""
    return re.sub(r"(?<= ) ", "<text:s/>", escape_xml(" ".join(text.splitlines()) if "\n" in text else text))
