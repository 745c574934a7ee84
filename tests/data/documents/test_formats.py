"""Round trips of documents: structure, placeholders and untouched parts stay; the file opens in its own library."""

import codecs
import json
import re
from functools import cache
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from regard import Translator
from regard.data.documents.document import Document, TextFile
from regard.data.documents.formats import FORMATS, find_format, parse_document
from regard.data.documents.marked_text import AlignedSpan
from regard.data.documents.placeholders import keeps
from regard.data.documents.po import quote
from regard.data.documents.segment_translation import TOO_MARKED, AlignedTranslation, Requests, align_by_length
from regard.errors import UserError
from regard.pipelines.translate_document import translate_document, translate_with
from tests.data.documents.office import OFFICE_FILES, docx_of, members, rezip
from tests.data.documents.structure import READERS
from tests.data.documents.stubs import TRANSLATORS, identity, reverse

FILES = sorted(path for path in (Path(__file__).parent / "files").iterdir())
FILES += [Path(name) for name in OFFICE_FILES]
FILLED = {"po", "xliff", "tmx"}
"""Formats in which translations are added to the source."""


@cache
def read(path: Path) -> bytes:
    return OFFICE_FILES[path.name]() if path.name in OFFICE_FILES else path.read_bytes()


def parse(path: Path, data: bytes | None = None) -> Document:
    column = "text" if path.suffix == ".csv" else None
    return parse_document(read(path) if data is None else data, path.name, languages=("en", "zh"), column=column)


def test_there_are_three_files_of_every_format() -> None:
    counts = {format: sum(find_format(path.name) == format for path in FILES) for format in FORMATS}
    assert {format: count for format, count in counts.items() if count < 3} == {}


@pytest.mark.parametrize("path", [path for path in FILES if find_format(path.name) not in FILLED], ids=lambda p: p.name)
def test_the_identity_changes_no_byte(path: Path) -> None:
    document = parse(path)
    data, report = translate_document(document, identity)
    assert data == read(path) or members(data) == members(read(path))
    assert report.sentences >= 1


def outside(file: TextFile) -> list[str]:
    """Return the parts of a file that belong to no segment; attributes of tags in segments belong to these."""
    edges = [0]
    for segment in sorted(file.segments, key=lambda one: (one.span.start, -one.span.stop)):
        if segment.span.start >= edges[-1]:
            edges += [segment.span.start, segment.span.stop]
    edges.append(len(file.text))
    return [file.text[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_structure_and_untouched_parts_are_equal(path: Path, name: str) -> None:
    document = parse(path)
    data, _ = translate_document(document, TRANSLATORS[name])
    structure = READERS[path.suffix[1:]]
    if find_format(path.name) in FILLED:
        before, _ = translate_document(parse(path), identity)
        assert structure(data) == structure(before)
        return
    if path.name not in OFFICE_FILES:
        assert (data == read(path)) == (name == "identity")
    assert structure(data) == structure(read(path))
    again = parse(path, data)
    if isinstance(document, TextFile) and isinstance(again, TextFile):
        assert outside(again) == outside(document)
    before = [(one.text, one.reason) for one in document.untranslated if "markup" not in one.reason]
    assert [(one.text, one.reason) for one in again.untranslated] == before


def test_structure_is_equal_with_a_model(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    translate = translate_with(translator)
    for path in FILES:
        data, report = translate_document(parse(path), translate, translator.fits)
        structure = READERS[path.suffix[1:]]
        before, _ = translate_document(parse(path), identity)
        assert structure(data) == structure(before), path.name
        assert report.sentences >= 1


VARIANTS = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode("utf-8"),
    "CRLF": lambda text: re.sub(r"\r?\n", "\r\n", text).encode("utf-8"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without mark": lambda text: text.encode("utf-16-be"),
    "CRLF in UTF-16 with mark": lambda text: re.sub(r"\r?\n", "\r\n", text).encode("utf-16"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_encodings_and_line_ends_are_kept(variant: str) -> None:
    for path in FILES:
        declares = find_format(path.name) in ("po", "xliff", "tmx", "html")
        if path.name in OFFICE_FILES or (declares and "UTF-16" in variant) or path.suffix == ".xhtml":
            continue
        plain = path.read_bytes().decode("utf-8")
        data = VARIANTS[variant](plain)
        document = parse(path, data)
        assert len(document.segments) == len(parse(path).segments), path.name
        translated, _ = translate_document(document, reverse)
        if find_format(path.name) not in FILLED:
            assert translate_document(parse(path, data), identity)[0] == data, path.name
        codec = "utf-16-be" if "without" in variant else "utf-16" if "UTF-16" in variant else "utf-8"
        text = translated.decode(codec)
        assert translated.startswith(b"\xef\xbb\xbf") == (variant == "byte order mark")
        if "CRLF" in variant:
            assert not re.search(r"(?<!\r)\n", text), path.name
        normal = text.removeprefix("\ufeff").replace("\r\n", "\n").encode("utf-8")
        expected = translate_document(parse(path), reverse)[0].replace(b"\r\n", b"\n")
        assert READERS[path.suffix[1:]](normal) == READERS[path.suffix[1:]](expected)


BIG5 = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=big5\\n"\n# '


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"caf\xe9", "a.txt: damaged or not UTF-8 text (byte 4); save the file as UTF-8"),
        ("a.txt", b"\xff\xfea", "a.txt: damaged or not UTF-16-LE text"),
        ("a.txt", b"a\0b", "a.txt: has a null character (character 2), so it is no text"),
        ("a.srt", b"Hello", "a.srt: has no times such as 00:00:01,000 --> 00:00:04,000, so it is not a .srt file"),
        ("a.vtt", b"Hello", "a.vtt: is not WebVTT, whose first line is WEBVTT"),
        ("a.po", b"Hello", "a.po, line 1: expected msgid, msgstr, a quoted string or a comment"),
        ("a.po", b'msgid "a\n', "a.po, line 1: expected a string in quotes"),
        ("a.po", b'msgid "a"\nmsgid_plural "b"\n', "a.po, line 1: the entry has no msgstr"),
        ("a.po", b"# a comment\n", "a.po: has no entries (msgid and msgstr), so it is not a .po file"),
        ("a.po", b'msgid "a"\nmsgstr ""\nmsgstr ""\n', "a.po, line 3: msgstr is there twice in an entry"),
        ("a.po", b'msgctxt "c"\n\nmsgctxt "d"\nmsgid "a"\nmsgstr ""\n', "a.po, line 1: the entry has no msgid"),
        ("a.txt", "one".encode("utf-32"), "a.txt: the encoding 'utf-32' is not supported; save the file as UTF-8"),
        ("a.po", BIG5 + b"\xa2\xce\n", "a.po: the big5 text has several spellings of a character; save it as UTF-8"),
        ("a.md", b"a " * 50_001, "a.md: has a paragraph of 100002 characters, but at most 100,000 are possible"),
        ("a.po", b'msgid ""\nmsgstr "Content-Type: text/plain; charset=idna\\n"\n', "a.po: the encoding 'idna' is not"),
        ("a.json", b'{"a": ', "a.json: damaged or not JSON"),
        ("a.json", b"[" * 100_000, "a.json: damaged or not JSON (nested too deeply)"),
        ("a.csv", b'id,text\n1,"a\n', "a.csv, line 2: the quotes of a field do not match"),
        ("a.csv", b"id,title\n1,a\n", "a.csv: has no column 'text' (--column); the first row has id, title"),
        ("a.xls", b"", "a.xls: is no document that can be translated; the formats are txt, md,"),
    ],
)
def test_invalid_files_are_reported_in_one_sentence(name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(Path(name), data) if name.endswith(".csv") else parse_document(data, name)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_placeholders_that_the_model_keeps_stay_where_it_puts_them() -> None:
    def swap(requests: list[object]) -> list[AlignedTranslation]:
        return [AlignedTranslation("{b} und {a}") for _ in requests]

    document = parse_document(b'["{a} and {b}"]', "a.json")
    data, report = translate_document(document, swap)  # type: ignore[arg-type]
    assert data == b'["{b} und {a}"]'
    assert report.placed == []


def test_positional_placeholders_keep_their_order() -> None:
    document = parse_document(b'["%s of %d apples"]', "a.json")
    data, report = translate_document(document, reverse)
    assert data == b'["APPLES %s %d OF"]'
    assert report.placed == [{"where": "$[0]", "placeholders": ["%s", "%d"]}]
    placed = "placeholders placed by the alignment in 1 segments, the first in $[0]: %s %d"
    assert placed in list(report.lines())


def test_sentences_to_which_the_model_adds_a_placeholder_stay_in_the_source_language() -> None:
    document = parse_document(b"I love apples.\n", "a.txt")
    data, report = translate_document(document, lambda requests: [AlignedTranslation("%s {x}") for _ in requests])
    assert data == b"I love apples.\n"
    assert [(one.where, one.reason) for one in report.untranslated] == [("line 1", "the model adds a placeholder")]


@pytest.mark.parametrize(
    ("translation", "kept"),
    [
        ("see https://a.org/x (now) {n}", True),
        ("see https://a.org/x(now) {n}", False),
        ("see https://a.org/x在 {n}", False),
        ("see https://a.org/x (now) ${n}", False),
        ("see https://a.org/x (now)", False),
    ],
)
def test_placeholders_are_compared_as_they_are_read(translation: str, kept: bool) -> None:
    assert keeps(translation, ["https://a.org/x", "{n}"]) == kept


def test_placeholders_are_separated_from_what_would_become_part_of_them() -> None:
    document = parse_document(b"https://a.org/x (see) it.\nWe buy {n}.\n", "a.txt")
    assert translate_document(document, reverse)[0] == b"IT. https://a.org/x (SEE)\n{n}. BUY wE\n"


@pytest.mark.parametrize(
    ("value", "is_text"),
    [
        ("Loading...", True),
        ("Really?", True),
        ("Sign-in", True),
        ("有3个苹果", True),
        ("<b>Hello</b>", True),
        ("my-button", False),
        ("iconHome", False),
        ("zh-Hans", False),
        ("v1.2", False),
        (r"^([\p{L}]*)$", False),
    ],
)
def test_values_that_are_names_are_not_translated(value: str, is_text: bool) -> None:
    document = parse_document(json.dumps([value]).encode(), "a.json")
    assert (len(document.segments), len(document.untranslated)) == (is_text, not is_text)


def test_paragraphs_without_letters_and_digits_are_no_segments() -> None:
    document = parse_document(OFFICE_FILES["plain.docx"](), "plain.docx")
    texts = [segment.content.text for segment in document.segments]
    assert texts == ["I love apples. We buy tea.", "42", "The end", "You see cats"]


def test_the_report_lists_what_is_not_translated() -> None:
    document = parse(Path(__file__).parent / "files" / "messages.json")
    _, report = translate_document(document, identity)
    found = {one.where: one.reason for one in report.untranslated}
    assert found == {
        "$.app.icon": "looks like an identifier",
        "$.app.url": "no words",
        "$.app.plural": "ICU message",
        "$.color": "looks like an identifier",
        "$.lang": "looks like an identifier",
    }
    assert "not translated, looks like an identifier: 3 ($.app.icon, $.color, $.lang)" in list(report.lines())


def test_keys_far_from_their_colons_are_no_values() -> None:
    text = '{"one x"%s: "two y"}' % (" " * 300)
    document = parse_document(text.encode(), "a.json")
    assert [segment.content.text for segment in document.segments] == ["two y"]


def test_values_of_one_key_are_translated() -> None:
    document = parse_document(b'{"a": "one x", "b": ["two x", {"a": "id_x"}]}', "a.json", key="a")
    data, report = translate_document(document, reverse)
    assert data == b'{"a": "X ONE", "b": ["two x", {"a": "ID_X"}]}'
    assert [one.where for one in report.untranslated] == ["$.b[0]"]


def test_columns_are_found_by_number_and_options_of_other_formats_are_rejected() -> None:
    document = parse_document(b"one x,two y\nthree z,four v\n", "a.csv", column="1")
    assert translate_document(document, reverse)[0] == b"one x,Y TWO\nthree z,V FOUR\n"
    with pytest.raises(UserError, match=r"files of the format txt have no column; omit --column"):
        parse_document(b"", "a.txt", column="1")


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ('<tuv xml:lang="zh"><seg></seg></tuv>', '<tuv xml:lang="zh"><seg>X ONE</seg></tuv>'),
        ('<tuv xml:lang="zh"><seg/></tuv>', '<tuv xml:lang="zh"><seg>X ONE</seg></tuv>'),
        ('<tuv xml:lang="zh"><seg  x="1" /></tuv>', '<tuv xml:lang="zh"><seg  x="1">X ONE</seg></tuv>'),
        ('<tuv xml:lang="de"/>', '<tuv xml:lang="de"/><tuv xml:lang="zh"><seg>X ONE</seg></tuv>'),
        ('<tuv xml:lang="zh"><seg>y</seg></tuv>', "already translated"),
        ('<tuv xml:lang="zh"/>', "its translation lacks <seg>"),
    ],
)
def test_empty_segments_of_a_translation_memory_are_filled(variant: str, expected: str) -> None:
    text = '<tmx><body><tu><tuv xml:lang="en"><seg>one x</seg></tuv>{}</tu></body></tmx>'
    data, report = translate_document(parse(Path("a.tmx"), text.format(variant).encode()), reverse)
    if report.untranslated:
        assert [one.reason for one in report.untranslated] == [expected]
        assert data.decode() == text.format(variant)
    else:
        assert data.decode() == text.format(expected)


def test_repeated_spaces_are_written_with_the_namespace_prefix_of_the_file() -> None:
    def rename(match: re.Match[bytes]) -> bytes:
        return match[1] + b"t:" if match[1] else b"xmlns:t="

    data = OFFICE_FILES["rich.odt"]()
    buffer = BytesIO()
    with ZipFile(BytesIO(data)) as before, ZipFile(buffer, "w") as after:
        for name in before.namelist():
            after.writestr(name, re.sub(rb"(</?|\s)text:|(xmlns:)text=", rename, before.read(name)))
    document = parse(Path("a.odt"), buffer.getvalue())
    translated, _ = translate_document(document, lambda many: [AlignedTranslation(one.text.upper()) for one in many])
    content = members(translated)["content.xml"].decode()
    assert "TWO <t:s/><t:s/>SPACES" in content and "<text:" not in content


def nested_fields(separator: str) -> bytes:
    def mark(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    def run(text: str) -> str:
        return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'

    code = "<w:r><w:instrText>REF a</w:instrText></w:r>"
    inner = mark("begin") + code + mark("separate") + run("in") + mark("end")
    outer = mark("begin") + code + separator + run("out ") + inner + mark("end")
    return docx_of(f"<w:p {{ns}}>{run('one ')}{outer}{run(' two')}</w:p>")


@pytest.mark.parametrize("separated", [True, False])
def test_fields_with_a_result_are_pairs(separated: bool) -> None:
    separator = '<w:r><w:fldChar w:fldCharType="separate"/></w:r>' if separated else ""
    document = parse(Path("a.docx"), nested_fields(separator))
    [segment] = document.segments
    elements = segment.content.elements
    nested = [len(element.children) for element in elements]
    assert segment.content.text == "one out in two"
    assert nested == ([1] if separated else [0, 0, 0, 0])


def add_end(requests: Requests) -> list[AlignedTranslation]:
    return [AlignedTranslation(f"{one.text.upper().strip()}。") for one in requests]


UNIT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv>{}</tu>'
ADDED = '<tuv xml:lang="zh"><seg>Y X</seg></tuv>'
MEMORY = '<tmx version="1.4"><header srclang="en"/><body>{}{}</body></tmx>'
TRANSUNIT = '<xliff version="1.2"><file><body><trans-unit id="1">{}</trans-unit></body></file></xliff>'
CDATA = "<source><![CDATA[a <b> & c]]></source>"
DIVIDED = TRANSUNIT.format('<source>x y</source><seg-source><mrk mtype="seg">x y</mrk></seg-source>')
META = '<img content="x y" alt=\'x y\'><meta name="description" content="x y">'


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("blank unit.tmx", MEMORY.format(UNIT.format(" ", ""), UNIT.format("x y", "")), None),
        ("CDATA.xlf", TRANSUNIT.format(CDATA), TRANSUNIT.format(f"{CDATA}<target>C &amp; &lt;B&gt; A</target>")),
        ("divided.xlf", DIVIDED, DIVIDED),
        ("short row.csv", "id,text\n1\n2,x y\n", "id,text\n1\n2,Y X\n"),
        ("meta.html", META, META.replace("alt='x y'", "alt='Y X'").replace('n" content="x y', 'n" content="Y X')),
        ("quoted tag.json", '["use `<b>` now <i>two</i> words"]', '["WORDS <i>TWO</i> `<b>` NOW USE"]'),
        ("code.json", '["a <code>x y</code> b c"]', '["C <code>x y</code>B A"]'),
        ("unclosed code.json", '["a <code>b c"]', '["<code>C B A"]'),
        ("escapes.po", r'msgid "\101 \x42 \q"|msgstr ""|'.replace("|", "\n"), None),
        ("bytes.po", r'msgid "caf\303\251 \xe6\x88\x91 \\303"|msgstr ""|'.replace("|", "\n"), None),
        ("protected.txt", "a `b. C` d. E f.", "`b. C` D. A F. e"),
        ("bold label.md", "- [ ] **x** y\n- [x]  x *y*\n", "- [ ] Y **X**\n- [x]  *Y* X\n"),
        ("space in bold.html", "<p> <b>x y </b> </p>", "<p> <b>Y X </b> </p>"),
        ("bold twice.html", "<p><b> <i>x</i> <u>y</u></b></p>", "<p> <b><u>Y</u> <i>X</i></b></p>"),
    ],
)  # fmt: skip
def test_small_documents_are_translated(name: str, source: str, expected: str | None) -> None:
    expected = {
        "blank unit.tmx": MEMORY.format(UNIT.format(" ", ""), UNIT.format("x y", ADDED)),
        "bytes.po": source.replace('msgstr ""', r'msgstr "\\303 我 CAFÉ"'),
        "escapes.po": source.replace('msgstr ""', 'msgstr "Q b a"'),
    }.get(name, expected)
    column = "text" if name.endswith(".csv") else None
    document = parse_document(source.encode(), name, languages=("en", "zh"), column=column)
    assert translate_document(document, reverse)[0].decode() == expected


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_detected_with_and_without_a_mark(codec: str) -> None:
    for mark in (b"", codecs.BOM_UTF16_LE if codec == "utf-16-le" else codecs.BOM_UTF16_BE):
        document = parse_document(mark + "x y".encode(codec), "a.txt")
        assert translate_document(document, reverse)[0] == mark + "Y X".encode(codec)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("a.xlf", DIVIDED, "divided into segments, which XLIFF 1.2 leaves to other programs"),
        ("a.csv", "id,text\n1\n2,x y\n", "the row is too short"),
        ("a.md", "- *[ ] x y*\n", "its label is inside markup"),
    ],
)
def test_what_is_left_out_is_reported(name: str, source: str, reason: str) -> None:
    column = "text" if name.endswith(".csv") else None
    data, report = translate_document(parse_document(source.encode(), name, column=column), identity)
    assert data.decode() == source
    assert [one.reason for one in report.untranslated] == [reason]


def test_check_boxes_without_text_are_not_reported() -> None:
    _, report = translate_document(parse_document(b"- [ ] \n- [x] x y\n", "a.md"), identity)
    assert [one.text for one in report.untranslated] == ["[ ]"]  # parsed as text


def test_segments_with_too_much_markup_are_left_out() -> None:
    source = b"<p>" + b"<b>a</b> " * 3300 + b"</p>"
    data, report = translate_document(parse_document(source, "a.html"), reverse)
    assert data == source
    assert [one.reason for one in report.untranslated] == [TOO_MARKED]


def test_placeholders_at_the_end_stay_before_the_punctuation() -> None:
    data, _ = translate_document(parse_document(b"one %s!\n", "a.txt"), add_end)
    assert data.decode() == "ONE %s!。\n"


def test_texts_without_words_are_not_aligned() -> None:
    assert align_by_length("…", "one") == []
    (span,) = align_by_length("one", "eins")
    assert (span.source, span.target) == ((0, 3), (0, 4))


def test_deleted_text_and_paragraphs_without_words_of_odt_are_kept() -> None:
    namespaces = 'xmlns:o="urn:x" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    content = (
        f"<o:d {namespaces}><text:tracked-changes><text:p>x z</text:p></text:tracked-changes>"
        "<text:p>x y</text:p><text:p>… –</text:p></o:d>"
    )
    source = OFFICE_FILES["letter.odt"]()
    data, _ = translate_document(parse_document(rezip(source, content=content.encode()), "a.odt"), reverse)
    assert members(data)["content.xml"].decode() == content.replace("x y", "Y X")


@pytest.mark.parametrize(("text", "six"), [("one **two** six", (8, 11)), ("one six **two**", (4, 7))])
def test_emphasis_of_words_that_are_not_aligned_is_put_around_an_aligned_word(text: str, six: tuple[int, int]) -> None:
    spans = [AlignedSpan((0, 3), (0, 2)), AlignedSpan(six, (6, 8))]
    data, report = translate_document(
        parse(Path("a.md"), text.encode()), lambda _: [AlignedTranslation("ab cd ef", spans)]
    )
    assert (data, report.untranslated) == (b"ab cd **ef**", [])


def test_strings_of_a_catalog_have_a_line_for_each_line_of_the_text() -> None:
    assert quote("a") == '"a"'
    assert quote("a\n") == r'"a\n"'
    assert quote("a\nb", "\r\n") == '""\r\n"a\\n"\r\n"b"'
