"""Damaged and hostile documents are rejected in one sentence, in little time and memory."""

import io
import struct
import time
import tracemalloc
import warnings
import zipfile

import pytest

from regard.data.documents.formats import parse_document
from regard.errors import UserError
from regard.pipelines.translate_document import translate_document
from tests.data.documents.office import letter_docx, letter_odt, members, rezip
from tests.data.documents.stubs import reverse

XML = '<?xml version="1.0"?>'
LAUGHS = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
BOMB = f'{XML}<!DOCTYPE x [<!ENTITY a0 "ha">{LAUGHS}]>'
EXTERNAL = f'{XML}<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>'
XLIFF = '<xliff version="1.2"><file><body><trans-unit id="1"><source>{}</source></trans-unit></body></file></xliff>'
DECLARES = "declares entities or element types, which is not supported"


def lying_about_its_size(data: bytes) -> bytes:
    """Return an archive whose directory states a size of 10 bytes for every file."""
    changed = bytearray(data)
    position = changed.find(b"PK\x01\x02")
    while position >= 0:
        changed[position + 24 : position + 28] = struct.pack("<I", 10)
        position = changed.find(b"PK\x01\x02", position + 4)
    return bytes(changed)


def with_each_file_twice(data: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in [*members(data).items()] * 2:
            file.writestr(name, content)
    return target.getvalue()


def compressed_otherwise(data: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_BZIP2) as file:
        for name, content in members(data).items():
            file.writestr(name, content)
    return target.getvalue()


def encrypted(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[changed.find(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def document_xml(body: str, before: str = XML) -> bytes:
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    return f"{before}<w:document {namespace}><w:body>{body}</w:body></w:document>".encode()


PARAGRAPH = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
DEEP = "<w:p>" * 5000 + "</w:p>" * 5000
DOCX, ODT = letter_docx(), letter_odt()

CASES: dict[str, tuple[str, bytes, str]] = {
    "zip bomb in docx": ("a.docx", rezip(DOCX, document=document_xml(" " * 60_000_000)), "when it is expanded, but at"),
    "zip bomb in odt": ("a.odt", rezip(ODT, content=b" " * 60_000_000), "when it is expanded, but at"),
    "size of a file is wrong": ("a.docx", lying_about_its_size(DOCX), "damaged or not a .docx file"),
    "entities in docx": ("a.docx", rezip(DOCX, document=document_xml(PARAGRAPH.format("&a9;"), BOMB)), DECLARES),
    "entities in odt": ("a.odt", rezip(ODT, content=f"{BOMB}<x>&a9;</x>".encode()), DECLARES),
    "entities in xliff": ("a.xlf", f"{BOMB}{XLIFF.format('&a9;')}".encode(), DECLARES),
    "external entity in xliff": ("a.xlf", f"{EXTERNAL}{XLIFF.format('&f;')}".encode(), DECLARES),
    "external entity in tmx": ("a.tmx", f"{EXTERNAL}<tmx>&f;</tmx>".encode(), DECLARES),
    "external entity in docx": ("a.docx", rezip(DOCX, document=document_xml("&f;", EXTERNAL)), DECLARES),
    "undefined entity": ("a.xlf", XLIFF.format("&x;").encode(), "line 1: damaged XML (undefined entity)"),
    "deep XML": ("a.docx", rezip(DOCX, document=document_xml(DEEP)), "nested more than 200 levels deep"),
    "deep xliff": ("a.xlf", XLIFF.format("<g>" * 9999 + "</g>" * 9999).encode(), "nested more than 200 levels deep"),
    "deep JSON": ("a.json", b'{"a":' * 90 + b"1" + b"}" * 90, "nested more than 64 levels deep"),
    "truncated zip": ("a.docx", DOCX[: len(DOCX) // 2], "damaged or not a .docx file"),
    "damaged zip": ("a.odt", ODT[:200] + b"\0" * 300 + ODT[500:], "damaged or not"),
    "encrypted": ("a.docx", encrypted(DOCX), "is encrypted; save it without a password"),
    "encrypted odt": ("a.odt", rezip(ODT, manifest=b"<encryption-data/>"), "is encrypted; save it without a password"),
    "files twice": ("a.docx", with_each_file_twice(DOCX), "has too many files, or one of them twice"),
    "many elements": ("a.tmx", b"<tmx>" + b"<b/>" * 500_000 + b"</tmx>", "its XML has more than 500,000 elements"),
    "another compression": ("a.docx", compressed_otherwise(DOCX), "a method that is not used in a .docx file"),
    "a text named docx": ("a.docx", b"I love apples", "damaged or not a .docx file"),
    "docx named odt": ("a.odt", DOCX, "is not an OpenDocument text"),
    "odt named docx": ("a.docx", ODT, "has no file word/document.xml, so it is not a .docx file"),
    "docx named xlf": ("a.xlf", DOCX, "damaged or not UTF-8 text"),
    "html named tmx": ("a.tmx", b"<html><p>x</p></html>", "is not TMX (its root element is <html>)"),
    "xliff 3": ("a.xlf", b'<xliff version="3.0"/>', "is not XLIFF 1.2 or 2.0"),
    "empty docx": ("a.docx", b"", "damaged or not a .docx file"),
    "empty xlf": ("a.xlf", b"", "line 1: damaged XML (no element found)"),
    "unclosed element": ("a.tmx", b"<tmx><body>", "line 1: damaged XML"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_documents_are_rejected_in_one_sentence(case: str) -> None:
    name, data, message = CASES[case]
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            parse_document(data, name, languages=("en", "zh"), expanded=50_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message in str(error.value)
    assert str(error.value).startswith(name)
    assert "\n" not in str(error.value)
    assert peak < 20_000_000


@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - "])
def test_nested_markdown_is_translated_or_reported(mark: str) -> None:
    shallow, _ = translate_document(parse_document((mark * 12 + "I love apples\n").encode(), "a.md"), reverse)
    assert shallow.decode() == mark * 12 + "APPLES LOVE i\n"
    text = f"I like tea\n\n{mark * 5000}I love apples\n"
    deep, report = translate_document(parse_document(text.encode(), "a.md"), reverse)
    assert deep.decode() == text.replace("I like tea", "TEA LIKE i")
    (untranslated,) = report.untranslated
    assert (untranslated.where, untranslated.text) == ("line 3", "I love apples")
    assert untranslated.reason == "nested more than 50 levels deep"


SLOW = {
    "a.md": ["[", "![", "`", "*a ", "_a_", "> ", "- ", "<a ", "[a](", "|a|b|\n|-|-|\n", "\\", "&#", "a\n", "# a\n"],
    "a.html": ["<b>", "</b>", "<a ", "<a '", "<!--", "<code>", "<p>a", "a<b>b</b>", "&amp;", "<a b='c>'"],
    "a.txt": ["{", "%", "`", "``", ":a:`", "http://a", "a@b.", "|a", ". ", "{{a", "a. "],
    "a.srt": ["1\n00:00:01,000 --> 00:00:02,000\na\n\n", "00:00:01,000 --> 00:00:02,000\n<i>"],
    "a.po": ['msgid "a"\nmsgstr ""\n\n', '"a"\n'],
    "a.csv": ['"', '"a",', ",", "a\n", '""'],
    "a.json": ['["a",'],
    "a.xlf": [XLIFF.format("<g id='1'>a</g>" * 20)],
}


@pytest.mark.parametrize(("name", "unit"), [(name, unit) for name, units in SLOW.items() for unit in units])
def test_repetitive_documents_take_reasonable_time(name: str, unit: str) -> None:
    text = unit * (12_000 // len(unit))
    text = {"a.srt": f"1\n00:00:01,000 --> 00:00:02,000\n{text}", "a.po": f'msgid "a"\nmsgstr ""\n{text}'}.get(
        name, text
    )
    started = time.process_time()
    try:
        translate_document(parse_document(text.encode(), name, column="0" if name == "a.csv" else None), reverse)
    except UserError as error:
        assert "\n" not in str(error)
    assert time.process_time() - started < 5
