"""`regard distill`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Change, Device, Others, Resume, Run, Search, with_search
from regard.cli.output import check_output, writing

if TYPE_CHECKING:
    from regard.pipelines.output import GoingOn
    from regard.training.distillation import Corpus, Distillation


@with_search()
def distill(
    teacher: Run,
    search: Search,
    src: Annotated[
        Path | None,
        typer.Option(help="what to translate: a file of lines (.gz, .xz), a .tsv, .jsonl or .parquet, or a folder"),
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="its translations, for --closest and --keep-reference")] = None,
    recipe: Annotated[Path | None, typer.Option(help="take the training pairs of a recipe instead of files")] = None,
    out: Annotated[Path | None, typer.Option(help="a new .tsv or .jsonl file for both sides")] = None,
    out_src: Annotated[Path | None, typer.Option(help="or a new file for the source lines")] = None,
    out_tgt: Annotated[Path | None, typer.Option(help="and one for the teacher's translations beside them")] = None,
    resume: Resume = False,
    closest: Annotated[
        str | None, typer.Option(help="of the n best take the one nearest to the reference, by chrf or bleu")
    ] = None,
    n_best: Annotated[int | None, typer.Option(help="how many --closest chooses from, the beam unless given")] = None,
    keep_reference: Annotated[
        bool, typer.Option("--keep-reference", help="write two pairs a line: the original one, then the distilled one")
    ] = False,
    longest: Annotated[int, typer.Option(help="lines of more tokens stay without a translation")] = 256,
    others: Others = None,
    change: Change = None,
    device: Device = "auto",
) -> None:
    """Translate a corpus with a trained model, or several that vote: the new corpus is a student's to learn from."""
    from regard.errors import UserError
    from regard.evaluation import fingerprint_model
    from regard.models.folder import find_model_folder
    from regard.pipelines.output import AlignedRecordFiles
    from regard.pipelines.translator import Translator
    from regard.runtime import choose_device
    from regard.training.distillation import Distillation, Provenance, write_pairs
    from regard.training.distillation import distill as distill_corpus

    if closest is not None and n_best is None:
        n_best = search.settings(teacher).candidates
    settings = search.settings(teacher, n_best=n_best)
    _check_choice(closest, settings.n_best)
    how = Distillation.parse(
        {"search": settings, "closest": closest, "keep_reference": keep_reference, "longest": longest}, "options"
    )
    paths = _choose_paths(out, out_src, out_tgt)
    for path in paths:
        check_output(path, resume, [file for file in (src, tgt) if file is not None])
    corpus = _open_corpus(recipe, change or (), src, tgt)
    lines, checksum = corpus.measure()
    runs = [teacher, *(others or ())]
    provenance = Provenance(
        paths[-1], [fingerprint_model(find_model_folder(run)) for run in runs], (lines, checksum), how
    )
    if provenance.path.exists() and not resume:
        raise UserError(f"{provenance.path} exists already; go on with its output by --resume, or choose another name")
    translator = Translator.load(*runs, device=choose_device(device))
    translator.fit(settings)  # refuses what it cannot do before there is an output
    begun = resume and any(path.exists() for path in paths)
    provenance.begin(begun)
    going_on = _find_beginning(paths, how) if begun else None
    try:
        with writing(lambda stop: AlignedRecordFiles(paths, stop, going_on), lines) as (records, progress):
            counts = distill_corpus(
                translator,
                corpus,
                how,
                lambda pairs: records.append(*write_pairs(paths, pairs)),
                done=records.records,
                progress=progress.advance,
            )
    except BaseException:
        if not any(path.exists() for path in paths):
            provenance.path.unlink(missing_ok=True)
        raise
    provenance.finish(paths, counts, lines * how.pairs_per_line)
    typer.echo(
        f"{lines} lines: {counts.blank} blank, {counts.long} of more than {longest} tokens, "
        f"{lines - counts.blank - counts.long} translated; what made them is in {provenance.path}"
    )
    files = f"--src {paths[0]}" + (f" --tgt {paths[1]}" if len(paths) == 2 else "")
    typer.echo(f"next: regard train {files} --out RUN")


def _check_choice(closest: str | None, n_best: int) -> None:
    from regard.errors import UserError

    if closest is None and n_best > 1:
        raise UserError("--n-best is what --closest chooses from; a line gets one translation without it")
    if closest is not None and n_best == 1:
        raise UserError("--closest needs several translations to choose from; give --beam or --n-best of 2 or more")


def _choose_paths(out: Path | None, out_src: Path | None, out_tgt: Path | None) -> list[Path]:
    """The file for both sides, or those for each."""
    from regard.data.text.readers import PAIR_SUFFIXES
    from regard.errors import UserError

    if out is not None and out_src is None and out_tgt is None:
        if out.suffix.lower() not in (".tsv", ".jsonl"):
            raise UserError(f"{out}: --out holds both sides, so it must end in .tsv or .jsonl; or give --out-src")
        return [out]
    if out is None and out_src is not None and out_tgt is not None:
        if out_src.absolute() == out_tgt.absolute():
            raise UserError(f"{out_src}: --out-src and --out-tgt are one file; choose two names")
        for path in (out_src, out_tgt):
            if path.suffix.lower() in PAIR_SUFFIXES:
                raise UserError(f"{path}: the name is that of a file of both sides; give a .tsv or .jsonl as --out")
        return [out_src, out_tgt]
    raise UserError("distill needs either --out, a .tsv or .jsonl file, or both --out-src and --out-tgt")


def _open_corpus(recipe: Path | None, changes: Sequence[str], src: Path | None, tgt: Path | None) -> Corpus:
    """What is to be translated, from files or by a recipe."""
    from regard.data.text.pairs import Pair
    from regard.data.text.readers import PAIR_SUFFIXES, format_suffix, read_lines, read_parallel
    from regard.errors import UserError
    from regard.training.distillation import Corpus
    from regard.training.tasks.translation.data import open_corpora
    from regard.training.tasks.translation.recipe import TranslationRecipe

    if (recipe is None) == (src is None):
        raise UserError("distill needs either --src, a file, or --recipe, whose training pairs are taken")
    if recipe is not None:
        if tgt is not None:
            raise UserError("--tgt belongs to --src; a recipe names its own files")
        wanted = TranslationRecipe.load(recipe, changes)
        return Corpus(open_corpora(wanted.data, wanted.training.seed).pairs, has_references=True)
    assert src is not None
    if changes:
        raise UserError("--set changes a recipe; give --recipe, or leave it away")
    if tgt is not None or src.is_dir() or format_suffix(src) in PAIR_SUFFIXES:
        return Corpus(lambda: read_parallel(src, tgt), has_references=True)
    return Corpus(lambda: (Pair(line, "") for line in read_lines(src)), has_references=False)


def _find_beginning(paths: Sequence[Path], how: Distillation) -> list[GoingOn]:
    """What an interrupted command has left; it may have been killed before it made the second file."""
    from regard.pipelines.output import count_side_by_side

    for path in paths:
        path.touch()
    return count_side_by_side(paths, how.pairs_per_line)
