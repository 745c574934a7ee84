"""`regard translate`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.errors import UserError
from regard.runtime import choose_device

if TYPE_CHECKING:
    from regard.data.text.glossary import Glossary
    from regard.decoding.config import DecodingSettings
    from regard.pipelines.constraints import Constraints
    from regard.pipelines.memory import MemoryFile
    from regard.pipelines.record_counts import RecordCount
    from regard.pipelines.review import ReviewFile
    from regard.pipelines.translator import Translator

API_KEY = "REGARD_API_KEY"
"""Environment variable with the API key for --server."""
SERVER_OPTIONS = {
    "run",
    "text",
    "source",
    "key",
    "format",
    "column",
    "output",
    "resume",
    "server",
    "from_language",
    "to_language",
}


@options.add_search_options()
def translate(
    context: typer.Context,
    search: options.SearchOptions,
    run: Annotated[Path | None, typer.Argument(help="model folder or training run; omitted with --server")] = None,
    text: Annotated[list[str] | None, typer.Argument(help="texts; by default lines of --input")] = None,
    source: options.Input = None,
    key: options.Key = None,
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="lines or a document: txt, md, srt …; by default by the suffix")
    ] = None,
    column: Annotated[str | None, typer.Option(help="column of a .csv document: its name, or number from 0")] = None,
    output: Annotated[Path | None, typer.Option(help="output file; by default standard output")] = None,
    resume: options.Resume = False,
    as_json: Annotated[bool, typer.Option("--json", help="write a JSON object per line, with scores")] = False,
    n_best: Annotated[int | None, typer.Option(help="translations per line, as: line ||| text ||| score")] = None,
    alignments: Annotated[bool, typer.Option("--alignments", help="with --json: add cross-attention")] = False,
    reject: Annotated[
        float | None,
        typer.Option(metavar="CONFIDENCE", help="list lines below this confidence, or with flags, for review"),
    ] = None,
    split: Annotated[bool, typer.Option("--split/--no-split", help="split lines into sentences")] = True,
    others: options.Others = None,
    prefix: Annotated[str, typer.Option(help="text with which every translation starts")] = "",
    require: Annotated[list[str] | None, typer.Option(metavar="PHRASE", help="required phrase (repeatable)")] = None,
    forbid: Annotated[list[str] | None, typer.Option(metavar="PHRASE", help="forbidden phrase (repeatable)")] = None,
    glossary: options.Glossary = None,
    memory: options.Memory = None,
    memory_threshold: options.MemoryThreshold = None,
    output_memory: options.OutputMemory = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    server: Annotated[str | None, typer.Option(metavar="URL", help="server with LibreTranslate's API")] = None,
    from_language: options.FromLanguage = None,
    to_language: options.ToLanguage = None,
) -> None:
    """Translate texts given as arguments, the lines of a file or of standard input, or a document."""
    document = _choose_document(source, format, column) if source is not None else None
    if server is not None:
        if document is not None:
            raise UserError(f"{source} is a document, which --server does not translate; send it to /translate_file")
        texts = [*([str(run)] if run else []), *(text or [])]
        _check_server_options(context)
        _check_files(texts, source, key, output, resume)
        lines, total = (texts, len(texts)) if texts else options.read_input(source, key)
        languages = from_language, to_language
        translate_on_server(server, lines, total, output, resume, languages, _shows_progress(texts, output))
        return
    if run is None:
        raise UserError("translate needs a model folder or a training run, or --server with the address of one")
    languages = from_language, to_language
    if document is not None and source is not None and not text:
        from regard.cli import documents

        rejected = {
            "--output-memory": output_memory,
            "--n-best": n_best,
            "--alignments": alignments,
            "--no-split": not split,
            "--reject": reject,
        }
        documents.check(source, output, document, rejected | {"--prefix": prefix or None, "--require": require})
        _check_files(text, source, key, output, resume)
        assert output is not None
        terms = _read_glossary(glossary)

        def load_with_terms() -> Translator:
            translator = _load(run, others or (), device, engine, precision).select(*languages)
            translator.glossary = terms
            _open_memories(translator, memory, memory_threshold, None, False)
            return translator

        documents.translate(
            source,
            output,
            load_with_terms,
            [run, *(others or ())],
            search.settings(run),
            _parse_constraints("", (), forbid or ()),
            format=document,
            as_json=as_json,
            conditions={"device": device, "engine": engine, "precision": precision, "forbid": forbid}
            | {"glossary": _checksum(glossary), "memory": _checksum(memory), "threshold": memory_threshold},
            key=key,
            column=column,
        )
        return
    if alignments and not as_json:
        raise UserError("--alignments are written as JSON only; add --json")
    from regard.data.text.source_language import warn_of_other_language
    from regard.pipelines import translate_files as files
    from regard.pipelines.record_counts import Form, count_records

    settings = search.settings(run, n_best=n_best)
    form: Form = "json" if as_json else "n-best" if n_best is not None or settings.n_best > 1 else "text"
    _check_files(text, source, key, output, resume)
    finished = count_records(output, form, settings.n_best) if resume and output and output.exists() else None
    lines, total = (text, len(text)) if text else options.read_input(source, key)
    constraints = _parse_constraints(prefix, require or (), forbid or ())
    terms = _read_glossary(glossary)
    translator = _load(run, others or (), device, engine, precision).select(*languages)
    _check_settings(translator, settings, terms)
    new_memory = _open_memories(translator, memory, memory_threshold, output_memory, resume)
    lines = warn_of_other_language(lines, translator.languages[0], "line")
    review = None if reject is None else _open_review(translator, output, reject, finished)
    with (
        nullcontext() if review is None else review,
        nullcontext() if new_memory is None else new_memory,
        options.open_output(
            lambda stop: files.RecordFile(output, stop, finished), total, _shows_progress(text, output)
        ) as (records, progress),
    ):
        counts = files.translate_lines(
            translator,
            lines,
            records.append,
            settings,
            constraints,
            form=form,
            alignments=alignments,
            split=split,
            confidence=review is not None or (as_json and translator.quality.is_calibrated),
            flags=review is not None or as_json,
            review=None if review is None else review.add,
            done=records.count,
            on_progress=progress.advance,
            glossary_of=files.glossary_of_line,
            on_result=None if new_memory is None else new_memory.add,
        )
    if finished is not None and not counts.records:
        typer.echo(f"regard: {output} is complete: it holds the translations of all {records.count} lines", err=True)
    counts.lengths.log()
    if review is not None:
        listed = "" if review.path is None else f"; see {review.path}"
        typer.echo(f"regard: {review.count} of {records.count} lines need review{listed}", err=True)
    if counts.violations:
        typer.echo(
            f"regard: {counts.violations} of {counts.translations} translations violate --require or --forbid",
            err=True,
        )
    if counts.kept_terms < counts.terms:
        lost = counts.terms - counts.kept_terms
        typer.echo(f"regard: {lost} of {counts.terms} terms of the glossary are not in the translations", err=True)


def _choose_document(source: Path, format: str | None, column: str | None) -> str | None:
    """Return the format of a document; None for a file of lines."""
    from regard.cli.documents import choose_format

    chosen = choose_format(source, format, column)
    if chosen is None and column is not None:
        raise UserError("--column belongs to a .csv document; give --key for .tsv files")
    return chosen


def translate_on_server(
    url: str,
    lines: Iterable[str],
    total: int | None,
    output: Path | None,
    resume: bool,
    languages: tuple[str | None, str | None],
    shown: bool,
) -> None:
    """Write the server's translation of every line. The API key, if any, is read from the environment."""
    from regard.pipelines.record_counts import count_lines
    from regard.pipelines.translate_files import RecordFile, join_lines
    from regard.serving.client import Client

    client = Client(url, os.environ.get(API_KEY))
    source, target = client.choose_languages(*languages)
    finished = count_lines(output) if resume and output and output.exists() else None
    with options.open_output(lambda stop: RecordFile(output, stop, finished), total, shown) as (records, progress):
        remaining = iter(lines)
        if len(list(islice(remaining, records.count))) < records.count:
            raise UserError(f"{output} has more lines than the input, so it belongs to another input")
        for translation in client.translate(remaining, source, target):
            records.append(f"{join_lines(translation)}\n")
            progress.advance(1)


def _load(run: Path, others: Sequence[Path], device: str, engine: str | None, precision: str | None) -> Translator:
    if engine is None:
        from regard.pipelines.translator import Translator

        return Translator.load(run, *others, device=choose_device(device), precision=precision)
    from regard.interop.ctranslate2 import load_translator

    return load_translator(run, *others, device=choose_device(device), engine=engine, precision=precision)


def _check_settings(translator: Translator, settings: DecodingSettings, glossary: Glossary | None) -> None:
    """Set the glossary, and reject invalid settings before the output is opened."""
    translator.glossary = glossary
    translator.resolve_settings(settings)
    if glossary is not None:
        from regard.pipelines.term_search import request_with_terms

        translator.resolve_settings(settings, request_with_terms())


def _open_memories(
    translator: Translator, path: Path | None, threshold: float | None, output: Path | None, resume: bool
) -> MemoryFile | None:
    """Give the translator its memory, and return the new memory, if there is one."""
    if threshold is not None and path is None:
        raise UserError("--memory-threshold needs --memory, a translation memory")
    if output is not None and resume:
        raise UserError(
            "--output-memory holds all translations, and --resume translates only the remaining lines; omit one"
        )
    if path is not None:
        from regard.pipelines.memory import TranslationMemory

        translator.memory = TranslationMemory.read(path, translator.languages, 0.75 if threshold is None else threshold)
    if output is None:
        return None
    from regard.pipelines.memory import MemoryFile

    return MemoryFile(output, translator.languages)


def _checksum(path: Path | None) -> str | None:
    """Return what changes with the content of a file."""
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _read_glossary(path: Path | None) -> Glossary | None:
    """Read a glossary before a model is loaded."""
    if path is None:
        return None
    from regard.data.text.glossary import Glossary

    return Glossary.read(path)


def _open_review(
    translator: Translator, output: Path | None, threshold: float, finished: RecordCount | None
) -> ReviewFile:
    from regard.pipelines.review import ReviewFile

    if not 0 < threshold <= 1:
        raise UserError(f"--reject {threshold:g}: a confidence is between 0 and 1, such as 0.4")
    translator.quality.calibration  # noqa: B018  reports a missing calibration before the output is opened
    return ReviewFile(output, threshold, None if finished is None else finished.records)


def _parse_constraints(prefix: str, require: Sequence[str], forbid: Sequence[str]) -> Constraints | None:
    if not (prefix or require or forbid):
        return None
    from regard.pipelines.constraints import Constraints

    for option, phrases in (("--prefix", (prefix,)), ("--require", require), ("--forbid", forbid)):
        for phrase in phrases:
            if any("\ud800" <= character <= "\udfff" for character in phrase):
                raise UserError(f"{option} {phrase!r} contains a lone surrogate: the argument is not valid UTF-8")
    return Constraints(prefix, tuple(require), tuple(forbid))


def _shows_progress(text: Sequence[str] | None, output: Path | None) -> bool:
    """On a terminal, the translations themselves show the progress."""
    return not text and not (output is None and sys.stdout.isatty())


def _check_server_options(context: typer.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name)
        if name not in SERVER_OPTIONS and given is not None and given.name == "COMMANDLINE":
            raise UserError(f"{parameter.opts[0]} has no effect with --server; omit it")


def _check_files(
    text: Sequence[str] | None, source: Path | None, key: str | None, output: Path | None, resume: bool
) -> None:
    """Reject contradicting options before a model is loaded."""
    if text and source is not None:
        raise UserError(f"sentences are given both as arguments and in --input {source}; choose one")
    if key is not None and source is None:
        raise UserError("--key needs --input, a .jsonl or .tsv file")
    if output is not None:
        options.check_output(output, resume, [source])
    elif resume:
        raise UserError("--resume needs --output, the file to continue")
