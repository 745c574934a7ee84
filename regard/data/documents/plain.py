"""Plain text: every line is a segment, or every part of a line between tabs. Bullets and numbers stay."""

import re

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile, write_with
from regard.data.documents.marked_text import MarkedText

LINES = re.compile(r"[^\r\n\t]+")
BULLET = re.compile(r"(?:[-*+•·–—>#]+|\(?\d{1,3}[.)])\s+(?=\S)")


def parse(data: bytes, name: str) -> TextFile:
    """Parse a text file."""
    file = TextFile(Characters.decode(data, name))
    number, position = 1, 0
    for match in LINES.finditer(file.text):
        number += len(re.findall(r"\r\n|\r|\n", file.text[position : match.start()]))
        position = match.start()
        line = match[0].lstrip("\ufeff").lstrip()
        bullet = BULLET.match(line)
        line = line[bullet.end() :] if bullet else line
        text = line.strip()
        if text:
            start = match.end() - len(line)
            span = range(start, start + len(text))
            file.segments.append(Segment(MarkedText(text), f"line {number}", span, write_with(one_line, ())))
    return file


def one_line(text: str) -> str:
    """Replace line breaks with spaces."""
    return " ".join(text.split("\n")) if "\n" in text else text
