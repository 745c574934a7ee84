"""XLIFF 1.2 and 2.0, and translation memories (TMX): texts without a translation get one. Others stay as they are.

Files are translated in place: what is not a translation stays equal to the byte. As a corpus, files of these formats
are read by `regard.data.text.interchange`.
"""

import html
import re
from collections.abc import Callable, Iterator

from regard.data.documents.document import Segment, TextFile, write_with
from regard.data.documents.marked_text import Code, MarkedText, MarkedTextBuilder
from regard.data.documents.xml import Node, decode_xml, escape_xml, parse_xml, text_of
from regard.data.text.languages import language_of
from regard.errors import UserError

OPEN_STATES = {"new", "needs-translation", "initial"}
PAIRED = {"g", "pc", "mrk", "hi"}
STARTS = {"bpt": ("i", "rid", "id"), "bx": ("rid", "id"), "sc": ("id",)}
"""Elements that start a pair, and the attributes that identify it."""
ENDS = {"ept": ("i", "rid", "id"), "ex": ("rid", "id"), "ec": ("startRef", "id")}


# XLIFF


def parse_xliff(data: bytes, name: str, target: str | None = None) -> TextFile:
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
    for unit, source, translated, preserve in _xliff_units(root):
        _add_unit(file, unit, source, translated, preserve)
    if version.startswith("2.") and root.get("trgLang") is None and file.segments and target is not None:
        end = root.inner.start - 1
        file.fixed.append((range(end, end), (f' trgLang="{html.escape(target)}"',)))
    return file


def _xliff_units(root: Node) -> Iterator[tuple[Node, Node, bool, bool]]:
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


def _add_unit(file: TextFile, unit: Node, source: Node, translated: bool, preserve: bool) -> None:
    text = file.text
    identity = unit.get("id")
    where = f"{unit.name} {identity}" if identity else f"line {text.count(chr(10), 0, unit.start) + 1}"
    content = parse_content(text, source, preserve)
    if not content.text.strip():
        return
    target = unit.find("target")
    state = (target.get("state") if target is not None else None) or unit.get("state")
    is_open = state is None or state in OPEN_STATES
    filled = target is not None and not _is_empty(text, target)
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
    if target is not None:
        return _fill(text, target)
    prefix = text[source.start + 1 : source.inner.start].split("source")[0]
    return range(source.stop, source.stop), f"{_new_line(text, source)}<{prefix}target>", f"</{prefix}target>"


def _fill(text: str, node: Node) -> tuple[range, str, str]:
    """Return the range that the content of an element replaces, and the tags before and after it."""
    if node.has_end:
        return node.inner, "", ""
    opening = text[node.start : node.stop].rstrip("/> \t\r\n")  # of an element without an end tag, such as <target/>
    name = re.split(r"\s", opening[1:], maxsplit=1)[0]
    return range(node.start, node.stop), f"{opening}>", f"</{name}>"


def _is_empty(text: str, node: Node) -> bool:
    return not text[node.inner.start : node.inner.stop].strip()


def _new_line(text: str, node: Node) -> str:
    """Return the line break and the indentation before an element; "" if it is not the first one on its line."""
    line = text.rfind("\n", 0, node.start) + 1
    indent = text[line : node.start]
    return ("\r\n" if text[:line].endswith("\r\n") else "\n") + indent if not indent.strip() and line else ""


# TMX


def parse_tmx(data: bytes, name: str, source: str | None = None, target: str | None = None) -> TextFile:
    """Parse a translation memory.

    Args:
        data: The file.
        name: Its name, for errors.
        source: Code of the source language; by default that of the file.
        target: Code of the target language.
    """
    file = TextFile(decode_xml(data, name))
    root = parse_xml(file.text, name)
    if root.name != "tmx":
        raise UserError(f"{name}: is not TMX (its root element is <{root.name[:40]}>)")
    if target is None:
        raise UserError(f"{name}: a translation memory needs the code of the target language")
    header, body = root.find("header"), root.find("body")
    stated = (header.get("srclang") if header is not None else None) or "*all*"
    for number, unit in enumerate((one for one in (body.children if body else ()) if one.name == "tu"), 1):
        language = source or unit.get("srclang") or stated
        _add_translation(file, unit, f"unit {unit.get('tuid') or number}", language, target)
    return file


def _add_translation(file: TextFile, unit: Node, where: str, source: str, target: str) -> None:
    """Add the text of a unit in the source language as a segment, if the unit has no translation yet.

    The translation is written to the empty segment of the variant in the target language, or to a new variant after all
    others.

    Args:
        file: The file.
        unit: The unit (tu), which contains a variant (tuv) for each language.
        where: Name of the unit, for the list of texts that were not translated.
        source: Code of the source language; "*all*" for the language of the first variant.
        target: Code of the target language.
    """
    variants = [(one.get("xml:lang") or one.get("lang") or "", one) for one in unit.children if one.name == "tuv"]
    source_variant = next((one for language, one in variants if source == "*all*" or _matches(language, source)), None)
    segment = source_variant.find("seg") if source_variant is not None else None
    if source_variant is None or segment is None:
        file.skip(where, "", f"no text in the source language {source}")
        return
    content = parse_content(file.text, segment, preserve=False)
    if not content.text.strip():
        return

    others = [(language, one) for language, one in variants if one is not source_variant]
    target_variant = next((one for language, one in others if _matches(language, target)), None)
    target_segment = target_variant.find("seg") if target_variant is not None else None
    if target_variant is None:
        span, before, after = _new_variant(file.text, source_variant, variants[-1][1], target)
    elif target_segment is not None and _is_empty(file.text, target_segment):
        span, before, after = _fill(file.text, target_segment)
    else:
        file.skip(where, content.text, "already translated" if target_segment else "its translation lacks <seg>")
        return
    write = write_with(escape_xml, content.codes, before, after)
    file.segments.append(Segment(content, where, span, write, in_place=False))


def _new_variant(text: str, source_variant: Node, last: Node, target: str) -> tuple[range, str, str]:
    """Return the range that a new variant after the last one replaces, and the tags before and after its text."""
    opening = f'{_new_line(text, source_variant)}<tuv xml:lang="{html.escape(target)}"><seg>'
    return range(last.stop, last.stop), opening, "</seg></tuv>"  # the range is empty: an insertion


def _matches(language: str, wanted: str) -> bool:
    """Return whether two language codes name the same language; a region or script of one of them does not count."""
    one, other = language.lower().replace("_", "-"), wanted.lower().replace("_", "-")
    return language_of(one) == language_of(other) or one.split("-")[0] == other or one == other.split("-")[0]


# Inline elements, which both formats write alike


def parse_content(text: str, node: Node, preserve: bool) -> MarkedText:
    """Return the text of a segment and the elements in it.

    Args:
        text: Text of the file.
        node: The element that contains the segment.
        preserve: Whether line breaks are part of the text (xml:space).
    """
    builder = MarkedTextBuilder()
    pairs = _find_pairs(node)
    _append(builder, text, node, pairs, (lambda text: text) if preserve else join_lines)
    return builder.finish()


def join_lines(text: str) -> str:
    """Replace line breaks and the indentation after them with a space."""
    return (
        " ".join(line.strip(" \t") if i else line.rstrip(" \t") for i, line in enumerate(text.splitlines()))
        if ("\n" in text or "\r" in text)
        else text
    )


def _find_pairs(node: Node) -> dict[int, str]:
    """Return a name for every element that starts or ends a pair, if both are in the segment, by its position."""
    starts: dict[str, int] = {}
    names: dict[int, str] = {}
    for one in node.walk():
        if one.name in STARTS:
            starts[_identity(one, STARTS[one.name])] = one.start
        elif one.name in ENDS and (key := _identity(one, ENDS[one.name])) in starts:
            names[starts[key]] = names[one.start] = f"pair {key}"
            del starts[key]
    return names


def _identity(node: Node, attributes: tuple[str, ...]) -> str:
    return next((value for name in attributes if (value := node.get(name)) is not None), "")


def _append(
    builder: MarkedTextBuilder, text: str, parent: Node, pairs: dict[int, str], normalise: Callable[[str], str]
) -> None:
    for node in parent.children:
        code: Code = (range(node.start, node.stop),)
        if not node.name:
            builder.text(normalise(text_of(text, node)))
        elif node.start in pairs:
            (builder.open if node.name in STARTS else builder.close)(pairs[node.start], code)
        elif node.name in PAIRED and node.has_end and not _is_protected(node):
            key = f"{node.name} {node.start}"
            builder.open(key, (node.opening,))
            _append(builder, text, node, pairs, normalise)
            builder.close(key, (node.closing,))
        else:
            builder.single(code, ordered=True)


def _is_protected(node: Node) -> bool:
    return node.get("translate") == "no" or node.get("mtype") == "protected"
