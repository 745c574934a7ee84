"""Subtitles: SubRip (.srt) and WebVTT (.vtt). Times, numbers, settings and tags stay as they are.

A cue is one text: its lines are joined for translation, and the translation is divided into as many lines. Lines of a
dialogue, which start with a dash, are translated separately.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from regard.data.documents.characters import Characters
from regard.data.documents.document import Segment, TextFile
from regard.data.documents.inline_tags import escape, parse_tags
from regard.data.documents.marked_text import Code, MarkedText, Part
from regard.errors import UserError

TIMES = {
    "srt": re.compile(r"\s*\d{1,3}:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d{1,3}:\d\d:\d\d[,.]\d{1,3}"),
    "vtt": re.compile(r"(?:\d{2,}:)?\d\d:\d\d\.\d{3}[ \t]+-->[ \t]+(?:\d{2,}:)?\d\d:\d\d\.\d{3}"),
}
LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
DIALOGUE = re.compile(r"\s*(?:<[^<>]*>\s*)*[-–—‐]\s*(?!\d)")
STYLE = re.compile(r"\{\\[^{}\n]{1,200}\}")
"""Formatting of a subtitle editor: {\\an8}."""


def parse_srt(data: bytes, name: str) -> TextFile:
    """Parse SubRip subtitles."""
    return _parse(data, name, "srt")


def parse_vtt(data: bytes, name: str) -> TextFile:
    """Parse WebVTT subtitles."""
    return _parse(data, name, "vtt")


def _parse(data: bytes, name: str, format: str) -> TextFile:
    file = TextFile(Characters.decode(data, name))
    if format == "vtt" and not re.match(r"\ufeff?WEBVTT(?=\s|\Z)", file.text):
        raise UserError(f"{name}: is not WebVTT, whose first line is WEBVTT")
    cues = 0
    for number, block in _blocks(file.text):
        timed = next((i for i, line in enumerate(block[:2]) if TIMES[format].match(line[0])), None)
        if timed is None:
            if format == "srt" or not re.match(r"\ufeff?WEBVTT|STYLE|REGION", block[0][0]):
                text, note = " ".join(line[0] for line in block), block[0][0].startswith("NOTE")
                file.skip(f"line {number}", text, "note" if note else "not a cue")
            continue
        cues += 1
        for lines in _speakers(block[timed + 1 :]):
            segment = _segment(file.text, lines, f"cue {cues}", format)
            if segment is not None:
                file.segments.append(segment)
    if not cues and file.text.strip("\ufeff \r\n") and format == "srt":
        raise UserError(f"{name}: has no times such as 00:00:01,000 --> 00:00:04,000, so it is not a .srt file")
    return file


Line = tuple[str, int]
"""A line without its end, and its position."""


def _blocks(text: str) -> Iterator[tuple[int, list[Line]]]:
    """Yield the blocks between empty lines, with the number of their first line."""
    block: list[Line] = []
    number = 0
    for match in LINE.finditer(text):
        if match[1].strip():
            block.append((match[1], match.start()))
        elif block:
            yield number - len(block) + 1, block
            block = []
        number += 1
    if block:
        yield number - len(block), block


def _speakers(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Divide the lines of a cue before each line of a dialogue."""
    group: list[Line] = []
    for line in lines:
        if group and DIALOGUE.match(line[0]):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _segment(text: str, lines: Sequence[Line], where: str, format: str) -> Segment | None:
    start, stop = lines[0][1], lines[-1][1] + len(lines[-1][0].rstrip())
    dash = DIALOGUE.match(lines[0][0])
    if dash is not None and not dash[0].lstrip().startswith("<"):
        start += dash.end()
    raw = text[start:stop]
    start += len(raw) - len(raw.lstrip())
    joined = re.sub(r"\s*[\r\n]+\s*", " ", raw.strip())
    content = parse_tags(joined, html.unescape if format == "vtt" else lambda text: text, code_pattern=STYLE)
    if not content.has_words:
        return None
    newline = re.search(r"\r\n|\r|\n", raw)
    write = _write(content, len(lines), newline[0] if newline else "\n", escape if format == "vtt" else str)
    return Segment(content, where, range(start, stop), write)


def _write(
    content: MarkedText, lines: int, newline: str, escape: Callable[[str], str]
) -> Callable[[Sequence[Part]], Code]:
    def write(parts: Sequence[Part]) -> Code:
        broken = break_lines(parts, lines)
        pieces: list[str | range] = []
        for part in broken:
            pieces += [escape(part).replace("\n", newline)] if isinstance(part, str) else content.codes[part]
        return tuple(pieces)

    return write


def break_lines(parts: Sequence[Part], lines: int) -> list[Part]:
    """Break the text of a translation into lines of similar length, at spaces or after Chinese punctuation."""
    texts = [" ".join(part.split("\n")) if isinstance(part, str) else part for part in parts]
    whole = "".join(part for part in texts if isinstance(part, str))
    if lines < 2 or len(whole) < 2:
        return texts
    candidates = [
        match.end() for match in re.finditer(r"\S(?= \S)|[，。！？、；：]", whole) if match.end() < len(whole)
    ]
    breaks: set[int] = set()
    for line in range(1, lines):
        ideal = len(whole) * line / lines
        nearest = min(candidates, key=lambda place: abs(place - ideal), default=None)
        if nearest is not None and abs(nearest - ideal) <= len(whole) / 4:
            breaks.add(nearest)
        elif " " not in whole and len(whole) >= 8:  # a script without spaces
            breaks.add(round(ideal))
    broken: list[Part] = []
    position = 0
    for part in texts:
        if isinstance(part, str):
            cuts = sorted(place - position for place in breaks if position < place <= position + len(part))
            position += len(part)
            edges = [0, *cuts, len(part)]
            pieces = [part[a:b] for a, b in pairwise(edges)]
            part = re.sub(r" *\n *", "\n", "\n".join(pieces))
        broken.append(part)
    return broken
