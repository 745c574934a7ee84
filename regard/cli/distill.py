"""`regard distill`: translates a corpus with a trained model, as training data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.shards import is_folder
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.cli.record_files import RecordCount
    from regard.training.distillation import Corpus, Distillation


@options.add_shard_options
@options.add_search_options()
def distill(
    teacher: options.Run,
    search_options: options.SearchOptions,
    shards: options.ShardOptions,
    src: Annotated[
        Path | None, typer.Option(help="text to translate: lines, .tsv, .jsonl, .parquet, or a folder")
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="its translations, for --closest and --keep-reference")] = None,
    recipe: Annotated[Path | None, typer.Option(help="use the training pairs of a recipe instead of files")] = None,
    out: Annotated[
        Path | None, typer.Option(help="new .tsv or .jsonl file for both sides; for shards, a folder")
    ] = None,
    out_src: Annotated[Path | None, typer.Option(help="instead of --out: new file for the source lines")] = None,
    out_tgt: Annotated[Path | None, typer.Option(help="with --out-src: new file for the translations")] = None,
    resume: options.Resume = False,
    closest: Annotated[str | None, typer.Option(help="select the n-best translation closest by chrf or bleu")] = None,
    n_best: Annotated[int | None, typer.Option(help="translations for --closest; by default the beam size")] = None,
    keep_reference: Annotated[bool, typer.Option("--keep-reference", help="also write the original pair")] = False,
    back_translate: Annotated[
        bool, typer.Option("--back-translate", help="write the translations as sources and --src as targets")
    ] = False,
    longest: Annotated[int, typer.Option(help="skip lines with more tokens")] = 256,
    others: options.Others = None,
    overrides: options.Overrides = None,
    device: options.Device = "auto",
) -> None:
    """Translate a corpus with a trained model or an ensemble: training data for a student, or back-translation."""
    from regard.cli.record_files import AlignedRecordFiles
    from regard.evaluation.translation import fingerprint_model
    from regard.models.folder import find_model_folder
    from regard.ops.dispatch import choose_device
    from regard.pipelines.translator import Translator
    from regard.training.distillation import Distillation, Provenance, format_pairs
    from regard.training.distillation import distill as distill_corpus

    if closest is not None and n_best is None:
        n_best = search_options.settings(teacher).candidates
    settings = search_options.settings(teacher, n_best=n_best)
    _check_choice(closest, settings.n_best)
    distillation = Distillation.parse(
        {
            "search": settings,
            "closest": closest,
            "keep_reference": keep_reference,
            "back_translate": back_translate,
            "longest": longest,
        },
        "options",
    )
    if src is not None and is_folder(src) and out is not None and out.suffix.lower() not in (".tsv", ".jsonl"):
        rejected = {"--tgt": tgt, "--recipe": recipe, "--set": overrides, "--resume": resume}
        options.reject_options("a folder of shards", rejected | {"--out-src": out_src, "--out-tgt": out_tgt})
        _distill_shards([teacher, *(others or ())], src, out, distillation, shards, device)
        return
    shards.reject()
    paths = options.choose_pair_files(out, out_src, out_tgt, "distill")
    for path in paths:
        options.check_output(path, resume, (src, tgt))
    corpus = _open_corpus(recipe, overrides or (), src, tgt)
    lines, checksum = corpus.measure()
    runs = [teacher, *(others or ())]
    fingerprints = [fingerprint_model(find_model_folder(run)) for run in runs]
    provenance = Provenance(paths[-1], fingerprints, (lines, checksum), distillation)
    if provenance.path.exists() and not resume:
        raise UserError(f"{provenance.path} already exists; continue its output with --resume, or choose another name")
    translator = Translator.load(*runs, device=choose_device(device))
    translator.check_settings(settings)  # before the output is opened
    resumed = resume and any(path.exists() for path in paths)
    provenance.begin(resumed)
    finished = _count_finished(paths, distillation) if resumed else None
    try:
        with options.open_output(lambda stop: AlignedRecordFiles(paths, stop, finished), lines) as (records, progress):
            counts = distill_corpus(
                translator,
                corpus,
                distillation,
                lambda pairs: records.append(*format_pairs(paths, pairs)),
                done=records.count,
                progress=progress.advance,
            )
    except BaseException:
        if not any(path.exists() for path in paths):
            provenance.path.unlink(missing_ok=True)
        raise
    provenance.finish(paths, counts, lines * distillation.pairs_per_line)
    typer.echo(
        f"{lines} lines: {counts.blank} blank, {counts.long} of more than {longest} tokens, "
        f"{lines - counts.blank - counts.long} translated; the settings are saved in {provenance.path}"
    )
    counts.unusual.log()
    files = f"--src {paths[0]}" + (f" --tgt {paths[1]}" if len(paths) == 2 else "")
    typer.echo(f"next: regard train {files} --out RUN")


def _distill_shards(
    runs: Sequence[Path], src: Path, out: Path, distillation: Distillation, shards: options.ShardOptions, device: str
) -> None:
    """Replace the sources and targets of a folder of shards."""
    from regard.cli.shards import fingerprints, open_run, run_job
    from regard.pipelines.shard_jobs import TranslatorSource
    from regard.training.shard_distillation import DistillJob

    has_references = distillation.closest is not None or distillation.keep_reference
    paths = tuple(run.absolute() for run in runs)
    job = DistillJob(TranslatorSource(paths, device), distillation, has_references)
    conditions = {"models": fingerprints(runs), "settings": distillation.model_dump(mode="json")}
    run_job(open_run("distill", src, out, conditions), job, shards.executor(device))


def _check_choice(closest: str | None, n_best: int) -> None:
    if closest is None and n_best > 1:
        raise UserError("--n-best needs --closest, which selects one of them for each line")
    if closest is not None and n_best == 1:
        raise UserError("--closest needs several translations to choose from; give --beam or --n-best of 2 or more")


def _open_corpus(recipe: Path | None, overrides: Sequence[str], src: Path | None, tgt: Path | None) -> Corpus:
    """Open the text to translate, from files or from a recipe."""
    from regard.data.text.readers import PAIR_SUFFIXES, Pair, format_suffix, read_lines, read_parallel
    from regard.training.distillation import Corpus
    from regard.training.tasks.registry import load_recipe
    from regard.training.tasks.translation.data import open_corpora
    from regard.training.tasks.translation.recipe import TranslationRecipe

    if (recipe is None) == (src is None):
        raise UserError("distill needs either --src, a file, or --recipe, whose training pairs are used")
    if recipe is not None:
        if tgt is not None:
            raise UserError("--tgt belongs to --src; a recipe names its own files")
        loaded = load_recipe(recipe, overrides, expected=TranslationRecipe)
        return Corpus(open_corpora(loaded.data, loaded.training.seed).pairs, has_references=True)
    assert src is not None
    if overrides:
        raise UserError("--set changes a recipe; give --recipe, or omit it")
    if tgt is not None or src.is_dir() or format_suffix(src) in PAIR_SUFFIXES:
        return Corpus(lambda: read_parallel(src, tgt), has_references=True)
    return Corpus(lambda: (Pair(line, "") for line in read_lines(src)), has_references=False)


def _count_finished(paths: Sequence[Path], distillation: Distillation) -> list[RecordCount]:
    """Count the records of an interrupted command, which may have stopped before it created the second file."""
    from regard.cli.record_files import count_aligned

    for path in paths:
        path.touch()
    return count_aligned(paths, distillation.pairs_per_line)
