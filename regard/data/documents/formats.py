"""The formats of documents, by the suffixes of their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import PurePath

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
    """

    suffixes: tuple[str, ...]
    module: str
    function: str = "parse"
    media_type: str = "text/plain"
    option: str | None = None


FORMATS: Mapping[str, Format] = {
    "txt": Format((".txt",), "plain"),
    "md": Format((".md", ".markdown"), "markdown", media_type="text/markdown"),
    "srt": Format((".srt",), "subtitles", "parse_srt", "application/x-subrip"),
    "vtt": Format((".vtt",), "subtitles", "parse_vtt", "text/vtt"),
    "po": Format((".po", ".pot"), "po", media_type="text/x-gettext-translation"),
    "json": Format((".json",), "json_values", media_type="application/json", option="key"),
    "csv": Format((".csv",), "csv_column", media_type="text/csv", option="column"),
}


def find_format(name: str) -> str | None:
    """Return the format of a file by its suffix, or None."""
    suffix = PurePath(name).suffix.lower()
    return next((format for format, one in FORMATS.items() if suffix in one.suffixes), None)


def parse_document(data: bytes, name: str, format: str | None = None, **options: str | None) -> Document:
    """Parse a document.

    Args:
        data: The file.
        name: Its name, for the format and for errors.
        format: The format, by default that of the suffix.
        options: The column of a CSV file, or the key of a JSON file.

    Raises:
        UserError: The format is unknown, the file is damaged or hostile, or an option does not belong to the format.
    """
    format = format or find_format(name)
    if format is None or format not in FORMATS:
        raise UserError(f"{name}: is no document that can be translated; the formats are {', '.join(FORMATS)}")
    chosen = FORMATS[format]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {chosen.option}:
        raise UserError(f"{name}: files of the format {format} have no {option}; omit --{option}")
    parse = getattr(import_module(f"regard.data.documents.{chosen.module}"), chosen.function)
    document: Document = partial(parse, **given)(data, name)
    return document
