"""`regard evaluate`: scores models on a test set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.classify import check_readable
from regard.cli.options import (
    SAMPLING_OPTIONS,
    Device,
    FromLanguage,
    SearchOptions,
    ShardOptions,
    ToLanguage,
    add_search_options,
    add_shard_options,
    check_file_name,
    reject_options,
)
from regard.cli.shards import is_folder
from regard.console import LineProgress
from regard.errors import UserError, prefix_errors
from regard.files import replace_text_file

if TYPE_CHECKING:
    from regard.decoding.settings import DecodingSettings
    from regard.evaluation.translation import System


@add_shard_options
@add_search_options(*SAMPLING_OPTIONS)
def evaluate(
    run: Annotated[Path, typer.Argument(help="model folder, training run that contains one, or file of translations")],
    search_options: SearchOptions,
    shards: ShardOptions,
    src: Annotated[Path | None, typer.Option(help="source sentences; or .tsv or .jsonl with references")] = None,
    ref: Annotated[Path | None, typer.Option(help="reference translations, one per line")] = None,
    data: Annotated[Path | None, typer.Option(help="image models: folder with a folder per class")] = None,
    split: Annotated[str | None, typer.Option(help="with --data: train, valid or test; by default test")] = None,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="with --data: average over mirror images")] = False,
    pictures: Annotated[Path | None, typer.Option(help="with --data: folder for plots of the results")] = None,
    against: Annotated[Path | None, typer.Option(help="other model, file of translations, or scores.json")] = None,
    paired: Annotated[bool, typer.Option("--paired", help="paired bootstrap test of the difference")] = False,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU tokenizer; 'none' for tokenised text")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="ignore case")] = False,
    split_lines: Annotated[
        bool, typer.Option("--split-sentences", help="translate lines sentence by sentence, as regard translate does")
    ] = False,
    ter: Annotated[bool, typer.Option("--ter", help="also compute the translation edit rate")] = False,
    from_language: FromLanguage = None,
    to_language: ToLanguage = None,
    out: Annotated[Path | None, typer.Option(help="file for the translations; with --score, a folder")] = None,
    score: Annotated[
        bool, typer.Option("--score", help="add the cross-entropy of each pair of --src, a folder of shards")
    ] = False,
    reverse_model: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="with --score: model of the opposite direction, for dual cross-entropy"),
    ] = None,
    save: Annotated[bool, typer.Option(help="save the scores in scores.json of the model folder")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with every setting")] = False,
    device: Device = "auto",
) -> None:
    """Score a model on a test set: translations with sacreBLEU and its signatures, or the classes of images.

    With --score, the model scores the pairs of a folder of shards instead.
    """
    from regard.ops.dispatch import choose_device

    if score:
        rejected = {"--ref": ref, "--data": data, "--against": against, "--paired": paired, "--ter": ter}
        reject_options("--score", rejected | {"--tokenize": tokenize, "--lowercase": lowercase, "--json": as_json})
        _score_shards(run, reverse_model, src, out, (from_language, to_language), device, shards)
        return
    shards.reject()
    reject_options("a test set", {"--reverse-model": reverse_model})
    if (src is None) == (data is None):
        raise UserError("evaluate needs either --src, sentences for a translator, or --data, images for a classifier")
    if data is not None:
        text_options = {"--ref": ref, "--against": against, "--paired": paired, "--tokenize": tokenize}
        reject_options("--data", text_options | {"--lowercase": lowercase, "--ter": ter, "--out": out})
        evaluate_images(run, data, split, mirrored, pictures, save, as_json, device)
        return
    assert src is not None
    reject_options("--src", {"--split": split, "--mirrored": mirrored, "--pictures": pictures})
    _check_inputs(run, src, ref, against)
    from regard.data.text.readers import read_parallel
    from regard.evaluation.comparison import compare, compare_with_stored, paired_bootstrap
    from regard.evaluation.metrics import Metrics
    from regard.evaluation.report import read_reports
    from regard.evaluation.translation import System, SystemOutput, tokenisation_warning
    from regard.evaluation.translation import evaluate as evaluate_translations

    settings = [search_options.settings(run)]
    if out is not None:
        check_file_name(out, "--out", [src, ref, run, against])
    stored = read_reports(against) if against is not None and against.suffix == ".json" else None
    paths = [run] if against is None or stored is not None else [run, against]
    if paired and len(paths) == 1:
        raise UserError("--paired needs a second system's translations: give a model or a file of them in --against")
    sources, references = zip(*read_parallel(src, ref), strict=True)
    languages = from_language, to_language
    systems = [System.open(path, choose_device(device), languages) for path in paths]
    settings += [search_options.settings(path) for path in paths[1:]]
    tokenisation = choose_tokenisation(tokenize, [system.language for system in systems], src, ref)
    metrics = Metrics(tokenisation=tokenisation, lowercase=lowercase, ter=ter)
    for system, system_settings in zip(systems, settings, strict=True):
        _check_system(system, system_settings, len(sources), save)
    if stored is not None:
        # The conditions do not depend on the translations: compare them before hours of work.
        placeholder = SystemOutput(references, systems[0].resolve_settings(settings[0]), split=split_lines)
        compare_with_stored(evaluate_translations(placeholder, sources, references, metrics), stored)
    outputs = [system.translate(sources, one, split_lines) for system, one in zip(systems, settings, strict=True)]
    if out is not None:
        with replace_text_file(out) as file:
            file.writelines(f"{line}\n" for line in outputs[0].translations)
    reports = [evaluate_translations(output, sources, references, metrics) for output in outputs]
    for system, output, report in zip(systems, outputs, reports, strict=True):
        if not as_json:
            typer.echo(report.facts() if against is None else f"{system.path}: {report.facts()}")
            typer.echo("\n".join(str(score) for score in report.results()))
        for warning in (output.warning, tokenisation_warning(output.translations, references)):
            if warning is not None:
                typer.echo(f"regard: {system.path}: {warning}", err=True)
        if save:
            system.save_report(report)
    comparison: dict[str, list[Any]] = {}
    if stored is not None:
        nearest, comparison["differences"] = compare_with_stored(reports[0], stored)
        reports.append(nearest)
        if not as_json:
            typer.echo(f"{against}: {nearest.facts()}, {nearest.date}")
    elif against is not None:
        comparison["differences"] = compare(reports[0], reports[1])
        if paired:
            comparison["significance"] = paired_bootstrap(outputs[0], outputs[1], references, metrics)
    if as_json:
        lists = {"evaluations": reports} | comparison
        values = {key: [value.as_dict() for value in values] for key, values in lists.items()}
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
    elif against is not None:
        typer.echo(f"{run} against {against}:")
        typer.echo("\n".join(str(value) for values in comparison.values() for value in values))


def _score_shards(
    run: Path,
    reverse: Path | None,
    src: Path | None,
    out: Path | None,
    languages: tuple[str | None, str | None],
    device: str,
    shards: ShardOptions,
) -> None:
    """Add the score of each pair of a folder of shards."""
    from regard.cli.shards import fingerprints, open_run, run_job
    from regard.pipelines.shard_jobs import ScoreJob, TranslatorSource

    if src is None or not is_folder(src):
        raise UserError(f"--score needs --src, a folder of .jsonl or .parquet shards with pairs, not {src}")
    forward, backward = TranslatorSource((run.absolute(),), device, languages=languages), None
    if reverse is not None:
        backward = TranslatorSource((reverse.absolute(),), device, languages=languages[::-1])
    runs = [path for path in (run, reverse) if path is not None]
    conditions = {"models": fingerprints(runs), "languages": languages}
    run_job(open_run("evaluate --score", src, out, conditions), ScoreJob(forward, backward), shards.executor(device))


def _check_inputs(run: Path, src: Path, ref: Path | None, against: Path | None) -> None:
    from regard.data.text.readers import PAIR_SUFFIXES, format_suffix

    for name, path in ((f"{run}", run), (f"--against {against}", against)):
        if path is not None and not path.exists():
            raise UserError(f"{name}: no such file or folder; give a model, a run, or a file of translations")
    if ref is None and not src.is_dir() and format_suffix(src) not in PAIR_SUFFIXES:
        raise UserError(
            f"evaluate needs --ref, the references of {src}, one per line; only {', '.join(PAIR_SUFFIXES)} files and "
            f"folders of them contain both sides"
        )


def _check_system(system: System, settings: DecodingSettings, lines: int, save: bool) -> None:
    """Reject invalid settings and files before hours of translating."""
    from regard.evaluation.report import check_scores_writable

    system.resolve_settings(settings)
    system.check_length(lines)
    if save and system.folder is not None:
        check_scores_writable(system.folder)


def choose_tokenisation(
    given: str | None, languages: Sequence[str | None], source: Path, reference: Path | None
) -> str:
    """Return the given tokenizer, or that of the target language, taken from the models or else from the file names."""
    from regard.data.text.languages import tokenisation_for
    from regard.evaluation.metrics import check_tokenisation
    from regard.training.tasks.translation.recipe import DataSettings

    guess = DataSettings(source=source, target=reference).language_pair()[1]
    chosen = given or tokenisation_for(next((language for language in languages if language), guess))
    with prefix_errors("--tokenize"):
        check_tokenisation(chosen)
    return chosen


def evaluate_images(
    run: Path,
    data: Path,
    split: str | None,
    mirrored: bool,
    pictures: Path | None,
    save: bool,
    as_json: bool,
    device: str,
) -> None:
    """Score a classifier on labelled images."""
    from regard.evaluation.classification import evaluate, open_test_set
    from regard.evaluation.report import check_scores_writable, save_report
    from regard.models.folder import find_model_folder
    from regard.ops.dispatch import choose_device
    from regard.pipelines.classifier import Classifier

    folder = find_model_folder(run)
    if save:
        check_scores_writable(folder)
    classifier = Classifier.load(folder, device=choose_device(device))
    images = open_test_set(data, classifier, split)
    with LineProgress(len(images), noun="images") as progress:
        report = evaluate(classifier, images, str(data), progress.advance, mirrored)
    for error in report.unreadable:
        typer.echo(f"regard: {error}", err=True)
    typer.echo(json.dumps(report.as_dict(), indent=2, ensure_ascii=False) if as_json else "\n".join(report.lines()))
    if pictures is not None:
        from regard.evaluation.classification_plots import save_plots

        paths = save_plots(report.scores, pictures)
        if not as_json:
            typer.echo("drawn: " + ", ".join(map(str, paths)))
    if save:
        save_report(report, folder)
    check_readable(len(report.unreadable), len(images))
