"""Documents as the input of `regard translate`."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli import options
from regard.console import Interrupted, Interruptions, LineProgress
from regard.data.documents.formats import FORMATS, find_format, parse_document
from regard.errors import UserError
from regard.files import read_bytes, replace_file
from regard.models.folder import find_model_folder

if TYPE_CHECKING:
    from regard.decoding.settings import DecodingSettings
    from regard.pipelines.constraints import Constraints
    from regard.pipelines.translate_document import Journal
    from regard.pipelines.translator import Translator

LINES = "lines"
"""The format of files with a text in each line."""


def choose_format(source: Path, format: str | None, column: str | None) -> str | None:
    """Return the format of a document; None for a file with a text in each line."""
    if format is not None and format != LINES and format not in FORMATS:
        raise UserError(f"--format {format}: unknown; choose {LINES}, {', '.join(FORMATS)}")
    found = find_format(source.name) or ("csv" if column is not None and source.suffix.lower() == ".tsv" else None)
    if format is None and found == "txt":  # by default the lines of a text file are translated as they are read
        return None
    chosen = format or found
    return None if chosen == LINES else chosen


def check(source: Path, output: Path | None, format: str, rejected: Mapping[str, object]) -> None:
    """Reject missing and contradicting options before a model is loaded."""
    options.reject_options(f"the document {source}", rejected)
    if output is None:
        raise UserError(f"{source} is a document; name the file to write with --output, or use --format {LINES}")
    if find_format(output.name) not in (None, "txt", format):
        endings = " or ".join(FORMATS[format].suffixes)
        raise UserError(
            f"{output}: has the format of {source}, which is {format}; choose a name that ends in {endings}"
        )


def translate(
    source: Path,
    output: Path,
    load: Callable[[], Translator],
    runs: Sequence[Path],
    settings: DecodingSettings,
    constraints: Constraints | None,
    *,
    format: str,
    as_json: bool,
    conditions: Mapping[str, Any],
    key: str | None = None,
    column: str | None = None,
) -> None:
    """Translate a document and print what was not translated.

    Args:
        source: The document.
        output: The file to write.
        load: Loads the model.
        runs: Folders of the model.
        settings: Settings of the search.
        constraints: Constraints of all sentences.
        format: Format of the document.
        as_json: Whether the report is printed as JSON.
        conditions: Options on which the translations depend.
        key: Key of a JSON file whose values are translated.
        column: Column of a CSV file.
    """
    from regard.data.text.languages import warn_of_other_language
    from regard.data.text.sentences import LengthWarnings
    from regard.pipelines.translate_document import Journal, translate_document, translate_with

    if output.exists():  # with --resume
        typer.echo(f"regard: {output} is complete", err=True)
        return
    data = read_bytes(source)
    translator = load()
    translator.check_settings(settings)  # before the journal is written
    languages = ("", "") if translator.languages == ("source", "target") else translator.languages
    document = parse_document(data, str(source), format, languages, key=key, column=column)
    texts = (segment.content.text for segment in document.segments)
    deque(warn_of_other_language(texts, translator.languages[0], "text"), maxlen=0)
    depends_on = {"settings": settings.model_dump(mode="json"), **conditions, "model": _describe(runs)}
    depends_on |= {"languages": list(translator.languages)}
    journal = Journal(output.with_name(f"{output.name}.journal"), depends_on)
    if journal.discarded:
        typer.echo(f"regard: {journal.path} belongs to another model or other options; starting again", err=True)
    warnings = LengthWarnings("sentence")
    with _progress(journal, len(document.segments), not as_json) as (interruptions, progress):
        data, report = translate_document(
            document,
            translate_with(translator, settings, constraints, warnings),
            translator.fits,
            journal,
            progress.advance,
            interruptions.defer,
        )
        with interruptions.defer(), replace_file(output) as temporary:
            temporary.write_bytes(data)
    journal.remove()
    warnings.log()
    if as_json:
        typer.echo(json.dumps({"input": str(source), "format": format, **report.to_json()}, ensure_ascii=False))
        return
    for line in report.lines():
        typer.echo(f"regard: {line}", err=True)


@contextmanager
def _progress(journal: Journal, total: int, shown: bool) -> Iterator[tuple[Interruptions, LineProgress]]:
    """Show the progress; on an interruption print how to continue and exit."""
    with Interruptions() as interruptions:
        try:
            with LineProgress(total, shown=shown, noun="segments") as progress:
                yield interruptions, progress
        except Interrupted as interrupted:
            done = f"; {journal.path} has the translations of {len(journal)} segments" if len(journal) else ""
            typer.echo(f"regard: interrupted{done}; continue with the same command", err=True)
            sys.exit(128 + interrupted.signal)


def _describe(runs: Sequence[Path]) -> list[Any]:
    """Return the names, sizes and times of the files of models."""
    described: list[Any] = [version("regard")]
    for run in runs:
        folder = run if not run.is_dir() else _model_folder(run)
        files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        stats = [(path.name, path.stat()) for path in files]
        described.append([[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats])
    return described


def _model_folder(run: Path) -> Path:
    try:
        return find_model_folder(run)
    except UserError:
        return run  # such as an exported model
