"""Targets of tools/fuzz_files.py: documents, translation memories, glossaries and journals."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from pathlib import Path

from regard.data.documents.formats import parse_document
from regard.data.documents.marked_text import AlignedSpan
from regard.data.documents.segment_translation import AlignedTranslation, Requests
from regard.data.text.glossary import Glossary, read_texts_with_glossaries
from regard.data.text.readers import find_shards, read_parallel
from regard.files import read_bytes
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translate_document import Journal, translate_document
from regard.pipelines.translation_memory import MemoryFile, TranslationMemory
from tests.data.documents.office import OFFICE_FILES, members

SAMPLES = Path(__file__).parents[1] / "tests" / "data" / "documents" / "files"
LANGUAGES = ("en", "zh")
TRANSLATED = re.compile(r"word/(document|header1|footnotes)\.xml|content\.xml|styles\.xml|mimetype")


def reverse(requests: Requests) -> list[AlignedTranslation]:
    """Return every sentence in other case with its words in reverse order, so that markup moves."""
    results = []
    for request in requests:
        text, spans = "", []
        for word in reversed([*re.finditer(r"\S+", request.text)]):
            start = len(text)
            text += f"{word[0].swapcase()} "
            spans.append(AlignedSpan(word.span(), (start, len(text) - 1)))
        results.append(AlignedTranslation(text[:-1], spans))
    return results


# Documents


def write_documents(folder: Path) -> None:
    """Write samples of all formats. Archives are also written as folders of the files that are translated."""
    shutil.copytree(SAMPLES, folder, dirs_exist_ok=True)
    for name in ("letter.docx", "letter.odt"):
        (folder / name).write_bytes(OFFICE_FILES[name]())
    for name in ("rich.docx", "rich.odt"):
        for member, data in members(OFFICE_FILES[name]()).items():
            if TRANSLATED.fullmatch(member):
                path = folder / f"unpacked-{name}" / member
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


def read_document(folder: Path, changed: Path) -> None:
    """Translate the changed document; an unchanged rendering must be the file itself."""
    home = folder / changed.relative_to(folder).parts[0]
    data = _pack(home) if home.name.startswith("unpacked-") else read_bytes(changed)
    name = home.name
    key, column = ("text" if name == "rows.json" else None), ("text" if name.endswith(".csv") else None)
    document = parse_document(data, name, None, LANGUAGES, key=key, column=column, expanded=2**24)
    if not name.endswith((".docx", ".odt")):
        assert document.render({}) == data, "a document without translations has changed"
    translate_document(document, reverse, fits=lambda sentence: len(sentence) < 200)


def _pack(folder: Path) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(folder.rglob("*"), key=lambda path: (path.name != "mimetype", path)):
            if not path.is_dir():
                file.writestr(str(path.relative_to(folder)), read_bytes(path))
    return target.getvalue()


def write_journal(folder: Path) -> None:
    """Write the journal of a translated document."""
    shutil.copy(SAMPLES / "guide.md", folder / "unchanged")
    _translate_with_journal(folder)


def read_journal(folder: Path, changed: Path) -> None:
    """Translate the document again with the journal."""
    _translate_with_journal(folder)


def _translate_with_journal(folder: Path) -> None:
    document = parse_document((folder / "unchanged").read_bytes(), "guide.md")
    translate_document(document, reverse, cache=Journal(folder / "journal.jsonl", {"a": 1}))


# Translation memories and glossaries


def write_memories(folder: Path) -> None:
    """Write memories in TMX, XLIFF and TSV."""
    for name in ("memory.tmx", "app.xlf"):
        shutil.copy(SAMPLES / name, folder)
    (folder / "pairs.tsv").write_text("en\tzh\nI love tea.\t我喜欢茶。\n", encoding="utf-8")


def read_memory(folder: Path, changed: Path) -> None:
    """Read a file as a memory and as a corpus, and write a memory."""
    memory = TranslationMemory.read(changed, LANGUAGES)
    found = memory.find("I love teas.")
    new = folder / "new.tmx"
    with MemoryFile(new, LANGUAGES) as file:
        for match in found:
            file.add(Hypothesis(match.target, 0.0, source=match.source))
    if any(match.source.strip() and match.target.strip() for match in found):
        TranslationMemory.read(new, LANGUAGES)
    find_shards(changed)[0].languages()
    list(read_parallel(changed, keys=("source", "target") if changed.suffix == ".tsv" else LANGUAGES))


def write_glossaries(folder: Path) -> None:
    """Write a glossary, and texts with glossaries of their own."""
    terms = "en\tzh\n# food\nfile descriptor\t文件描述符\tnote\nfile\t文件\n\ncafé au lait\t牛奶咖啡\n"
    (folder / "terms.tsv").write_text(terms, encoding="utf-8")
    rows = [{"text": "I love files", "glossary": {"file": "文件"}}, {"text": "a", "glossary": [["a", "b"]]}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_glossary(folder: Path, changed: Path) -> None:
    """Read a glossary and find its terms."""
    if changed.suffix == ".tsv":
        glossary = Glossary.read(changed)
        glossary.find("Files have `file` file descriptors and cafés au lait <b>", "en")
        return
    for text in read_texts_with_glossaries(changed, "text"):
        if text.glossary is not None:
            text.glossary.find(text, "en")
