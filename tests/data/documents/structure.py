"""What must stay equal when a document is translated, as its own library reads it."""

import csv
import io
import json
import re
from collections import Counter
from typing import Any

import polib
import pysubs2
import webvtt
from markdown_it import MarkdownIt

from regard.data.documents.placeholders import PLACEHOLDER

TAG = re.compile(r"</?[a-zA-Z]\w*(?:[ .](?:[^<>@])*)?/?>|<[\d:.]+>|\{\\[^}]*\}")


def codes(text: str) -> Counter[str]:
    """Count the tags and placeholders of a text."""
    return Counter(TAG.findall(text)) + Counter(PLACEHOLDER.findall(TAG.sub(" ", text)))


def txt(data: bytes) -> Any:
    text = data.decode("utf-8")
    return [(bool(line.strip()), codes(line), re.findall(r"^\s*|[\r\n]+$", line)) for line in text.splitlines(True)]


def md(data: bytes) -> Any:
    text = data.decode("utf-8").replace("[^1]:", "Footnote:")  # would define a link if its text has no spaces
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    blocks = [(one.type, one.tag, one.markup, one.info, one.attrs) for one in tokens]
    kept = [one.content for one in tokens if one.type in ("fence", "code_block", "html_block")]
    inline = [
        Counter(
            (child.type, child.content if child.type in ("code_inline", "html_inline") else "", str(child.attrs))
            for child in one.children or ()
            if child.type not in ("text", "text_special", "softbreak")
        )
        for one in tokens
        if one.type == "inline"
    ]
    return blocks, kept, inline


def srt(data: bytes) -> Any:
    subtitles = pysubs2.SSAFile.from_string(data.decode("utf-8"), format_="srt", keep_unknown_html_tags=True)
    numbers = re.findall(r"^\d+\r?$", data.decode("utf-8"), re.M)
    return numbers, [(one.start, one.end, codes(one.text.replace("\\N", "\n"))) for one in subtitles]


def vtt(data: bytes) -> Any:
    captions = webvtt.from_string(data.decode("utf-8"))
    return (
        [(one.start, one.end, one.identifier, codes(one.raw_text)) for one in captions],
        [style.text for style in captions.styles],
        captions.header_comments,
    )


def po(data: bytes) -> Any:
    catalog = polib.pofile(data.decode("utf-8"), check_for_duplicates=True)
    for one in catalog:
        if "fuzzy" not in one.flags and not one.obsolete:
            assert one.translated(), one.msgid
        for target in (one.msgstr, *one.msgstr_plural.values()):
            assert not target or "fuzzy" in one.flags or codes(target) in (codes(one.msgid), codes(one.msgid_plural)), (
                target
            )
            assert target.startswith("\n") == one.msgid.startswith("\n")
            assert target.endswith("\n") == one.msgid.endswith("\n")
    return catalog.metadata, catalog.header, [_po_entry(one) for one in catalog]


def _po_entry(one: polib.POEntry) -> Any:
    return one.msgctxt, one.msgid, one.msgid_plural, one.comment, one.occurrences, one.flags, one.previous_msgid


def json_(data: bytes) -> Any:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [shape(inner) for inner in value]
        return (value.count("\n"), codes(value)) if isinstance(value, str) else value

    return shape(json.loads(data))


def csv_(data: bytes) -> Any:
    text = data.decode("utf-8")
    delimiter = csv.Sniffer().sniff(text.splitlines()[0], delimiters=",;\t").delimiter
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    column = rows[0].index("text")
    return [(row[:column], row[column + 1 :], codes(row[column])) for row in rows]


READERS = {"txt": txt, "md": md, "srt": srt, "vtt": vtt, "po": po, "pot": po, "json": json_, "csv": csv_}
