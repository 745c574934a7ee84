"""`regard clean`: removes bad pairs from parallel text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from regard.cli import options
from regard.cli.shards import is_folder
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.console import LineProgress
    from regard.data.text.cleaning.cleaner import Cleaner
    from regard.data.text.cleaning.settings import CleaningSettings
    from regard.data.text.corpus import Corpus
    from regard.pipelines.pair_scores import PairScorer

DETECTION_PAIRS = 1000
"""Pairs whose script is examined if the languages are not known otherwise."""


@options.add_shard_options
def clean(
    src: Annotated[Path, typer.Option(help="source sentences; or .tsv, .jsonl, .parquet or a folder of such files")],
    shards: options.ShardOptions,
    tgt: Annotated[Path | None, typer.Option(help="target sentences, line by line as in --src")] = None,
    out: Annotated[
        Path | None, typer.Option(help="new .tsv or .jsonl file for both sides; for shards, a folder")
    ] = None,
    out_src: Annotated[Path | None, typer.Option(help="instead of --out: new file for the source lines")] = None,
    out_tgt: Annotated[Path | None, typer.Option(help="with --out-src: new file for the target lines")] = None,
    report: Annotated[
        list[Path] | None, typer.Option(help="new .html or .json file: what was removed, and why; repeatable")
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="remove pairs with a text of this file, such as a test set; repeatable"),
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="language codes, such as en,de; by default from the names of the files")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="YAML file with thresholds of the rules")] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="RUN", help="also remove pairs that this model considers improbable")
    ] = None,
    reverse_model: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="with --model: model of the opposite direction, for dual cross-entropy"),
    ] = None,
    device: options.Device = "auto",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="threshold, such as ratio=3; repeatable")
    ] = None,
) -> None:
    """Remove bad pairs from parallel text: repeated, misaligned, damaged, copied, or in a wrong language."""
    from regard.console import Interruptions
    from regard.data.text.cleaning.cleaner import Cleaner
    from regard.data.text.corpus import Corpus
    from regard.data.text.readers import find_shards, read_texts
    from regard.files import check_regular

    settings = _read_settings(recipe, overrides or [], exclude or [], model is not None)
    if reverse_model is not None and model is None:
        raise UserError(f"--reverse-model {reverse_model}: needs --model, a model of the other direction")
    reports = report or []
    if is_folder(src) and out is not None and out.suffix.lower() not in (".tsv", ".jsonl"):
        options.reject_options("a folder of shards", {"--tgt": tgt, "--out-src": out_src, "--out-tgt": out_tgt})
        _check_reports(reports, [src])
        _clean_shards(src, out, settings, languages, [model, reverse_model], device, reports, shards)
        return
    shards.reject()
    paths = options.choose_pair_files(out, out_src, out_tgt, "clean")
    for path in paths:
        options.check_new_file(path, (src, tgt, *settings.exclude))
    _check_reports(reports, (src, tgt, *settings.exclude))
    for path in filter(None, (src, tgt)):
        if path.exists() and not path.is_dir():
            check_regular(path)  # because it is read twice
    corpus = Corpus(find_shards(src, tgt))
    codes = _choose_languages(languages, src, tgt, corpus)
    with options.exit_on_interruption(), Interruptions():
        excluded = (text for path in settings.exclude for text in read_texts(path))
        score = None if model is None else _load_scorer(model, reverse_model, device)
        cleaner = Cleaner(settings, codes, excluded, score)
        cleaner.report.conditions |= {
            "files": [path.name for path in (src, tgt) if path],
            "languages": list(codes),
            "models": [str(path) for path in (model, reverse_model) if path],
            "settings": settings.model_dump(mode="json"),
        }
        _write(cleaner, corpus, paths, reports)
    for line in cleaner.report.summary():
        typer.echo(line)


def _check_reports(reports: Sequence[Path], inputs: Sequence[Path | None]) -> None:
    for path in reports:
        options.check_new_file(path, inputs)
        if path.suffix.lower() not in (".html", ".json"):
            raise UserError(f"{path}: --report writes .html or .json; choose a name with one of these suffixes")


def _clean_shards(
    src: Path,
    out: Path,
    settings: CleaningSettings,
    languages: str | None,
    models: Sequence[Path | None],
    device: str,
    reports: Sequence[Path],
    shards: options.ShardOptions,
) -> None:
    """Keep the good rows of a folder of shards."""
    from regard.cli.shards import checksum, fingerprints, open_run, run_job
    from regard.console import Interruptions
    from regard.data.text.languages import detect_language
    from regard.files import replace_text_file
    from regard.pipelines.shard_cleaning import Cleaning, ShardCleaner, read_pairs
    from regard.pipelines.shard_jobs import TranslatorSource
    from regard.pipelines.shards import Folder, divide, find_shards, read_rows

    runs = [path for path in models if path is not None]
    settings = settings.changed(exclude=[path.absolute() for path in settings.exclude])
    if languages is not None:
        codes = _parse_languages(languages)
    else:
        folder = Folder(src)
        name, size = next(iter(find_shards(folder).items()))
        first = next(read_rows(folder, divide(folder, name, size)[0]), None)
        pairs = [] if first is None else read_pairs(first)[:DETECTION_PAIRS]
        codes = detect_language(pair.source for pair in pairs), detect_language(pair.target for pair in pairs)
    conditions = {
        "settings": settings.model_dump(mode="json", exclude={"exclude"}),
        "exclude": [checksum(path) for path in settings.exclude],
        "languages": codes,
        "models": fingerprints(runs),
    }
    run = open_run("clean", src, out, conditions)
    sources = tuple(TranslatorSource((path.absolute(),), device) for path in runs)
    cleaner = ShardCleaner(run, Cleaning(settings, codes, sources), shards.executor(device if runs else "cpu"))
    cleaner.report.conditions |= {"files": [src.name], "languages": list(codes), "models": [str(path) for path in runs]}
    cleaner.report.conditions |= {"settings": settings.model_dump(mode="json")}
    if run.is_complete:
        typer.echo(f"{run.target.url}: complete already")
        return
    with options.exit_on_interruption(), Interruptions(), PassProgress() as progress:
        for name, pairs_read in cleaner.prepare():
            progress(name, pairs_read)

    def write_reports() -> None:
        cleaner.finish()
        for path in reports:
            content = cleaner.report.as_json() if path.suffix.lower() == ".json" else cleaner.report.as_html()
            with replace_text_file(path) as file:
                file.write(content)

    run_job(run, cleaner.job(), cleaner.executor, write_reports)
    for line in cleaner.report.summary():
        typer.echo(line)


def _parse_languages(given: str) -> tuple[str, str]:
    """Return the two language codes of --languages."""
    from regard.data.text.languages import find_language

    codes = [find_language(code) for code in given.split(",")]
    if len(codes) != 2 or not all(codes):
        raise UserError(f"--languages {given}: write two language codes with a comma, such as en,de")
    return codes[0], codes[1]


def _read_settings(
    recipe: Path | None, overrides: Sequence[str], exclude: Sequence[Path], with_model: bool
) -> CleaningSettings:
    """Combine the recipe and the options; options come last."""
    from regard.config import MAX_YAML_BYTES, parse_yaml
    from regard.data.text.cleaning.settings import CleaningSettings, ModelCleaningSettings
    from regard.files import read_text

    values: dict[str, Any] = {}
    try:
        if recipe is not None:
            values = parse_yaml(read_text(recipe, MAX_YAML_BYTES)) or {}
            if not isinstance(values, dict):
                raise UserError(f"{recipe}: a recipe consists of keys and values, such as ratio: 3")
        values |= {key: parse_yaml(text) for key, text in options.parse_key_values("--set", overrides).items()}
    except ValueError as error:
        raise UserError(f"{recipe or '--set'}: not valid YAML ({error})") from None
    settings_type = ModelCleaningSettings if with_model else CleaningSettings
    for key in sorted(values.keys() & (ModelCleaningSettings.model_fields.keys() - settings_type.model_fields.keys())):
        raise UserError(f"{recipe or '--set'}: {key} is a threshold for scores of a model; give --model too")
    settings = settings_type.parse(values, str(recipe or "options"))
    return settings.changed(exclude=[*settings.exclude, *exclude])


def _choose_languages(given: str | None, src: Path, tgt: Path | None, corpus: Corpus) -> tuple[str, str]:
    """Return the language codes: as given, or as the columns or the files are named, or by the script."""
    from regard.data.text.languages import detect_language, find_language
    from regard.data.text.readers import languages_in_names

    if given is not None:
        return _parse_languages(given)
    header = corpus.shards[0].header() or ("", "")
    named = languages_in_names(src, tgt)
    codes = [find_language(column) or name for column, name in zip(header, named, strict=True)]
    if not all(codes):
        first = list(islice(corpus.pairs(), DETECTION_PAIRS))
        codes = [code or detect_language(pair[side] for pair in first) for side, code in enumerate(codes)]
    return codes[0], codes[1]


def _load_scorer(model: Path, reverse_model: Path | None, device: str) -> PairScorer:
    from regard.ops.dispatch import choose_device
    from regard.pipelines.pair_scores import PairScorer
    from regard.pipelines.translator import Translator

    models = [Translator.load(path, device=choose_device(device)) for path in (model, reverse_model) if path]
    return PairScorer(*models)


class PassProgress:
    """Context manager that shows the progress of both passes; the second one has as many pairs as the first."""

    def __init__(self) -> None:
        self._stack, self._name = ExitStack(), ""
        self._shown: LineProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, name: str, pairs: int) -> None:
        """Count pairs of the pass `name`."""
        from regard.console import LineProgress

        if name != self._name:
            self._stack.close()
            total = self._shown.done if self._shown else None
            self._shown, self._name = LineProgress(total, noun=f"pairs ({name})"), name
            self._stack.enter_context(self._shown)
        assert self._shown is not None
        self._shown.advance(pairs)


def _write(cleaner: Cleaner, corpus: Corpus, paths: Sequence[Path], reports: Sequence[Path]) -> None:
    """Clean the corpus and write the results, which appear when all of them are complete."""
    from itertools import compress

    from regard.data.text.writers import format_pairs
    from regard.files import replace_text_file

    with ExitStack() as stack:
        files = [stack.enter_context(replace_text_file(path)) for path in paths]
        for records, kept in cleaner.clean(corpus.all_records, stack.enter_context(PassProgress())):
            texts = format_pairs(paths, [record.pair for record in compress(records, kept)])
            for file, text in zip(files, texts, strict=True):
                file.write(text)
        if not cleaner.report.kept:
            removed = ", ".join(f"{rule}: {number:,}" for rule, number in cleaner.report.removed.most_common())
            raise UserError(f"{corpus.name}: the rules remove all pairs ({removed}); change their thresholds")
        for path in reports:
            content = cleaner.report.as_json() if path.suffix.lower() == ".json" else cleaner.report.as_html()
            stack.enter_context(replace_text_file(path)).write(content)
