"""`regard average`: averages the weights of models or checkpoints."""

from pathlib import Path
from typing import Annotated

import typer


def average(
    runs: Annotated[list[Path], typer.Argument(help="models, or a single run to average its checkpoints")],
    out: Annotated[Path, typer.Option(help="model folder to write; it must not exist")],
) -> None:
    """Average the weights of several models of the same architecture, or of the checkpoints of one run."""
    from regard.training.checkpoint_average import average_models

    for folder in average_models(runs, out):
        typer.echo(f"averaged {folder}")
    typer.echo(f"the mean is {out}; next: regard translate {out} < FILE")
