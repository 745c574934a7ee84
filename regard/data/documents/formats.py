"""The formats of documents, by the suffixes of their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any

from regard.data.documents.document import Document
from regard.errors import UserError


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Attributes:
        suffixes: Suffixes of its files.
        module: Module with the parser.
        function: Name of the parser.
        media_type: Type of its files in HTTP.
        option: Name of the option of the parser, if there is one: "key" or "column".
        languages: Languages that the parser takes: "source" and "target".
        is_archive: Whether the files are zip archives.
    """

    suffixes: tuple[str, ...]
    module: str
    function: str = "parse"
    media_type: str = "text/plain"
    option: str | None = None
    languages: tuple[str, ...] = ()
    is_archive: bool = False


TAGS = {"zt": "zh-Hant"}
"""Tags of BCP 47, with which files name languages, for the codes of LibreTranslate that are none."""
FORMATS: Mapping[str, Format] = {
    "txt": Format((".txt",), "plain"),
    "md": Format((".md", ".markdown"), "markdown", media_type="text/markdown"),
    "html": Format((".html", ".htm", ".xhtml"), "html", media_type="text/html"),
    "srt": Format((".srt",), "subtitles", "parse_srt", "application/x-subrip"),
    "vtt": Format((".vtt",), "subtitles", "parse_vtt", "text/vtt"),
    "po": Format((".po", ".pot"), "po", media_type="text/x-gettext-translation"),
    "xliff": Format((".xliff", ".xlf"), "bilingual", "parse_xliff", "application/xliff+xml", languages=("target",)),
    "tmx": Format((".tmx",), "bilingual", "parse_tmx", "application/x-tmx+xml", languages=("source", "target")),
    "docx": Format(
        (".docx",),
        "docx",
        media_type="application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        is_archive=True,
    ),
    "odt": Format((".odt",), "odt", media_type="application/vnd.oasis.opendocument.text", is_archive=True),
    "json": Format((".json",), "json_values", media_type="application/json", option="key"),
    "csv": Format((".csv",), "csv_column", media_type="text/csv", option="column"),
}


def find_format(name: str) -> str | None:
    """Return the format of a file by its suffix, or None."""
    suffix = PurePath(name).suffix.lower()
    return next((format for format, one in FORMATS.items() if suffix in one.suffixes), None)


def parse_document(
    data: bytes,
    name: str,
    format: str | None = None,
    languages: tuple[str, str] = ("", ""),
    *,
    key: str | None = None,
    column: str | None = None,
    expanded: int | None = None,
) -> Document:
    """Parse a document.

    Args:
        data: The file.
        name: Its name, for the format and for errors.
        format: The format, by default that of the suffix.
        languages: Codes of the source and the target language.
        key: Key of a JSON file whose values are translated.
        column: Column of a CSV file.
        expanded: Maximum number of bytes of an expanded archive.

    Raises:
        UserError: The format is unknown, the file is damaged or hostile, or an option does not belong to the format.
    """
    format = format or find_format(name)
    if format is None or format not in FORMATS:
        raise UserError(f"{name}: is no document that can be translated; the formats are {', '.join(FORMATS)}")
    chosen = FORMATS[format]
    given = {option: value for option, value in (("key", key), ("column", column)) if value is not None}
    for option in given.keys() - {chosen.option}:
        raise UserError(f"{name}: files of the format {format} have no {option}; omit --{option}")
    known = {key: code for key, code in zip(("source", "target"), languages, strict=True) if key in chosen.languages}
    options: dict[str, Any] = given | {key: TAGS.get(code, code) for key, code in known.items() if code}
    if chosen.is_archive:
        options["expanded"] = expanded
    parse = getattr(import_module(f"regard.data.documents.{chosen.module}"), chosen.function)
    document: Document = parse(data, name, **options)
    return document
