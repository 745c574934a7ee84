"""`regard evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Alpha, Beam, Device, Lengths, MoreSearch, Penalty, Rounds, choose_search


def evaluate(
    run: Annotated[Path, typer.Argument(help="a model folder, a run that holds one, or a file of translations")],
    src: Annotated[Path, typer.Option(help="source sentences, one a line, or a .tsv or .jsonl with the references")],
    ref: Annotated[Path | None, typer.Option(help="reference translations, one a line")] = None,
    against: Annotated[
        Path | None, typer.Option(help="compare with a model, a file of translations, or the scores in a scores.json")
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="test the difference by paired bootstrap resampling")
    ] = False,
    beam: Beam = None,
    length_penalty: Penalty = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    lengths: Lengths = None,
    search: MoreSearch = None,
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
    from regard.devices import choose_device
    from regard.errors import UserError
    from regard.text.readers import read_parallel
    from regard.training.checkpoint import replace_text

    # Whatever can be refused is refused here, before hours of translating.
    flags = {"beam": beam, "length_penalty": length_penalty, "alpha": alpha, "rounds": rounds, "lengths": lengths}
    settings = choose_search(run, search, **flags)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")
    if out is not None and any(
        out.exists() and out.samefile(path) for path in (src, ref, run, against) if path and path.exists()
    ):
        raise UserError(f"{out}: --out would replace what is read; choose another name")
    stored = None
    if against is not None and against.suffix == ".json":
        stored = evaluation.read_reports(against)
    if paired and (against is None or stored is not None):
        raise UserError("--paired needs a second system's translations: give a model or a file of them in --against")
    sources, references = zip(*read_parallel(src, ref), strict=True)
    rivals = [] if against is None or stored is not None else [against]
    entrants = [evaluation.Entrant.open(path, choose_device(device)) for path in [run, *rivals]]
    chosen = [settings, *(choose_search(rival, search, **flags) for rival in rivals)]
    metrics = evaluation.Metrics(
        tokenisation=choose_tokenisation(tokenize, [entrant.language for entrant in entrants], src, ref),
        lowercase=lowercase,
        ter=ter,
    )
    for entrant, its in zip(entrants, chosen, strict=True):
        entrant.fit(its)
        entrant.check_length(len(sources))
        if save and entrant.folder is not None:
            evaluation.check_recordable(entrant.folder)
    if stored is not None:  # conditions do not depend on the translations, so the references can stand in for them
        stand_in = evaluation.System(references, entrants[0].fit(settings))
        evaluation.compare_with_any(evaluation.evaluate(stand_in, sources, references, metrics), stored)

    systems = [entrant.translate(sources, its) for entrant, its in zip(entrants, chosen, strict=True)]
    if out is not None:
        try:
            replace_text(out, "".join(f"{line}\n" for line in systems[0].translations))
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


def choose_tokenisation(
    given: str | None, languages: Sequence[str | None], source: Path, reference: Path | None
) -> str:
    """The tokeniser asked for, or that of the target language, as the models or else the files' names tell it."""
    from regard.errors import UserError
    from regard.evaluation import check_tokenisation, tokenisation_for
    from regard.training.translation.recipe import DataSettings

    guess = DataSettings(source=source, target=reference).language_pair()[1]
    chosen = given or tokenisation_for(next((language for language in languages if language), guess))
    try:
        check_tokenisation(chosen)
    except UserError as error:
        raise UserError(f"--tokenize: {error}") from None
    return chosen
