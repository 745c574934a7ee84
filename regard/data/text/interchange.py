"""Sentence pairs in TMX (translation memories) and XLIFF files, read as a stream in bounded memory, and written as TMX.

Inline codes of other programs are omitted, and the text that they enclose is kept. Entities cannot be declared, so that
a small file does not become a large text.

Here, the files are corpora. `regard.data.documents.bilingual` translates files of the same formats in place.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from regard.data.text.compression import open_decompressed, report_damaged
from regard.data.text.languages import match_language
from regard.errors import UserError

SUFFIXES = (".tmx", ".xlf", ".xliff")
CHUNK = 2**16
MAX_UNIT = 2**20
"""Maximum number of characters in a unit."""
MAX_DEPTH = 256
CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "sc", "ec", "cp"})
"""Elements whose content is code, and not text."""
ALTERNATIVES = frozenset({"alt-trans", "matches"})
"""Elements with suggestions of other programs."""
UNSET = ("source", "target")
"""The default keys of a corpus, which select no languages."""


class Unit(NamedTuple):
    """The texts of a unit by language, and the line on which it starts."""

    texts: dict[str, str]
    line: int


def read_interchange(path: Path, languages: tuple[str, str] = UNSET) -> Iterator[tuple[str, str]]:
    """Read the pairs of a .tmx, .xlf or .xliff file, which may be compressed. Units that lack a side are skipped.

    Args:
        path: The file.
        languages: Codes of the source and the target language, such as ("en", "zh"); "en" also stands for "en-GB". By
            default those of the first complete unit of a file with two languages.
    """
    chosen = None if languages == UNSET else languages
    seen: dict[str, None] = {}
    pairs = 0
    for unit in read_units(path):
        seen |= dict.fromkeys(unit.texts)
        if chosen is None:
            if len(seen) > 2:
                names = ", ".join(sorted(seen))
                raise UserError(f"{path}, line {unit.line}: has the languages {names}; set keys to two of them")
            if len(unit.texts) < 2:
                continue
            source, target = unit.texts
        else:
            found = [match_language(language, unit.texts) for language in chosen]
            if None in found or found[0] == found[1]:
                continue
            source, target = (str(language) for language in found)
        pairs += 1
        yield unit.texts[source], unit.texts[target]
    if not pairs:
        wanted = "two languages" if chosen is None else " and ".join(chosen)
        raise UserError(f"{path}: no unit has texts in {wanted}; its languages are {', '.join(seen) or 'not stated'}")


def read_languages(path: Path, languages: tuple[str, str] = UNSET) -> tuple[str, str] | None:
    """Return the languages of a file, source first; None if they are unknown."""
    if languages != UNSET:
        return languages
    for unit in read_units(path):
        if len(unit.texts) == 2:
            source, target = unit.texts
            return source, target
    return None


def read_units(path: Path) -> Iterator[Unit]:
    """Read the units of a file, each with its texts by language, source first."""
    reader = _Reader(path)
    with report_damaged(path), open_decompressed(path) as stream:
        while chunk := stream.read(CHUNK):
            reader.feed(chunk)
            yield from reader.take()
    reader.feed(b"", final=True)
    yield from reader.take()


class _Reader:
    """Collects the units of a TMX or XLIFF document from chunks of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._units = list[Unit]()  # complete, and not taken yet
        self._depth = 0  # of the current element
        self._alternatives_depth = 0  # of the current element in suggestions, which are skipped; 0 outside
        self._header_language = ""  # source language of a TMX file
        self._file_languages = ("", "")  # source and target language of an XLIFF file
        self._unit: dict[str, str] | None = None  # texts of the current unit by language
        self._line = 0  # on which the unit starts
        self._size = 0  # characters of the unit
        self._language = ""  # of the current segment
        self._text: list[str] | None = None  # of the current segment; None outside
        self._code_depth = 0  # of the current element in a code, whose content is omitted; 0 outside

        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._reject_entities

    def feed(self, chunk: bytes, final: bool = False) -> None:
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise UserError(
                f"{self._path}, line {error.lineno}: is not valid XML ({reason}); export it again"
            ) from None
        except (LookupError, ValueError):  # an encoding that Python does not know, or one of several bytes
            raise UserError(f"{self._where()}: has an encoding that is not supported; export it as UTF-8") from None

    def take(self) -> Iterator[Unit]:
        units, self._units = self._units, []
        yield from units

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        name = name.rpartition(":")[2]
        if self._depth == 1 and name not in ("tmx", "xliff"):
            raise UserError(f"{self._path}: is neither TMX nor XLIFF (its root element is <{name[:40]}>)")
        if self._depth > MAX_DEPTH:
            raise UserError(f"{self._where()}: elements are nested more than {MAX_DEPTH} deep")
        if self._alternatives_depth or name in ALTERNATIVES:
            self._alternatives_depth += 1
        elif self._text is not None:
            self._code_depth += bool(self._code_depth) or name in CODES
        elif name in ("tu", "trans-unit", "segment"):
            self._unit, self._size, self._line = {}, 0, self._parser.CurrentLineNumber
        elif name in ("xliff", "file"):
            source = attributes.get("source-language") or attributes.get("srcLang") or self._file_languages[0]
            target = attributes.get("target-language") or attributes.get("trgLang") or self._file_languages[1]
            self._file_languages = source, target
        elif name == "header":
            self._header_language = attributes.get("srclang", "")
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name in ("seg", "source", "target") and self._unit is not None:
            if name != "seg":
                self._language = self._file_languages[name == "target"] or name
            self._text, self._code_depth = [], 0

    def _end(self, name: str) -> None:
        self._depth -= 1
        name = name.rpartition(":")[2]
        if self._alternatives_depth:
            self._alternatives_depth -= 1
        elif self._text is not None and name in ("seg", "source", "target") and not self._code_depth:
            text = " ".join("".join(self._text).split())
            if self._unit is not None and text and self._language:
                self._unit.setdefault(self._language, text)
            self._text = None
        elif self._text is not None:
            self._code_depth -= bool(self._code_depth)
        elif name in ("tu", "trans-unit", "segment") and self._unit is not None:
            first = {language: text for language, text in self._unit.items() if language == self._header_language}
            self._units.append(Unit(first | self._unit, self._line))
            self._unit = None

    def _add_text(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_UNIT and self._unit is not None:
            raise UserError(
                f"{self._where()}: a unit has more than {MAX_UNIT:,} characters; is it a translation memory?"
            )
        if self._text is not None and not self._code_depth:
            self._text.append(text)

    def _reject_entities(self, *_: object) -> None:
        raise UserError(f"{self._where()}: declares an entity, which is not allowed; remove the declaration")

    def _where(self) -> str:
        return f"{self._path}, line {self._parser.CurrentLineNumber}"


# Writing

_START = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4">
  <header creationtool="regard" creationtoolversion="1" segtype="sentence" o-tmf="regard" adminlang="en" srclang={} \
datatype="plaintext"/>
  <body>
"""
_UNIT = """    <tu>
      <tuv xml:lang={}><seg>{}</seg></tuv>
      <tuv xml:lang={}><seg>{}</seg></tuv>
    </tu>
"""
_END = "  </body>\n</tmx>\n"


class TmxWriter:
    """Writes pairs as a translation memory; `write` is called with each part of the file."""

    def __init__(self, write: Callable[[str], object], languages: tuple[str, str]) -> None:
        self._write = write
        self._source, self._target = map(quoteattr, languages)
        write(_START.format(self._source))

    def add(self, source: str, target: str) -> None:
        self._write(_UNIT.format(self._source, _escape(source), self._target, _escape(target)))

    def close(self) -> None:
        """Write the end of the file."""
        self._write(_END)


def _escape(text: str) -> str:
    """Escape a text; characters that XML cannot contain become U+FFFD."""
    return escape(re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
