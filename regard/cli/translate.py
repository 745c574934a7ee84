"""`regard translate`: translates texts, files of lines, documents and shards."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options
from regard.cli.record_files import SEPARATOR, Form, RecordCount, RecordFile, count_lines, count_records
from regard.cli.shards import is_folder
from regard.errors import UserError
from regard.files import open_regular

if TYPE_CHECKING:
    from regard.console import Interruptions
    from regard.data.text.glossary import Glossary
    from regard.data.text.sentences import LengthWarnings
    from regard.decoding.settings import DecodingSettings
    from regard.pipelines.constraints import Constraints
    from regard.pipelines.hypothesis import Hypothesis
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


@options.add_shard_options
@options.add_search_options()
def translate(
    context: typer.Context,
    search_options: options.SearchOptions,
    shards: options.ShardOptions,
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
    """Translate texts given as arguments, the lines of a file or of standard input, a document, or shards."""
    if source is not None and is_folder(source):
        options.reject_options(
            "a folder of shards",
            {"a text": text, "--resume": resume, "--format": format, "--column": column, "--json": as_json}
            | {"--n-best": n_best, "--reject": reject, "--memory": memory, "--output-memory": output_memory}
            | {"--engine": engine, "--server": server},
        )
        if run is None:
            raise UserError("translate needs a model folder or a training run")
        shard_model = ModelOptions(
            run, others or (), device, None, precision, (from_language, to_language), glossary, None, None
        )
        constraints = _parse_constraints(prefix, require or (), forbid or ())
        _translate_shards(source, output, key, shard_model, search_options, constraints, split, shards)
        return
    shards.reject()
    document_format = None if source is None else _find_document_format(source, format, column)
    languages = from_language, to_language
    if server is not None:
        if document_format is not None:
            raise UserError(f"{source} is a document, which --server does not translate; send it to /translate_file")
        _check_server_options(context)
        texts = [*([str(run)] if run else []), *(text or [])]  # with --server, the first argument is a text, too
        translate_on_server(server, Files(texts, source, key, output, resume), languages)
        return
    if run is None:
        raise UserError("translate needs a model folder or a training run, or --server with the address of one")
    files = Files(text or [], source, key, output, resume, output_memory)
    model = ModelOptions(run, others or (), device, engine, precision, languages, glossary, memory, memory_threshold)
    if document_format is not None and not text:
        rejected = {
            "--output-memory": output_memory,
            "--n-best": n_best,
            "--alignments": alignments,
            "--no-split": not split,
            "--reject": reject,
            "--prefix": prefix or None,
            "--require": require,
        }
        _translate_document(files, document_format, column, model, search_options, forbid or (), as_json, rejected)
        return
    if alignments and not as_json:
        raise UserError("--alignments are written as JSON only; add --json")
    constraints = _parse_constraints(prefix, require or (), forbid or ())
    settings = search_options.settings(run, n_best=n_best)
    form: Form = "json" if as_json else "n-best" if n_best is not None or settings.n_best > 1 else "text"
    _translate_lines(files, model, settings, constraints, form, alignments, split, reject)


@dataclass(frozen=True)
class Files:
    """The texts, or the file that they are read from, and the files that are written.

    Attributes:
        texts: Texts given as arguments.
        source: File with the texts; None for standard input.
        key: Key or column of the file.
        output: File for the translations; None for standard output.
        resume: Whether an interrupted output is continued.
        output_memory: File for a new translation memory; None for none.
    """

    texts: Sequence[str]
    source: Path | None
    key: str | None
    output: Path | None
    resume: bool
    output_memory: Path | None = None

    def check(self) -> None:
        """Reject contradicting options before a model is loaded."""
        if self.texts and self.source is not None:
            raise UserError(f"sentences are given both as arguments and in --input {self.source}; choose one")
        if self.key is not None and self.source is None:
            raise UserError("--key needs --input, a .jsonl or .tsv file")
        if self.output is not None:
            options.check_output(self.output, self.resume, [self.source])
        elif self.resume:
            raise UserError("--resume needs --output, the file to continue")
        if self.output_memory is not None and self.output_memory == self.output:
            raise UserError(f"{self.output}: is both --output and --output-memory; choose two names")
        if self.output_memory is not None and self.resume:
            raise UserError(
                "--output-memory holds all translations, and --resume translates only the remaining lines; omit one"
            )

    def read(self) -> tuple[Iterable[str], int | None]:
        """Return the texts and their number if it is known."""
        return (self.texts, len(self.texts)) if self.texts else options.read_input(self.source, self.key)

    def count_finished(self, count: Callable[[Path], RecordCount]) -> RecordCount | None:
        """Return what `count` finds in an output that is continued; None for a new output."""
        return count(self.output) if self.resume and self.output and self.output.exists() else None

    @contextmanager
    def open_output(
        self, total: int | None, finished: RecordCount | None
    ) -> Iterator[tuple[RecordFile | options.StandardOutput, Callable[[int], object]]]:
        """Open the output; return it and a function that shows how many more lines are translated.

        Texts given as arguments are translated in a moment: for them, standard output needs neither a display of the
        progress nor a message on interruption.
        """
        if self.texts and self.output is None:
            yield options.StandardOutput(), lambda lines: None
            return

        def open_records(interruptions: Interruptions) -> RecordFile | options.StandardOutput:
            if self.output is None:
                return options.StandardOutput(interruptions)
            return RecordFile(self.output, interruptions, finished)

        # On a terminal, the translations themselves show the progress.
        shown = not self.texts and not (self.output is None and sys.stdout.isatty())
        with options.open_output(open_records, total, shown) as (records, progress):
            yield records, progress.advance


@dataclass(frozen=True)
class ModelOptions:
    """Options that determine the translator."""

    run: Path
    others: Sequence[Path]
    device: str
    engine: str | None
    precision: str | None
    languages: tuple[str | None, str | None]
    glossary: Path | None
    memory: Path | None
    memory_threshold: float | None

    def load(self, settings: DecodingSettings) -> Translator:
        """Load the translator with its glossary and its memory.

        Raises:
            UserError: A file cannot be read, or the model does not support the settings or glossaries.
        """
        if self.memory_threshold is not None and self.memory is None:
            raise UserError("--memory-threshold needs --memory, a translation memory")
        glossary = _read_glossary(self.glossary)
        translator = self._load_model()
        if any(self.languages):
            translator = translator.select(*self.languages)
        translator.glossary = glossary
        _check_settings(translator, settings)
        if self.memory is not None:
            from regard.pipelines.translation_memory import TranslationMemory

            threshold = 0.75 if self.memory_threshold is None else self.memory_threshold
            translator.memory = TranslationMemory.read(self.memory, translator.languages, threshold)
        return translator

    def _load_model(self) -> Translator:
        from regard.ops.dispatch import choose_device

        device = choose_device(self.device)
        if self.engine is None:
            from regard.pipelines.translator import Translator

            return Translator.load(self.run, *self.others, device=device, precision=self.precision)
        from regard.interop.ctranslate2 import load_translator

        return load_translator(self.run, *self.others, device=device, engine=self.engine, precision=self.precision)


def _translate_shards(
    source: Path,
    output: Path | None,
    key: str | None,
    model: ModelOptions,
    search_options: options.SearchOptions,
    constraints: Constraints | None,
    split: bool,
    shards: options.ShardOptions,
) -> None:
    """Add the translation of each row of a folder of shards."""
    from regard.cli.shards import checksum, fingerprints, open_run, run_job
    from regard.pipelines.shard_jobs import TranslateJob, TranslatorSource

    settings = search_options.settings(model.run)
    if settings.n_best > 1:
        raise UserError("n_best: shards hold the best translation of each row only; omit it")
    runs = [model.run, *model.others]
    paths = tuple(path.absolute() for path in runs)
    glossary = None if model.glossary is None else model.glossary.absolute()
    translator = TranslatorSource(paths, model.device, model.precision, model.languages, glossary)
    job = TranslateJob(translator, settings, key or "source", split, constraints)
    conditions = {
        "models": fingerprints(runs),
        "precision": model.precision,
        "languages": model.languages,
        "glossary": checksum(model.glossary),
        "search": settings.model_dump(mode="json"),
        "constraints": None if constraints is None else asdict(constraints),
        "key": job.key,
        "split": split,
    }
    run = open_run("translate", source, output, conditions, "--output")
    run_job(run, job, shards.executor(model.device))


def _find_document_format(source: Path, format: str | None, column: str | None) -> str | None:
    """Return the format of a document; None for a file of lines."""
    from regard.cli.documents import choose_format

    chosen = choose_format(source, format, column)
    if chosen is None and column is not None:
        raise UserError("--column belongs to a .csv document; give --key for .tsv files")
    return chosen


def _translate_lines(
    files: Files,
    model: ModelOptions,
    settings: DecodingSettings,
    constraints: Constraints | None,
    form: Form,
    alignments: bool,
    split: bool,
    reject: float | None,
) -> None:
    """Write the record of every text, and print warnings."""
    from regard.data.text.languages import warn_of_other_language

    files.check()
    finished = files.count_finished(lambda output: count_records(output, form, settings.n_best))
    lines, total = files.read()
    translator = model.load(settings)
    new_memory = None
    if files.output_memory is not None:
        from regard.pipelines.translation_memory import MemoryFile

        new_memory = MemoryFile(files.output_memory, translator.languages)
    lines = warn_of_other_language(lines, translator.languages[0], "text" if files.texts else "line")
    counts = TranslationCounts()
    review = None if reject is None else _open_review(translator, files.output, reject, finished)
    with (
        nullcontext() if review is None else review,
        nullcontext() if new_memory is None else new_memory,
        files.open_output(total, finished) as (records, on_progress),
    ):
        translated = translator.stream_items(
            ((line, line) for line in lines),
            settings,
            constraints,
            done=records.count,
            on_progress=on_progress,
            glossary_of=options.glossary_of_line,
            split=split,
            alignments=alignments,
            confidence=review is not None or (form == "json" and translator.quality.is_calibrated),
            flags=review is not None or form == "json",
        )
        for number, line, hypotheses in translated:
            needs_review = None if review is None else review.add(number, line, hypotheses[0])
            records.append(format_record(form, number, line, hypotheses, needs_review))
            if new_memory is not None:
                new_memory.add(hypotheses[0])
            counts.add(number, hypotheses)
    if finished is not None and not counts.records:
        typer.echo(
            f"regard: {files.output} is complete: it holds the translations of all {records.count} lines", err=True
        )
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


def _count_long_lines() -> LengthWarnings:
    from regard.data.text.sentences import LengthWarnings

    return LengthWarnings("line")


@dataclass
class TranslationCounts:
    """Numbers of records, translations, violated constraints, and terms in the best translations; long lines."""

    records: int = 0
    translations: int = 0
    violations: int = 0
    terms: int = 0
    kept_terms: int = 0
    lengths: LengthWarnings = field(default_factory=_count_long_lines)

    def add(self, number: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Count the n best translations of a line."""
        best = hypotheses[0]
        self.records += 1
        self.lengths.add(number, best.warning)
        self.translations += len(hypotheses)
        self.terms += len(best.terms)
        self.kept_terms += sum(use.kept for use in best.terms)
        self.violations += sum(not all(hypothesis.phrases.values()) for hypothesis in hypotheses)


def format_record(
    form: Form, number: int, source: str, hypotheses: Sequence[Hypothesis], needs_review: bool | None = None
) -> str:
    """Return the record of a line, including line breaks.

    "text" is the best translation; "n-best" has a line "number ||| text ||| score" for each translation; "json" is an
    object with the best translation, and the n best translations of each sentence with their scores and subwords; it
    also contains `needs_review` unless that is None. Except in JSON, line breaks in a translation become spaces.
    """
    if form == "text":
        return f"{join_lines(hypotheses[0].text)}\n"
    if form == "n-best":
        fields = ((str(number), join_lines(one.text), f"{one.score:.6f}") for one in hypotheses)
        return "".join(f"{SEPARATOR.join(row)}\n" for row in fields)
    n_best_lists = zip(*(hypothesis.sentences for hypothesis in hypotheses), strict=True) if source.strip() else ()
    sentences = [_sentence_to_json(n_best) for n_best in n_best_lists]
    best = hypotheses[0]
    record: dict[str, Any] = {"source": source, "text": best.text}
    record |= {} if best.confidence is None else {"confidence": best.confidence}
    record |= {} if best.flags is None else {"flags": best.flags}
    record |= {} if needs_review is None else {"needs_review": needs_review}
    record["sentences"] = sentences
    return json.dumps(record, ensure_ascii=False) + "\n"


def _sentence_to_json(n_best: Sequence[Hypothesis]) -> dict[str, Any]:
    best = n_best[0]
    values: dict[str, Any] = {"source": best.source}
    if best.alignment is not None:
        values["source_subwords"] = best.source_subwords
    values["hypotheses"] = [
        _to_json(hypothesis) for rank, hypothesis in enumerate(n_best) if not rank or hypothesis is not n_best[rank - 1]
    ]
    if best.memory:
        values["memory"] = [match.as_dict() for match in best.memory]
    return values if best.warning is None else values | {"warning": best.warning}


def _to_json(hypothesis: Hypothesis) -> dict[str, Any]:
    values = {
        "text": hypothesis.text,
        "score": round(hypothesis.score, 6),
        "subwords": hypothesis.subwords,
        "token_log_probs": [round(value, 6) for value in hypothesis.token_log_probs],
    }
    if hypothesis.alignment is not None:
        values["alignment"] = [[round(weight, 4) for weight in row] for row in hypothesis.alignment]
    if hypothesis.phrases:
        values["phrases"] = hypothesis.phrases
    if hypothesis.terms:
        values["terms"] = [use.as_dict() for use in hypothesis.terms]
    if hypothesis.confidence is not None:
        values["confidence"] = hypothesis.confidence
        values["token_confidences"] = hypothesis.token_confidences
    if hypothesis.flags is not None:
        values["flags"] = hypothesis.flags
    return values


def join_lines(text: str) -> str:
    """Replace line breaks with spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def _translate_document(
    files: Files,
    format: str,
    column: str | None,
    model: ModelOptions,
    search_options: options.SearchOptions,
    forbid: Sequence[str],
    as_json: bool,
    rejected: Mapping[str, object],
) -> None:
    """Translate a document; the options in `rejected` do not apply to it."""
    from regard.cli import documents

    assert files.source is not None
    documents.check(files.source, files.output, format, rejected)
    files.check()
    assert files.output is not None
    settings = search_options.settings(model.run)
    documents.translate(
        files.source,
        files.output,
        lambda: model.load(settings),
        [model.run, *model.others],
        settings,
        _parse_constraints("", (), forbid),
        format=format,
        as_json=as_json,
        conditions={"device": model.device, "engine": model.engine, "precision": model.precision}
        | {"forbid": list(forbid) or None, "threshold": model.memory_threshold}
        | {"glossary": _checksum(model.glossary), "memory": _checksum(model.memory)},
        key=files.key,
        column=column,
    )


def translate_on_server(url: str, files: Files, languages: tuple[str | None, str | None]) -> None:
    """Write the server's translation of every line. The API key, if any, is read from the environment."""
    from regard.serving.client import Client

    files.check()
    lines, total = files.read()
    client = Client(url, os.environ.get(API_KEY))
    source, target = client.choose_languages(*languages)
    finished = files.count_finished(count_lines)
    with files.open_output(total, finished) as (records, on_progress):
        remaining = iter(lines)
        if len(list(islice(remaining, records.count))) < records.count:
            raise UserError(f"{files.output} has more lines than the input, so it belongs to another input")
        for translation in client.translate(remaining, source, target):
            records.append(f"{join_lines(translation)}\n")
            on_progress(1)


def _checksum(path: Path | None) -> str | None:
    """Return what changes with the content of a file."""
    if path is None:
        return None
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_glossary(path: Path | None) -> Glossary | None:
    """Read a glossary before a model is loaded."""
    if path is None:
        return None
    from regard.data.text.glossary import Glossary

    return Glossary.read(path)


def _check_settings(translator: Translator, settings: DecodingSettings) -> None:
    """Check that the model supports the settings, with the terms of a glossary if there is one."""
    translator.check_settings(settings)
    if translator.glossary is not None:
        from regard.pipelines.term_search import constraints_with_terms

        translator.check_settings(settings, constraints_with_terms())


def _open_review(
    translator: Translator, output: Path | None, threshold: float, finished: RecordCount | None
) -> ReviewFile:
    from regard.pipelines.review import ReviewFile

    if not 0 < threshold <= 1:
        raise UserError(f"--reject {threshold:g}: a confidence is between 0 and 1, such as 0.4")
    translator.quality.check_calibrated()
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


def _check_server_options(context: typer.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name)
        if name not in SERVER_OPTIONS and given is not None and given.name == "COMMANDLINE":
            raise UserError(f"{parameter.opts[0]} has no effect with --server; omit it")
