"""XLIFF 1.2 and 2.0: the targets of units without a translation are written. Finished targets stay as they are."""

import html
from collections.abc import Iterator

from regard.data.documents.bilingual import parse_content
from regard.data.documents.document import Segment, TextFile, write_with
from regard.data.documents.xml import Node, decode_xml, escape_xml, parse_xml
from regard.errors import UserError

OPEN_STATES = {"new", "needs-translation", "initial"}


def parse(data: bytes, name: str, target: str | None = None) -> TextFile:
    """Parse an XLIFF file.

    Args:
        data: The file.
        name: Its name, for errors.
        target: Code of the target language; XLIFF 2 needs it if the file does not state it.
    """
    file = TextFile(decode_xml(data, name))
    root = parse_xml(file.text, name)
    version = root.get("version") or ""
    if root.name != "xliff" or not version.startswith(("1.", "2.")):
        raise UserError(
            f"{name}: is not XLIFF 1.2 or 2.0 (its root element is <{root.name[:40]}>, version {version!r})"
        )
    for unit, source, translated, preserve in _units(root):
        _add(file, unit, source, translated, preserve)
    if version.startswith("2.") and root.get("trgLang") is None and file.segments and target is not None:
        end = root.inner.start - 1
        file.fixed.append((range(end, end), (f' trgLang="{html.escape(target)}"',)))
    return file


def _units(root: Node) -> Iterator[tuple[Node, Node, bool, bool]]:
    """Yield every unit or segment with its source, whether it is translated, and whether white space is kept."""
    stack = [(root, True, False)]
    while stack:
        node, translated, preserved = stack.pop()
        translated = {"no": False, "yes": True}.get(node.get("translate") or "", translated)
        preserved = {"preserve": True, "default": False}.get(node.get("xml:space") or "", preserved)
        source = node.find("source")
        if node.name in ("trans-unit", "segment") and source is not None:
            yield node, source, translated, preserved
            continue
        if node.name not in (
            "alt-trans",
            "matches",
            "glossary",
            "ignorable",
            "seg-source",
            "source",
            "target",
            "#",
            "",
        ):
            stack += [(child, translated, preserved) for child in reversed(node.children) if child.name]


def _add(file: TextFile, unit: Node, source: Node, translated: bool, preserve: bool) -> None:
    text = file.text
    identity = unit.get("id")
    where = f"{unit.name} {identity}" if identity else f"line {text.count(chr(10), 0, unit.start) + 1}"
    content = parse_content(text, source, preserve)
    if not content.text.strip():
        return
    target = unit.find("target")
    state = (target.get("state") if target is not None else None) or unit.get("state")
    is_open = state is None or state in OPEN_STATES
    filled = target is not None and text[target.inner.start : target.inner.stop].strip() != ""
    if not translated:
        file.skip(where, content.text, "marked as not to be translated")
    elif filled and not (state is not None and is_open):
        file.skip(where, content.text, "already translated")
    elif unit.find("seg-source") is not None:
        file.skip(where, content.text, "divided into segments, which XLIFF 1.2 leaves to other programs")
    else:
        span, before, after = _place(text, source, target)
        file.segments.append(
            Segment(content, where, span, write_with(escape_xml, content.codes, before, after), in_place=False)
        )


def _place(text: str, source: Node, target: Node | None) -> tuple[range, str, str]:
    """Return the range that a target replaces, and the tags before and after it."""
    prefix = text[source.start + 1 : source.inner.start].split("source")[0]
    if target is not None and target.has_end:
        return target.inner, "", ""
    if target is not None:  # <target/>
        opening = text[target.start : target.stop].rstrip("/> \t\r\n")
        return range(target.start, target.stop), f"{opening}>", f"</{prefix}target>"
    line = text.rfind("\n", 0, source.start) + 1
    indent = text[line : source.start]
    newline = ("\r\n" if text[:line].endswith("\r\n") else "\n") + indent if not indent.strip() and line else ""
    return range(source.stop, source.stop), f"{newline}<{prefix}target>", f"</{prefix}target>"
