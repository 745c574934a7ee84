"""`regard calibrate`: calibrates the confidence of a translation model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Run, SearchOptions, add_search_options
from regard.errors import UserError


@add_search_options()
def calibrate(
    run: Run,
    search_options: SearchOptions,
    src: Annotated[Path, typer.Option(help="source sentences; or .tsv, .jsonl or .parquet with references")],
    ref: Annotated[Path | None, typer.Option(help="reference translations, one per line")] = None,
    device: Device = "auto",
) -> None:
    """Calibrate the confidence of a translation model on sentence pairs; training does this on its validation data."""
    from regard.data.text.readers import read_parallel
    from regard.evaluation.calibration import MIN_SENTENCES, calibrate_translator, save_calibration
    from regard.models.folder import find_model_folder, is_exported
    from regard.ops.dispatch import choose_device
    from regard.pipelines.translator import Translator

    if is_exported(run):
        raise UserError(f"{run}: an export has no log-probabilities of tokens; calibrate the model it was made from")
    folder = find_model_folder(run)
    settings = search_options.settings(run)
    pairs = [pair for pair in read_parallel(src, ref) if pair.source.strip() and pair.target.strip()]
    if len(pairs) < MIN_SENTENCES:
        raise UserError(
            f"{src}: {len(pairs)} pairs with text are too few to calibrate confidence; give at least {MIN_SENTENCES}"
        )
    translator = Translator.load(folder, device=choose_device(device))
    calibration = calibrate_translator(translator, pairs, settings)
    save_calibration(calibration, folder)
    error = calibration.error
    typer.echo(
        f"{error.sentences:,} sentences, {error.tokens:,} tokens; expected calibration error by cross-validation:"
    )
    for noun, ece, share in (
        ("sentences", error.sentence_ece, error.right_sentences),
        ("tokens", error.token_ece, error.right_tokens),
    ):
        typer.echo(f"{noun} {ece:.4f} ({share:.1%} agree with the reference)")
