"""Gettext catalogs (.po, .pot): empty translations are filled in. Comments and finished entries stay as they are.

The header is not changed. Messages with plural forms get the translation of the singular for the first of several
forms, and the translation of the plural for all others.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, Write
from regard.data.documents.inline_tags import parse_tags
from regard.data.documents.marked_text import MarkedText
from regard.errors import UserError

CHARSET = re.compile(rb'"Content-Type:[^"\n]{0,100}charset=([\w.:-]{1,40})')
LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
KEYWORD = re.compile(r'[ \t]*(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?[ \t]*(?=")')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{1,2}))+)|\\(.)", re.S)
BYTE = re.compile(r"\\(?:x(\w+)|(\d+))")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass
class Value:
    """A string of an entry, and the range of its quoted lines."""

    text: str
    start: int
    stop: int


@dataclass
class Entry:
    """An entry of the catalog; keys of `values` are "msgid" and so on, and "msgstr[0]" with plural forms."""

    line: int
    values: dict[str, Value] = field(default_factory=dict)
    fuzzy: bool = False


def parse(data: bytes, name: str) -> TextFile:
    """Parse a catalog."""
    declared = CHARSET.search(data[:20_000])
    charset = declared[1].decode() if declared and declared[1] != b"CHARSET" else None  # as in a template
    file = TextFile(Characters.decode(data, name, charset))
    encoding = "utf-8" if file.characters.encoding.startswith("utf") else file.characters.encoding
    entries = list(_entries(file.text, name, encoding))
    if not entries and file.text.strip("\ufeff \t\r\n") and "#~" not in file.text:
        raise UserError(f"{name}: has no entries (msgid and msgstr), so it is not a .po file")
    newline = "\r\n" if "\r\n" in file.text else "\n"
    for entry in entries:
        _add(file, entry, newline)
    return file


def _entries(text: str, name: str, encoding: str) -> Iterator[Entry]:
    entry: Entry | None = None
    current: Value | None = None
    fuzzy = False
    for number, match in enumerate(LINE.finditer(text), 1):
        line, offset = match[1].lstrip("\ufeff"), match.start() + len(match[1]) - len(match[1].lstrip("\ufeff"))
        stripped = line.strip()
        if keyword := KEYWORD.match(line):
            key = keyword[1] if keyword[2] is None else f"{keyword[1]}[{keyword[2]}]"
            if entry is None or keyword[1] == "msgctxt" or (keyword[1] == "msgid" and "msgid" in entry.values):
                if entry is not None:
                    yield entry
                entry, fuzzy = Entry(number, fuzzy=fuzzy), False
            if key in entry.values:
                raise UserError(f"{name}, line {number}: {key} is there twice in an entry; separate entries by msgid")
            current = entry.values[key] = Value("", offset + keyword.end(), 0)
            line, offset = line[keyword.end() :], offset + keyword.end()
        elif not stripped.startswith('"'):
            if stripped and not stripped.startswith("#"):
                raise UserError(f"{name}, line {number}: expected msgid, msgstr, a quoted string or a comment")
            fuzzy = fuzzy or (stripped.startswith("#,") and "fuzzy" in stripped)
            current = None
            continue
        string = STRING.fullmatch(line.strip())
        if string is None or current is None:
            raise UserError(f'{name}, line {number}: expected a string in quotes, inside which a quote is written \\"')
        current.text += _unescape(string[1], encoding)
        current.stop = offset + len(line.rstrip())
    if entry is not None:
        yield entry


def _add(file: TextFile, entry: Entry, newline: str) -> None:
    """Add the segments of an entry whose translations are empty."""
    where, values = f"line {entry.line}", entry.values
    msgid, plural = values.get("msgid"), values.get("msgid_plural")
    if msgid is None:
        raise UserError(f"{file.characters.name}, {where}: the entry has no msgid")
    if not msgid.text:  # the header
        return
    targets = {key: value for key, value in values.items() if key.startswith("msgstr")}
    if not targets:
        raise UserError(f"{file.characters.name}, {where}: the entry has no msgstr")
    if any(value.text for value in targets.values()):
        file.skip(where, msgid.text, "fuzzy translation" if entry.fuzzy else "already translated")
        return
    for key, target in targets.items():
        first = plural is None or (key == "msgstr[0]" and len(targets) > 1)
        content = parse_tags(msgid.text if first or plural is None else plural.text)
        span = range(target.start, target.stop)
        segment = Segment(content, where, span, _write(content, newline), in_place=False)
        file.segments.append(segment)


def _write(content: MarkedText, newline: str) -> Write:
    return lambda parts: (quote(content.join(parts), newline),)


def quote(text: str, newline: str = "\n") -> str:
    """Return a text as the string of a catalog, in a line for each line of the text if there are several."""
    lines = text.splitlines(keepends=True) if "\n" in text.rstrip("\n") else [text]
    quoted = [f'"{_escape(line)}"' for line in lines]
    return newline.join(['""', *quoted] if len(quoted) > 1 else quoted)


def _escape(text: str) -> str:
    names = {value: f"\\{name}" for name, value in ESCAPES.items()} | {"\\": "\\\\", '"': '\\"'}
    return "".join(names.get(character, character) for character in text)


def _unescape(text: str, encoding: str) -> str:
    """Replace escapes; successive octal and hexadecimal ones are bytes of characters in an encoding."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return ESCAPES.get(match[2], match[2])
        codes = (int(one[1], 16) if one[1] else int(one[2], 8) % 256 for one in BYTE.finditer(match[1]))
        return bytes(codes).decode(encoding, "replace")

    return ESCAPE.sub(replace, text)
