"""`regard translate` and `regard embed`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.classify import Images, embed_images
from regard.cli.options import Device, Engine, Key, Others, Precision, Resume, Run, Search, Source, with_search
from regard.cli.output import check_output, writing

if TYPE_CHECKING:
    from regard.pipelines.constraints import Constraints


@with_search()
def translate(
    context: typer.Context,
    search: Search,
    run: Annotated[
        Path | None, typer.Argument(help="a model folder, or a training run that holds one; none with --server")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Argument(help="sentences; without any, lines are read from --input")
    ] = None,
    source: Source = None,
    key: Key = None,
    output: Annotated[
        Path | None, typer.Option(help="a new file for the translations, by default standard output")
    ] = None,
    resume: Resume = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="a JSON object a line: the source, its translations and what is known of them"),
    ] = False,
    n_best: Annotated[
        int | None, typer.Option(help="this many translations a line, each written as: line ||| text ||| score")
    ] = None,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="with --json: how much each token looked at each source token")
    ] = False,
    others: Others = None,
    prefix: Annotated[str, typer.Option(help="what every translation begins with")] = "",
    require: Annotated[
        list[str] | None, typer.Option(metavar="PHRASE", help="what every translation must say; may be repeated")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="PHRASE", help="what no translation may say; may be repeated")
    ] = None,
    engine: Engine = None,
    precision: Precision = None,
    device: Device = "auto",
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="let a server translate: `regard serve`, or another of LibreTranslate's form"),
    ] = None,
    from_language: Annotated[str | None, typer.Option("--from", help="with --server: code of the source")] = None,
    to_language: Annotated[str | None, typer.Option("--to", help="with --server: code of the target")] = None,
) -> None:
    """Translate sentences given as arguments, or the lines of a file or of standard input, in bounded memory."""
    if server is not None:
        from regard.cli.translate_remote import translate_at

        texts = [*([str(run)] if run else []), *(text or [])]
        _check_remote(context)
        _check_translation(texts, source, key, output, resume, False)
        lines, total = (texts, len(texts)) if texts else _open_input(source, key)
        shown = not texts and not (output is None and sys.stdout.isatty())
        translate_at(server, lines, total, output, resume, (from_language, to_language), shown)
        return
    _check_local(run, from_language or to_language)
    assert run is not None
    from regard.pipelines import translate_files as files
    from regard.pipelines.output import Output
    from regard.pipelines.translator import Translator
    from regard.runtime import choose_device

    settings = search.settings(run, n_best=n_best)
    several = n_best is not None or settings.n_best > 1
    form: files.Form = "json" if as_json else "n-best" if several else "text"
    _check_translation(text, source, key, output, resume, alignments and not as_json)
    going_on = files.count_records(output, form, settings.n_best) if resume and output and output.exists() else None
    lines, total = (text, len(text)) if text else _open_input(source, key)
    constraints = _choose_constraints(prefix, require or (), forbid or ())
    translator = Translator.load(run, *(others or ()), device=choose_device(device), engine=engine, precision=precision)
    translator.fit(settings)  # refuses what it cannot do before there is an output
    shown = not text and not (output is None and sys.stdout.isatty())  # on a terminal, the lines show how far it is
    with writing(lambda stop: Output(output, stop, going_on), total, shown) as (records, progress):
        tally = files.translate_lines(
            translator,
            lines,
            records.append,
            settings,
            constraints,
            form=form,
            alignments=alignments,
            done=records.records,
            watch=progress.advance,
        )
    if going_on is not None and not tally.records:
        typer.echo(f"regard: {output} is finished: it holds the translations of all {records.records} lines", err=True)
    if tally.unmet:
        typer.echo(
            f"regard: {tally.unmet} of {tally.translations} translations do not meet every --require and --forbid",
            err=True,
        )


def embed(
    run: Run,
    out: Annotated[Path, typer.Option(help="file for the vectors, .npy or .safetensors; an existing one is replaced")],
    images: Images = None,
    source: Source = None,
    key: Key = None,
    pool: Annotated[
        str, typer.Option(help="mean: a vector a line; none: a vector a token, .safetensors only")
    ] = "mean",
    device: Device = "auto",
) -> None:
    """Write a model's vectors: context-aware ones of every line of a file or of standard input, or of images."""
    from regard.errors import UserError
    from regard.models.folder import check_input_type, find_model_folder, model_input_type
    from regard.pipelines.embedder import Embedder
    from regard.pipelines.embedding_files import check_embedding_file, embed_lines, save_arrays
    from regard.pipelines.progress import LineProgress
    from regard.pipelines.translator import Translator
    from regard.runtime import choose_device

    reads = model_input_type(find_model_folder(run))
    if reads == "images":
        embed_images(run, images, out, device)
        return
    if reads == "pairs":
        check_input_type(find_model_folder(run), "images")
    if images:
        raise UserError(f"{run} is a text model; give its lines in --input")
    pooling = check_embedding_file(out, pool)
    lines, total = _open_input(source, key)
    model = (Embedder if reads == "sentences" else Translator).load(run, device=choose_device(device))
    with LineProgress(total) as progress:
        arrays = embed_lines(model, lines, pooling, progress.advance)
    save_arrays(arrays, out)
    shapes = ", ".join(f"{name} {' × '.join(map(str, array.shape))}" for name, array in arrays.items())
    typer.echo(f"{out}: {shapes}")


def _choose_constraints(prefix: str, require: Sequence[str], forbid: Sequence[str]) -> Constraints:
    from regard.errors import UserError
    from regard.pipelines.constraints import Constraints

    for option, phrases in (("--prefix", (prefix,)), ("--require", require), ("--forbid", forbid)):
        for phrase in phrases:
            if any("\ud800" <= character <= "\udfff" for character in phrase):
                raise UserError(f"{option} {phrase!r} holds a lone surrogate: it was not typed in valid UTF-8")
    return Constraints(prefix, tuple(require), tuple(forbid))


def _check_remote(context: typer.Context) -> None:
    """Refuses options about which a server decides."""
    from regard.errors import UserError

    ours = {"run", "text", "source", "key", "output", "resume", "server", "from_language", "to_language"}
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name)
        if name not in ours and given is not None and given.name == "COMMANDLINE":
            raise UserError(f"{parameter.opts[0]} is nothing that --server can be asked for; leave it away")


def _check_local(run: Path | None, language: str | None) -> None:
    from regard.errors import UserError

    if run is None:
        raise UserError("translate needs a model folder or a training run, or --server with the address of one")
    if language is not None:
        raise UserError("--from and --to go with --server; a model translates from and into its own languages")


def _check_translation(
    text: Sequence[str] | None,
    source: Path | None,
    key: str | None,
    output: Path | None,
    resume: bool,
    alignments_without_json: bool,
) -> None:
    """Refuses what contradicts itself, before a model is loaded."""
    from regard.errors import UserError

    if text and source is not None:
        raise UserError(f"sentences are given both as arguments and in --input {source}; choose one")
    if key is not None and source is None:
        raise UserError("--key needs --input, a .jsonl or .tsv file")
    if alignments_without_json:
        raise UserError("--alignments are written as JSON only; add --json")
    if output is not None:
        check_output(output, resume, [] if source is None else [source])
    elif resume:
        raise UserError("--resume needs --output, the file to go on with")


def _open_input(source: Path | None, key: str | None) -> tuple[Iterator[str], int | None]:
    """The lines of a file or of standard input, and how many there are, where that can be known.

    A file is read through once for that, so that a line that cannot be read is refused before hours of work.
    """
    from regard.data.text.readers import read_stream
    from regard.pipelines.translate_files import read_texts

    if source is None:
        return read_stream(sys.stdin.buffer, "standard input"), None
    total = sum(1 for _ in read_texts(source, key)) if source.is_file() else None  # a pipe can be read only once
    return read_texts(source, key), total
