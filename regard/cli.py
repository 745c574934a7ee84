"""The command line. Each command imports what it needs when it runs, so that `regard --help` answers at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from regard.decoding.settings import SearchSettings
    from regard.decoding.translator import Wishes

app = typer.Typer(
    name="regard",
    help="Train your own attention models, look inside them, put them to work.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Run = Annotated[Path, typer.Argument(help="a model folder, or a training run that holds one")]
Beam = Annotated[int, typer.Option(help="hypotheses kept for each sentence; 1 is greedy search")]
Penalty = Annotated[
    str, typer.Option(help="scores are divided by length^alpha (average), ((5+length)/6)^alpha (wu), or not (none)")
]
Alpha = Annotated[float, typer.Option(help="the exponent of the length penalty")]
Change = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as optim.lr=3e-4")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Source = Annotated[
    Path | None,
    typer.Option("--input", help="a file of lines (.gz, .xz), or a .jsonl; by default standard input"),
]
Key = Annotated[str | None, typer.Option(help="the key of the text in a .jsonl --input, 'source' unless given")]
MoreSearch = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="KEY=VALUE",
        help="any other setting of the search: coverage, stop, min_length, max_length, max_ratio, max_extra, "
        "no_repeat, groups, diversity; may be repeated",
    ),
]


def main() -> None:
    """Runs the command line: one sentence and exit code 2 for what the user can put right."""
    from regard.errors import UserError

    try:
        # Typer turns Ctrl-C into the code 130, and leaves quietly when the reader of our output, such as `head`, has.
        code = app(standalone_mode=False)
    except UserError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        explain = getattr(error, "format_message", None)  # of Typer's errors, whose class depends on its version
        if explain is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", None) or "regard"
        _refuse(f"{explain().rstrip('.')}; see {command} --help")
    if code == 130:
        sys.stderr.write("regard: interrupted\n")
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"regard: {' '.join(sentence.split())}\n")
    sys.exit(2)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    """The one option that belongs to no command."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"regard {installed('regard')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the trained model")] = Path("runs/demo"),
    change: Change = None,
) -> None:
    """Train an English-Chinese translator on the built-in corpus, score it, draw what it looks at."""
    from regard.demo import run_demo

    run_demo(out, change or [])


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="a YAML recipe, or the name of a built-in one")] = None,
    src: Annotated[
        Path | None, typer.Option(help="source sentences, one a line (.gz, .xz), or a .tsv or .jsonl")
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="target sentences, line by line beside the source")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="validation source; else some pairs are held out")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="validation target")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the run; one that was interrupted goes on")] = None,
    change: Change = None,
) -> None:
    """Train a translator from parallel text."""
    from regard.errors import UserError
    from regard.training.recipe import Recipe, builtin_recipes
    from regard.training.run import run_recipe

    if recipe is None and src is None:
        built_in = ", ".join(builtin_recipes())
        raise UserError(f"train needs a recipe (a YAML file or one of {built_in}) or --src and --tgt")
    if out is None:
        raise UserError("train needs --out, the folder for the run")
    files = {"source": src, "target": tgt, "valid_source": valid_src, "valid_target": valid_tgt}
    given: dict[str, Any] = {f"data.{key}": str(path) for key, path in files.items() if path is not None}
    if src is not None and recipe is not None:
        given["data.builtin"] = None
    outcome = run_recipe(Recipe.load(recipe, change or [], given), out)
    typer.echo(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s; the best model (step {outcome.best_step}) is {out}/best"
    )
    typer.echo(f"next: regard translate {out} < FILE")


@app.command()
def translate(
    run: Run,
    text: Annotated[
        list[str] | None, typer.Argument(help="sentences; without any, lines are read from --input")
    ] = None,
    source: Source = None,
    key: Key = None,
    output: Annotated[
        Path | None, typer.Option(help="a new file for the translations, by default standard output")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with an --output that was interrupted; give the same options again")
    ] = False,
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
    others: Annotated[
        list[Path] | None, typer.Option("--with", metavar="RUN", help="a further model, which votes; may be repeated")
    ] = None,
    prefix: Annotated[str, typer.Option(help="what every translation begins with")] = "",
    require: Annotated[
        list[str] | None, typer.Option(metavar="PHRASE", help="what every translation must say; may be repeated")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="PHRASE", help="what no translation may say; may be repeated")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="hypotheses kept a line, 5 unless given; 1 is greedy search")] = None,
    length_penalty: Annotated[
        str | None, typer.Option(help="scores are divided by length^alpha (average), ((5+length)/6)^alpha (wu), or not")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="the exponent of the length penalty")] = None,
    temperature: Annotated[float | None, typer.Option(help="sample; below 1 sharper, above 1 flatter")] = None,
    top_k: Annotated[int | None, typer.Option(help="sample among the k likeliest tokens")] = None,
    top_p: Annotated[float | None, typer.Option(help="sample among the likeliest tokens of this share")] = None,
    seed: Annotated[int | None, typer.Option(help="another seed gives other samples")] = None,
    search: MoreSearch = None,
    device: Device = "auto",
) -> None:
    """Translate sentences given as arguments, or the lines of a file or of standard input, in bounded memory."""
    from regard.decoding import files
    from regard.decoding.progress import LineProgress
    from regard.decoding.translator import Translator
    from regard.training.run import choose_device

    settings = _choose_search(
        search,
        beam=beam,
        n_best=n_best,
        length_penalty=length_penalty,
        alpha=alpha,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    several = n_best is not None or settings.n_best > 1
    form: files.Form = "json" if as_json else "n-best" if several else "text"
    _check_translation(text, source, key, output, resume, alignments and not as_json)
    going_on = files.count_records(output, form, settings.n_best) if resume and output and output.exists() else None
    lines, total = (text, len(text)) if text else _open_input(source, key)
    wishes = _choose_wishes(prefix, require or (), forbid or ())
    translator = Translator.load(run, *(others or ()), device=choose_device(device))
    shown = not text and not (output is None and sys.stdout.isatty())  # on a terminal, the lines show how far it is
    with files.Interruptions() as interruptions:
        records = files.Output(output, interruptions, going_on)
        try:
            with records, LineProgress(total, records.records, shown=shown) as progress:
                tally = files.translate_lines(
                    translator,
                    lines,
                    records.append,
                    settings,
                    wishes,
                    form=form,
                    alignments=alignments,
                    done=records.records,
                    watch=progress.advance,
                )
        except files.Interrupted as interrupted:
            typer.echo(f"regard: {records.explain_interruption()}", err=True)
            sys.exit(128 + interrupted.signal)
    if going_on is not None and not tally.records:
        typer.echo(f"regard: {output} is finished: it holds the translations of all {records.records} lines", err=True)
    if tally.unmet:
        typer.echo(
            f"regard: {tally.unmet} of {tally.translations} translations do not meet every --require and --forbid",
            err=True,
        )


@app.command()
def embed(
    run: Run,
    out: Annotated[Path, typer.Option(help="file for the vectors, .npy or .safetensors; an existing one is replaced")],
    source: Source = None,
    key: Key = None,
    pool: Annotated[
        str, typer.Option(help="mean: a vector a line; none: a vector a token, .safetensors only")
    ] = "mean",
    device: Device = "auto",
) -> None:
    """Write the encoder's context-aware vectors of every line of a file or of standard input."""
    from regard.decoding.embeddings import check_embedding_file, embed_lines, save_arrays
    from regard.decoding.progress import LineProgress
    from regard.decoding.translator import Translator
    from regard.training.run import choose_device

    pooling = check_embedding_file(out, pool)
    lines, total = _open_input(source, key)
    translator = Translator.load(run, device=choose_device(device))
    with LineProgress(total) as progress:
        arrays = embed_lines(translator, lines, pooling, progress.advance)
    save_arrays(arrays, out)
    shapes = ", ".join(f"{name} {' × '.join(map(str, array.shape))}" for name, array in arrays.items())
    typer.echo(f"{out}: {shapes}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="a model folder, a run that holds one, or a file of translations")],
    src: Annotated[Path, typer.Option(help="source sentences, one a line")],
    ref: Annotated[Path, typer.Option(help="reference translations, one a line")],
    against: Annotated[
        Path | None, typer.Option(help="compare with a model, a file of translations, or the scores in a scores.json")
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="test the difference by paired bootstrap resampling")
    ] = False,
    beam: Beam = 5,
    length_penalty: Penalty = "average",
    alpha: Alpha = 1.0,
    tokenize: Annotated[
        str | None,
        typer.Option(help="sacreBLEU tokeniser, by default the language's; 'none' for text that is tokenised"),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="ignore case")] = False,
    ter: Annotated[bool, typer.Option("--ter", help="measure the translation edit rate too")] = False,
    out: Annotated[Path | None, typer.Option(help="write the translations there")] = None,
    save: Annotated[bool, typer.Option(help="keep the scores in scores.json of the model folder")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="answer in JSON, with every setting")] = False,
    device: Device = "auto",
) -> None:
    """Translate a test set and score it with sacreBLEU, signature included, or compare two systems on it."""
    from regard import evaluation
    from regard.errors import UserError
    from regard.text.readers import read_parallel
    from regard.training.run import choose_device

    # Whatever can be refused is refused here, before hours of translating.
    settings = _search(beam, length_penalty, alpha)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")
    stored = None
    if against is not None and against.suffix == ".json":
        stored = evaluation.read_reports(against)
    if paired and (against is None or stored is not None):
        raise UserError("--paired needs a second system's translations: give a model or a file of them in --against")
    sources, references = zip(*read_parallel(src, ref), strict=True)
    rivals = [] if against is None or stored is not None else [against]
    entrants = [evaluation.Entrant.open(path, choose_device(device)) for path in [run, *rivals]]
    metrics = evaluation.Metrics(
        tokenisation=_choose_tokenisation(tokenize, [entrant.language for entrant in entrants], ref),
        lowercase=lowercase,
        ter=ter,
    )
    for entrant in entrants:
        entrant.check_length(len(sources))
        if save and entrant.folder is not None:
            evaluation.check_recordable(entrant.folder)
    if stored is not None:  # conditions do not depend on the translations, so the references can stand in for them
        stand_in = evaluation.System(references, settings if entrants[0].folder else None)
        evaluation.compare_with_any(evaluation.evaluate(stand_in, sources, references, metrics), stored)

    systems = [entrant.translate(sources, settings) for entrant in entrants]
    if out is not None:
        try:
            out.write_text("".join(f"{line}\n" for line in systems[0].translations), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    reports = [evaluation.evaluate(system, sources, references, metrics) for system in systems]
    answer: dict[str, list[Any]] = {"evaluations": reports}
    for entrant, system, report in zip(entrants, systems, reports, strict=True):
        if not as_json:
            typer.echo(f"{entrant.path}: {report.facts()}" if against else report.facts())
            typer.echo("\n".join(str(score) for score in report.results()))
        doubt = evaluation.doubt_references(system.translations, references)
        if doubt is not None:
            typer.echo(f"regard: {entrant.path}: {doubt}", err=True)
        if save:
            entrant.keep(report)
    if stored is not None:
        nearest, answer["differences"] = evaluation.compare_with_any(reports[0], stored)
        reports.append(nearest)
        if not as_json:
            typer.echo(f"{against}: {nearest.facts()}, {nearest.date}")
    elif against is not None:
        answer["differences"] = evaluation.compare(reports[0], reports[1])
    if paired:
        answer["significance"] = evaluation.compare_by_resampling(systems[0], systems[1], references, metrics)
    if as_json:
        lists = {key: [value.as_dict() for value in values] for key, values in answer.items()}
        typer.echo(json.dumps(lists, indent=2, ensure_ascii=False))
    elif against is not None:
        typer.echo(f"{run} against {against}:")
        typer.echo("\n".join(str(value) for key in ("differences", "significance") for value in answer.get(key, [])))


def _search(beam: int, length_penalty: str, alpha: float) -> SearchSettings:
    from regard.decoding.settings import SearchSettings

    return SearchSettings.parse({"beam": beam, "length_penalty": length_penalty, "alpha": alpha}, "options")


def _choose_search(further: Sequence[str] | None, **flags: object) -> SearchSettings:
    """The settings of the flags that were given and of --search KEY=VALUE, checked against each other."""
    from regard.decoding.settings import SearchSettings
    from regard.errors import UserError

    values = {key: value for key, value in flags.items() if value is not None}
    for change in further or ():
        key, equals, value = change.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UserError(f"--search {change}: write KEY=VALUE, such as max_length=80")
        if key in values:
            raise UserError(f"--search {change}: {key} is given twice; choose one")
        values[key] = value.strip()
    return SearchSettings.parse(values, "options")


def _choose_wishes(prefix: str, require: Sequence[str], forbid: Sequence[str]) -> Wishes:
    from regard.decoding.translator import Wishes
    from regard.errors import UserError

    for option, phrases in (("--prefix", (prefix,)), ("--require", require), ("--forbid", forbid)):
        for phrase in phrases:
            if any("\ud800" <= character <= "\udfff" for character in phrase):
                raise UserError(f"{option} {phrase!r} holds a lone surrogate: it was not typed in valid UTF-8")
    return Wishes(prefix, tuple(require), tuple(forbid))


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
    from regard.text.readers import COMPRESSIONS

    if text and source is not None:
        raise UserError(f"sentences are given both as arguments and in --input {source}; choose one")
    if key is not None and source is None:
        raise UserError("--key needs --input, a .jsonl file")
    if alignments_without_json:
        raise UserError("--alignments are written as JSON only; add --json")
    if output is None:
        if resume:
            raise UserError("--resume needs --output, the file to go on with")
        return
    if output.suffix.lower() in COMPRESSIONS:
        raise UserError(f"{output}: translations are not compressed; choose a name without {output.suffix}")
    if output.exists() and source is not None and source.exists() and output.samefile(source):
        raise UserError(f"{output} is the --input; choose another name for the translations")
    if output.is_dir():
        raise UserError(f"{output} is a directory; --output needs a file name")
    if output.is_file() and not resume:
        raise UserError(f"{output} exists already; go on with it by --resume, or choose another name")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if resume and output.exists() and not output.is_file():
        raise UserError(f"{output} is no ordinary file, so --resume cannot go on with it")


def _open_input(source: Path | None, key: str | None) -> tuple[Iterator[str], int | None]:
    """The lines of a file or of standard input, and how many there are, where that can be known.

    A file is read through once for that, so that a line that cannot be read is refused before hours of work.
    """
    from regard.decoding.files import read_texts
    from regard.text.readers import read_stream

    if source is None:
        return read_stream(sys.stdin.buffer, "standard input"), None
    total = sum(1 for _ in read_texts(source, key)) if source.is_file() else None  # a pipe can be read only once
    return read_texts(source, key), total


def _choose_tokenisation(given: str | None, languages: Sequence[str | None], reference: Path) -> str:
    """The tokeniser asked for, or that of the target language, as the models or else the reference's name tell it."""
    from regard.errors import UserError
    from regard.evaluation import check_tokenisation, tokenisation_for
    from regard.text.readers import COMPRESSIONS

    plain = reference.with_suffix("") if reference.suffix.lower() in COMPRESSIONS else reference
    language = next((language for language in languages if language), plain.suffix.removeprefix("."))
    chosen = given or tokenisation_for(language)
    try:
        check_tokenisation(chosen)
    except UserError as error:
        raise UserError(f"--tokenize: {error}") from None
    return chosen


if __name__ == "__main__":
    main()
