"""What must stay equal when a document is translated, as its own library reads it."""

import csv
import io
import json
import re
from collections import Counter
from typing import Any

import docx as docx_
import html5lib
import lxml.etree
import odfdo
import polib
import pysubs2
import webvtt
from markdown_it import MarkdownIt
from translate.storage import xliff as xliff12
from translate.storage import xliff2
from translate.storage.tmx import tmxfile

from regard.data.documents.placeholders import PLACEHOLDER
from tests.data.documents.office import members

TAG = re.compile(r"</?[a-zA-Z]\w*(?:[ .](?:[^<>@])*)?/?>|<[\d:.]+>|\{\\[^}]*\}")


def codes(text: str) -> Counter[str]:
    """Count the tags and placeholders of a text."""
    return Counter(TAG.findall(text)) + Counter(PLACEHOLDER.findall(TAG.sub(" ", text)))


def txt(data: bytes) -> Any:
    text = data.decode("utf-8")
    lines = text.splitlines(True)
    return [
        (bool(line.strip()), Counter(PLACEHOLDER.findall(line)), re.findall(r"^\s*|[\r\n]+$", line)) for line in lines
    ]


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
    return numbers, [(one.start, one.end, codes(one.text.replace("\\N", " "))) for one in subtitles]


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


def html(data: bytes) -> Any:
    encoding = "iso-8859-1" if b'"iso-8859-1"' in data[:100] else "utf-8"
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(data.decode(encoding))
    blocks, inline = [], Counter[Any]()
    for one in tree.iter():
        attributes = {key: value for key, value in one.attrib.items() if key not in TRANSLATED}
        found = (str(one.tag), tuple(sorted(attributes.items())))
        if one.tag in ("a", "b", "em", "i", "span", "code", "img", "br", "sub", "input"):
            inline[found] += 1
        else:
            kept = one.text if one.tag in ("style", "script", "pre") else None
            blocks.append((found, kept, sorted(set(one.attrib) & TRANSLATED)))
    return blocks, inline


TRANSLATED = {"alt", "title", "placeholder", "aria-label", "content"}


def xliff(data: bytes) -> Any:
    storage = xliff2.Xliff2File if b'version="2.0"' in data else xliff12.xlifffile
    units = [(one.getid(), str(one.source), bool(one.target)) for one in storage.parsestring(data).units]
    tree = lxml.etree.fromstring(data)
    found = []
    for target in tree.iter("{*}target"):
        source = target.getparent().find("{*}source")
        if source is not None and target.get("state") is None and target.getparent().get("state") != "translated":
            assert inline_tags(target) == inline_tags(source), lxml.etree.tostring(target)
            assert codes("".join(target.itertext())) == codes("".join(source.itertext()))
        found.append(target.getparent().get("id"))
    return units, found, tree.get("trgLang")


def inline_tags(element: Any) -> Counter[Any]:
    """Count the elements inside an element with their attributes."""
    return Counter((one.tag, tuple(sorted(one.attrib.items()))) for one in element.iterdescendants())


def tmx(data: bytes) -> Any:
    units = [(str(one.source), bool(one.target)) for one in tmxfile.parsestring(data, "en", "zh").units]
    languages = []
    for unit in lxml.etree.fromstring(data).iter("tu"):
        variants = {one.get("{http://www.w3.org/XML/1998/namespace}lang"): one.find("seg") for one in unit.iter("tuv")}
        languages.append(list(variants))
        source = next((variants[code] for code in variants if code.lower().startswith("en")), None)
        target = next((variants[code] for code in variants if code.lower() == "zh"), None)
        if target is not None and source is not None:
            assert inline_tags(target) == inline_tags(source)
            assert codes("".join(target.itertext())) == codes("".join(source.itertext()))
    return units, languages


def docx(data: bytes) -> Any:
    document = docx_.Document(io.BytesIO(data))
    paragraphs = [(one.style.name, bool(one.text.strip()), one.text.count("\t")) for one in document.paragraphs]
    tables = [len(table.rows) * len(table.columns) for table in document.tables]
    return paragraphs, tables, *archive(data, {"r", "t", "rPr", "b", "i", "rStyle", "lang"})


def odt(data: bytes) -> Any:
    body = odfdo.Document(io.BytesIO(data)).body
    paragraphs = [(one.tag, one.style) for one in body.get_paragraphs()]
    return paragraphs, len(body.tables), len(body.get_notes()), *archive(data, {"s"})


def archive(data: bytes, ignored: set[str]) -> Any:
    """Return the files that are not translated, and the number of elements in the others."""
    files = members(data)
    texts = {name: file for name, file in files.items() if TEXTS.fullmatch(name)}
    elements = {
        name: Counter(
            (str(one.tag), str(sorted(one.attrib.items())))
            for one in lxml.etree.fromstring(file).iter()
            if str(one.tag).rpartition("}")[2] not in ignored
        )
        for name, file in texts.items()
    }
    return list(files), [file for name, file in files.items() if name not in texts], elements


TEXTS = re.compile(r"content\.xml|styles\.xml|word/(document|header\d|footer\d|comments)\.xml")
READERS = {"txt": txt, "md": md, "srt": srt, "vtt": vtt, "po": po, "pot": po, "json": json_, "csv": csv_}
READERS |= {
    "html": html,
    "htm": html,
    "xhtml": html,
    "xlf": xliff,
    "xliff": xliff,
    "tmx": tmx,
    "docx": docx,
    "odt": odt,
}
