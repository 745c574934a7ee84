"""`regard look`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Beam, Device, MoreSearch, Rounds, Run, choose_search


def look(
    run: Run,
    given: Annotated[str, typer.Argument(help="a sentence for a translator; for an image model, a file")],
    out: Annotated[
        Path, typer.Option(help="a page that works from disk, .html, or a picture, .png or .svg; replaced if there")
    ] = Path("look.html"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="show this attention, such as decoder.1.cross, not all; may be repeated"),
    ] = None,
    patch: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="ROW COLUMN", help="of an image: what this patch looked at, not the answer; from 0 0"),
    ] = None,
    beam: Beam = None,
    rounds: Rounds = None,
    search: MoreSearch = None,
    device: Device = "auto",
) -> None:
    """Translate a sentence, or classify an image, and show what layers and heads looked at: a page, or a picture."""
    from regard import looking

    settings = choose_search(run, search, beam=beam, rounds=rounds)
    typer.echo(looking.look(run, given, out, only, settings, device, patch))
    typer.echo(out)
