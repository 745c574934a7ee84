"""XML: elements with their places in the text of a file, checked by expat. Nothing in the file is executed or loaded.

Document types with an internal subset (which can declare entities) and deep nesting are rejected.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from regard.data.documents.characters import Characters
from regard.errors import UserError

MAX_DEPTH = 200
MAX_ELEMENTS = 500_000
DECLARATION = re.compile(rb"""<\?xml[^>]{0,100}encoding=["']([\w.:-]{1,40})""")
_TOKENS = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<cdata>.*?)\]\]>|<\?.*?\?>|<!DOCTYPE[^\[>]*>|"
    r"<(?P<close>/?)(?P<name>[^\s/<>!?]+)(?P<attributes>(?:\"[^\"]*\"|'[^']*'|[^\"'<>])*?)(?P<empty>/?)>",
    re.S,
)
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")


@dataclass(slots=True, eq=False)
class Node:
    """An element, a text (with an empty name), or a comment and the like (with the name "#").

    Attributes:
        name: Name without its prefix.
        prefix: Prefix of the name, without the colon.
        start, stop: Range in the file.
        inner: Range of the content of an element; empty for `<x/>`.
        attributes: Attributes as they are written.
        children: Content.
        cdata: Whether the text is written in a CDATA section.
    """

    name: str
    start: int
    stop: int
    inner: range = range(0)
    attributes: str = ""
    children: "list[Node]" = field(default_factory=list)
    cdata: bool = False
    prefix: str = ""

    def get(self, name: str) -> str | None:
        """Return the value of an attribute, which is given without or with its prefix."""
        for match in _ATTRIBUTE.finditer(self.attributes):
            if match[1] == name:
                return html.unescape(match[2] if match[2] is not None else match[3])
        return None

    def find(self, name: str) -> "Node | None":
        """Return the first child of a name."""
        return next((child for child in self.children if child.name == name), None)

    def walk(self) -> "Iterator[Node]":
        """Yield this node and all nodes inside it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)

    @property
    def opening(self) -> range:
        return range(self.start, self.inner.start if len(self.inner) or self.has_end else self.stop)

    @property
    def closing(self) -> range:
        return range(self.inner.stop, self.stop) if self.has_end else range(0)

    @property
    def has_end(self) -> bool:
        """Whether the element has an end tag."""
        return self.inner.stop < self.stop and self.inner.start > self.start


def decode_xml(data: bytes, name: str) -> Characters:
    """Decode an XML file by its byte order mark or declaration."""
    declared = DECLARATION.match(data.removeprefix(b"\xef\xbb\xbf"))
    return Characters.decode(data, name, declared[1].decode() if declared else None, errors="xmlcharrefreplace")


def parse_xml(text: str, name: str) -> Node:
    """Return the root element of an XML file.

    Raises:
        UserError: The file is not well-formed, declares entities, or is nested too deeply.
    """
    check_xml(text, name)
    root = Node("", 0, len(text), range(0, len(text)))
    stack, position = [root], 0
    for match in _TOKENS.finditer(text):
        parent = stack[-1]
        if match.start() > position:
            parent.children.append(Node("", position, match.start()))
        position = match.end()
        if match["name"] is None:
            is_cdata = match["cdata"] is not None
            parent.children.append(Node("" if is_cdata else "#", match.start(), position, cdata=is_cdata))
        elif match["close"]:
            parent.inner = range(parent.inner.start, match.start())
            parent.stop = position
            stack.pop()
        else:
            prefix, _, local = match["name"].rpartition(":")
            node = Node(local, match.start(), position, range(position, position), match["attributes"], prefix=prefix)
            parent.children.append(node)
            if not match["empty"]:
                stack.append(node)
    if len(text) > position:
        root.children.append(Node("", position, len(text)))
    return next(child for child in root.children if child.name not in ("", "#"))


def text_of(text: str, node: Node) -> str:
    """Return the characters of a text node."""
    if node.cdata:
        return text[node.start + len("<![CDATA[") : node.stop - len("]]>")]
    return html.unescape(text[node.start : node.stop])


def escape_xml(text: str) -> str:
    """Write characters between tags; characters that XML does not allow are omitted."""
    kept = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", text)
    return html.escape(kept, quote=False)


def check_xml(text: str, name: str) -> None:
    """Parse an XML file with expat, without building anything.

    Raises:
        UserError: The file is not well-formed, declares entities, or is nested too deeply.
    """
    parser = expat.ParserCreate("utf-8")
    depth = elements = 0

    def start(tag: str, attributes: object) -> None:
        nonlocal depth, elements
        depth, elements = depth + 1, elements + 1
        if depth > MAX_DEPTH:
            raise UserError(f"{name}: its XML is nested more than {MAX_DEPTH} levels deep")
        if elements > MAX_ELEMENTS:
            raise UserError(f"{name}: its XML has more than {MAX_ELEMENTS:,} elements")

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1

    def doctype(doctype: str, system: str | None, public: str | None, has_subset: int) -> None:
        if has_subset:
            raise UserError(f"{name}: its XML declares entities or element types, which is not supported")

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, doctype
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        parser.Parse(text.removeprefix("\ufeff").encode("utf-8"), True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise UserError(f"{name}, line {error.lineno}: damaged XML ({reason})") from None
    except UnicodeEncodeError:
        raise UserError(f"{name}: damaged XML (lone surrogate)") from None
