"""Word and OpenDocument files for tests, written by python-docx and odfdo, with XML that these cannot write."""

import io
import zipfile
from collections.abc import Callable

from docx import Document
from docx.enum.text import WD_BREAK
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from odfdo import Document as OdfDocument
from odfdo import Element, Header, Link, List, ListItem, Note, Paragraph, Table


def _docx_bytes(document: object) -> bytes:
    target = io.BytesIO()
    document.save(target)  # type: ignore[attr-defined]
    return target.getvalue()


def letter_docx() -> bytes:
    """A letter with formats, a tab, a line break, a header, a footer, a table and a list."""
    document = Document()
    document.sections[0].header.paragraphs[0].text = "Apple shop"
    document.sections[0].footer.paragraphs[0].text = "Page footer text"
    document.add_heading("I love apples", level=1)
    paragraph = document.add_paragraph("Dear ")
    paragraph.add_run("Anna").bold = True
    paragraph.add_run(", we buy ")
    run = paragraph.add_run("two books")
    run.italic = run.bold = True
    paragraph.add_run(" and {count} cats.")
    tabbed = document.add_paragraph("Name:\tTom")
    tabbed.runs[0].add_break(WD_BREAK.LINE)
    tabbed.add_run("Second line here")
    document.add_paragraph("First item", style="List Bullet")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ("Fruit", "Price", "Apples", "12.50"), strict=True):
        cell.text = text
    return _docx_bytes(document)


RICH = """<w:p {ns}>
  <w:bookmarkStart w:id="1" w:name="here"/>
  <w:r><w:t xml:space="preserve">Children see </w:t></w:r>
  <w:hyperlink w:anchor="here"><w:r><w:rPr><w:rStyle w:val="Hyperlink"/></w:rPr><w:t>the dogs</w:t></w:r></w:hyperlink>
  <w:bookmarkEnd w:id="1"/>
  <w:r w:rsidR="00A1"><w:rPr><w:lang w:val="en-US"/></w:rPr><w:t xml:space="preserve"> and a sec</w:t></w:r>
  <w:proofErr w:type="spellStart"/>
  <w:r w:rsidR="00A2"><w:t>ret</w:t></w:r>
  <w:del w:id="2" w:author="A"><w:r><w:delText>deleted</w:delText></w:r></w:del>
  <w:ins w:id="3" w:author="A"><w:r><w:t xml:space="preserve"> tea</w:t></w:r></w:ins>
  <w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> REF here </w:instrText></w:r>
  <w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>field text</w:t></w:r>
  <w:r><w:fldChar w:fldCharType="end"/></w:r>
  <w:r><w:t>one</w:t><w:tab/><w:t>two tabs</w:t><w:br/><w:t>here &lt;x&gt;</w:t></w:r>
</w:p>"""
BOX = """<w:p {ns} xmlns:v="urn:schemas-microsoft-com:vml"><w:r><w:t>Before the box</w:t></w:r><w:r><w:pict><v:shape>
<v:textbox><w:txbxContent><w:p><w:r><w:t>They want books</w:t></w:r></w:p></w:txbxContent></v:textbox></v:shape>
</w:pict></w:r><w:r><w:t xml:space="preserve"> after it</w:t></w:r></w:p>"""
SDT = """<w:p {ns}><w:sdt><w:sdtPr><w:alias w:val="x"/></w:sdtPr><w:sdtContent><w:r><w:t>Your name</w:t></w:r>
</w:sdtContent></w:sdt><w:fldSimple w:instr=" PAGE "><w:r><w:t>3</w:t></w:r></w:fldSimple></w:p>"""


def rich_docx() -> bytes:
    """Links, fields, tracked changes, bookmarks, a text box and a content control."""
    return docx_of(SDT, BOX, RICH)


def docx_of(*paragraphs: str) -> bytes:
    """Return a document of paragraphs as XML, in which {ns} stands for the namespaces."""
    document = Document()
    for source in reversed(paragraphs):
        document.element.body.insert(0, parse_xml(source.format(ns=nsdecls("w"))))
    return _docx_bytes(document)


def plain_docx() -> bytes:
    """Paragraphs without formats, empty ones, numbers, and a comment by python-docx."""
    document = Document()
    run = document.add_paragraph("I love apples. We buy tea.").runs[0]
    document.add_comment(run, text="You see cats", author="Ann", initials="A")
    for text in ("", "42", "  ", "— …", "The end"):
        document.add_paragraph(text)
    return _docx_bytes(document)


def _odt_bytes(document: OdfDocument) -> bytes:
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()


def _odt(*elements: Element) -> bytes:
    document = OdfDocument("text")
    document.body.clear()
    for element in elements:
        document.body.append(element)
    return _odt_bytes(document)


def letter_odt() -> bytes:
    """A heading, spans, a link, a list and a table."""
    paragraph = Paragraph("Dear Anna, we buy two books and {count} cats.")
    paragraph.set_span("Strong_20_Emphasis", regex="two books")
    link = Paragraph("Read ")
    link.append(Link("https://example.org/a?b=1", text="the manual"))
    link.append(Element.from_tag("<text:span> now.</text:span>"))
    table = Table("Prices", width=2, height=2)
    table.set_values([["Fruit", "Price"], ["Apples", 12.5]])
    return _odt(Header(1, "I love apples"), paragraph, link, List([ListItem("First item"), ListItem("Tea")]), table)


def rich_odt() -> bytes:
    """A note, a comment, tabs, line breaks, spaces, bookmarks and a frame with text."""
    noted = Paragraph("Children see dogs")
    noted.insert_note(after="dogs", note_id="n1", citation="1", body="They want books")
    noted.insert_annotation(body="You see cats", creator="Ann", after="Children")
    xml = (
        '<text:p>Name:<text:tab/>Tom<text:line-break/>Two<text:s text:c="3"/>spaces <text:bookmark text:name="b"/>'
        '<text:span text:style-name="T1">all <text:span text:style-name="T2">nested</text:span></text:span>'
        " &lt;x&gt;</text:p>"
    )
    frame = (
        '<text:p>A frame <draw:frame draw:name="f"><draw:text-box><text:p>We want tea</text:p></draw:text-box>'
        "</draw:frame>stands here</text:p>"
    )
    return _odt(noted, Element.from_tag(xml), Element.from_tag(frame))


def plain_odt() -> bytes:
    """Empty paragraphs, numbers, and text on several lines of the file."""
    text = Element.from_tag("<text:p>I love apples.\n    We buy tea.</text:p>")
    return _odt(Paragraph(""), Paragraph("42"), text, Note("footnote", "n", "1", "Old note"), Paragraph("The end"))


OFFICE_FILES: dict[str, Callable[[], bytes]] = {
    "letter.docx": letter_docx,
    "rich.docx": rich_docx,
    "plain.docx": plain_docx,
    "letter.odt": letter_odt,
    "rich.odt": rich_odt,
    "plain.odt": plain_odt,
}


def members(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive in their order."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def rezip(data: bytes, **changes: bytes) -> bytes:
    """Return an archive with other contents of files, which are named by their end."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members(data).items():
            stem = name.rpartition("/")[2].partition(".")[0]
            file.writestr(name, changes.get(stem, content))
    return target.getvalue()
