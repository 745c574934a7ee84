"""`regard look`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Beam, Device, MoreSearch, Rounds, Run, choose_search


def look(
    run: Run,
    sentence: Annotated[str, typer.Argument(help="what to translate")],
    out: Annotated[
        Path, typer.Option(help="a page that works from disk, .html, or a picture, .png or .svg; replaced if there")
    ] = Path("look.html"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="show this attention, such as decoder.1.cross, not all; may be repeated"),
    ] = None,
    beam: Beam = None,
    rounds: Rounds = None,
    search: MoreSearch = None,
    device: Device = "auto",
) -> None:
    """Translate a sentence and show what every layer and head looked at: a page to click through, or a picture."""
    from regard.inspection.output import check_picture, save_scene
    from regard.looking import look_at

    check_picture(out)
    scene = look_at(run, sentence, only, choose_search(run, search, beam=beam, rounds=rounds), device)
    save_scene(scene, out)
    typer.echo(f"{scene.translation}\n{out}")
