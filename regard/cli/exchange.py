"""`regard export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="a new folder for what is written")],
    to: Annotated[str, typer.Option(help="the format: ctranslate2")],
    quantization: Annotated[
        str | None, typer.Option(help="with ctranslate2: numbers of the weights, such as int8; float32 unless given")
    ] = None,
    sample: Annotated[
        Path | None, typer.Option(help="sentences, one a line, to verify the result with, in place of made-up ones")
    ] = None,
) -> None:
    """Write a model in the format of another program, and verify that it says there what it says here."""
    from regard.exchange.exporting import export
    from regard.text.readers import read_lines

    texts = None if sample is None else list(read_lines(sample))
    for sentence in export(run, out, to, quantization, texts):
        typer.echo(sentence)
    typer.echo(f"{out}: written")
