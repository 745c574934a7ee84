"""JSON: the strings that are values are segments, keys are not. Spacing, numbers and escapes stay as they are."""

import json
import re
from collections.abc import Sequence

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, Write
from regard.data.documents.inline_tags import parse_tags
from regard.data.documents.marked_text import MarkedText
from regard.data.documents.placeholders import MESSAGE, find_placeholders, has_words
from regard.errors import UserError, one_line
from regard.files import parse_json

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')
COLON = re.compile(r"\s*:")
IDENTIFIER = re.compile(r"(?=\S*[\d_./\\#@:=&?^$|])[!-;=-~]+|[a-z]+(?:[A-Z][a-z0-9]*)+|[a-z]+(?:-\w+)+")
"""Values that are names rather than text: paths, colours, dates, regular expressions, snake_case and camelCase."""


def parse(data: bytes, name: str, key: str | None = None) -> TextFile:
    """Parse a JSON file.

    Args:
        data: The file.
        name: Its name, for errors.
        key: Only values of this key are translated, also if they are in a list of this key.
    """
    file = TextFile(Characters.decode(data, name))
    try:
        parse_json(file.text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UserError(f"{name}: damaged or not JSON ({one_line(error)})") from None
    ascii_only = file.text.isascii() and "\\u" in file.text
    for path, start, stop in _values(file.text):
        text = json.loads(file.text[start:stop])
        if not text.strip():
            continue
        where = "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        if reason := _reason(text, path, key):
            file.skip(where, text, reason)
            continue
        content = parse_tags(text)
        file.segments.append(Segment(content, where, range(start, stop), _write(content, ascii_only)))
    return file


def _write(content: MarkedText, ascii_only: bool) -> Write:
    return lambda parts: (json.dumps(content.join(parts), ensure_ascii=ascii_only),)


def _reason(text: str, path: Sequence[str | int], key: str | None) -> str | None:
    """Return why a value is not translated, or None."""
    names = [step for step in path if isinstance(step, str)]
    if key is not None and (not names or names[-1] != key):
        return f"not a value of {key}"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "lone surrogate"
    if MESSAGE.search(text):
        return "ICU message"
    if not has_words(text, find_placeholders(text)):
        return "no words"
    return "looks like an identifier" if key is None and IDENTIFIER.fullmatch(text.rstrip(".:?!")) else None


def _values(text: str) -> "list[tuple[tuple[str | int, ...], int, int]]":
    """Return the path and the range of every string that is a value."""
    found: list[tuple[tuple[str | int, ...], int, int]] = []
    path: list[str | int] = []  # for every open container the current key or index
    for match in TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            path.append("" if token == "{" else 0)
        elif token in "}]":
            path.pop()
        elif token == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else ""
        elif token[0] == '"':
            if path and path[-1] == "" and COLON.match(text, match.end()):
                path[-1] = json.loads(token) or " "
            else:
                found.append((tuple(path), match.start(), match.end()))
    return found
