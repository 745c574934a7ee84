"""Translation memories (TMX): units without the target language get a translation in it."""

import html

from regard.data.documents.bilingual import parse_content
from regard.data.documents.document import Segment, TextFile, write_with
from regard.data.documents.xml import Node, decode_xml, escape_xml, parse_xml
from regard.errors import UserError


def parse(data: bytes, name: str, source: str | None = None, target: str | None = None) -> TextFile:
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
        _add(file, unit, f"unit {unit.get('tuid') or number}", language, target)
    return file


def _add(file: TextFile, unit: Node, where: str, source: str, target: str) -> None:
    variants = [(one.get("xml:lang") or one.get("lang") or "", one) for one in unit.children if one.name == "tuv"]
    chosen = next((one for language, one in variants if source == "*all*" or _matches(language, source)), None)
    segment = chosen.find("seg") if chosen is not None else None
    if chosen is None or segment is None:
        file.skip(where, "", f"no text in the source language {source}")
        return
    content = parse_content(file.text, segment, False)
    existing = next((one for language, one in variants if one is not chosen and _matches(language, target)), None)
    if not content.text.strip():
        return
    place = existing.find("seg") if existing is not None else None
    if place is not None and place.has_end and not file.text[place.inner.start : place.inner.stop].strip():
        write = write_with(escape_xml, content.codes)
        file.segments.append(Segment(content, where, place.inner, write, in_place=False))
    elif existing is not None:
        file.skip(where, content.text, "already translated")
    else:
        text, line = file.text, file.text.rfind("\n", 0, chosen.start) + 1
        indent = text[line : chosen.start]
        newline = ("\r\n" if text[:line].endswith("\r\n") else "\n") + indent if not indent.strip() and line else ""
        last = variants[-1][1].stop
        before, after = f'{newline}<tuv xml:lang="{html.escape(target)}"><seg>', "</seg></tuv>"
        write = write_with(escape_xml, content.codes, before, after)
        file.segments.append(Segment(content, where, range(last, last), write, in_place=False))


def _matches(language: str, wanted: str) -> bool:
    """Return whether two language codes name the same language; a region or script of one of them does not count."""
    one, other = language.lower().replace("_", "-"), wanted.lower().replace("_", "-")
    return one == other or one.split("-")[0] == other or one == other.split("-")[0]
