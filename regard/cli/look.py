"""`regard look`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Beam, Device, Iterations, MoreSearch, Run, choose_search


def look(
    run: Run,
    given: Annotated[
        list[str], typer.Argument(help="a sentence for a translator; an image for a classifier; two views for CroCo")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="a page that works from disk, .html, or a picture, .png or .svg; replaced if there",
            show_default="look.html; of images look.png",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="show this attention, such as decoder.1.cross, not all; may be repeated"),
    ] = None,
    head: Annotated[
        list[int] | None,
        typer.Option(metavar="NUMBER", min=0, help="of an image: show this head, from 0, not all; may be repeated"),
    ] = None,
    patch: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="ROW COLUMN", help="of an image: what this patch looked at, not the answer; from 0 0"),
    ] = None,
    beam: Beam = None,
    iterations: Iterations = None,
    search: MoreSearch = None,
    device: Device = "auto",
) -> None:
    """Show what a model's layers and heads look at while it translates, classifies or matches: a page, or a picture."""
    from regard.inspection import look as looking

    settings = choose_search(run, search, beam=beam, iterations=iterations)
    said, drawn = looking.look(run, given, out, only, settings, device, patch, head)
    typer.echo(said)
    typer.echo(drawn)
