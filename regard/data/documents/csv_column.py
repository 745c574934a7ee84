"""A column of a CSV file. All other fields, and the quoting of every field, stay as they are."""

import re
from collections.abc import Iterator, Sequence

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, Write
from regard.data.documents.inline_tags import parse_tags
from regard.data.documents.marked_text import MarkedText
from regard.errors import UserError

DELIMITERS = ",;\t|"
MAX_COLUMNS = 10_000


def parse(data: bytes, name: str, column: str | None = None) -> TextFile:
    """Parse a CSV file.

    Args:
        data: The file.
        name: Its name, for errors.
        column: Name of the column in the first row, or its number from 0 in a file without names.
    """
    file = TextFile(Characters.decode(data, name))
    start = len(file.text) - len(file.text.lstrip("\ufeff"))
    first_line = re.match(r'(?:[^"\r\n]|"[^"]*")*', file.text[start:])
    assert first_line is not None
    unquoted = re.sub(r'"[^"]*"', "", first_line[0])
    delimiter = max(DELIMITERS, key=unquoted.count)
    rows = _rows(file.text, start, delimiter, name)
    header = next(rows, (1, []))
    names = [_unquote(file.text[field.start : field.stop]) for field in header[1]]
    index = _find_column(names, column, name)
    if names and names[index] != column:  # a number: the first row has data
        _add(file, header, index, delimiter)
    for row in rows:
        _add(file, row, index, delimiter)
    return file


def _find_column(names: Sequence[str], column: str | None, name: str) -> int:
    choices = ", ".join(names[:20])
    if column is None:
        raise UserError(f"{name}: name the column to translate (--column); the first row has {choices[:200] or 'none'}")
    if column in names:
        return names.index(column)
    if column.isdecimal() and len(column) < 6 and int(column) < len(names):
        return int(column)
    raise UserError(f"{name}: has no column {column!r} (--column); the first row has {choices[:200] or 'none'}")


Row = tuple[int, list[range]]
"""Number of the line of a row, and the ranges of its fields."""


def _rows(text: str, start: int, delimiter: str, name: str) -> Iterator[Row]:
    """Yield the rows that are not empty."""
    separator = re.escape(delimiter)
    content = rf'"(?:[^"]|"")*+"|(?!")[^{separator}\r\n]*'
    field = re.compile(rf"({content})({separator}|\r\n|\r|\n|\Z|(?=[^\r\n]))")
    row, line = list[range](), 1
    position, number = start, 1
    while position < len(text):
        match = field.match(text, position)
        if match is None or (not match[2] and match.end() < len(text)):
            raise UserError(f'{name}, line {line}: the quotes of a field do not match; write "" for a quote in it')
        row.append(range(match.start(1), match.end(1)))
        if len(row) > MAX_COLUMNS:
            raise UserError(f"{name}, line {number}: has more than {MAX_COLUMNS} columns")
        line += len(re.findall(r"\r\n|\r|\n", match[0]))
        position = match.end()
        if match[2] != delimiter:
            if len(row) > 1 or len(row[0]):
                yield number, row
            row, number = [], line
    if row:
        yield number, [*row, range(position, position)]


def _add(file: TextFile, row: Row, index: int, delimiter: str) -> None:
    number, fields = row
    if index >= len(fields):
        file.skip(f"line {number}", "", "the row is too short")
        return
    span = fields[index]
    raw = file.text[span.start : span.stop]
    content = parse_tags(_unquote(raw))
    if content.text.strip():
        write = _write(content, raw.startswith('"'), delimiter)
        file.segments.append(Segment(content, f"line {number}", span, write))


def _write(content: MarkedText, quoted: bool, delimiter: str) -> Write:
    def quote(text: str) -> str:
        if quoted or re.search(rf'["\r\n{re.escape(delimiter)}]', text):
            return '"' + text.replace('"', '""') + '"'
        return text

    return lambda parts: (quote(content.join(parts)),)


def _unquote(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field
