"""`regard plot`: plots the metrics of training runs."""

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of training runs, finished or not")],
    out: Annotated[Path, typer.Option(help="image, .png, .svg or .pdf; replaced if it exists")] = Path("plot.png"),
    horizontal: Annotated[
        str, typer.Option("--x", metavar="QUANTITY", help="step, seconds, tokens or images")
    ] = "step",
) -> None:
    """Plot loss, scores, learning rate, gradient norm, speed and memory of training runs."""
    from regard.training.plot import plot_runs

    plot_runs(runs, out, horizontal)
    typer.echo(out)
