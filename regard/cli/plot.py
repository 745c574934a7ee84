"""`regard plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of training runs, finished or not")],
    out: Annotated[Path, typer.Option(help="the picture, .png, .svg or .pdf; an existing one is replaced")] = Path(
        "plot.png"
    ),
    horizontal: Annotated[
        str, typer.Option("--x", metavar="WHAT", help="what runs from left to right: step, seconds, tokens or images")
    ] = "step",
) -> None:
    """Draw loss, scores, learning rate, gradient, speed and memory of runs, over each other."""
    from regard.training.plot import plot_runs

    plot_runs(runs, out, horizontal)
    typer.echo(out)
