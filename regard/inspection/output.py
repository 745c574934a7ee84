"""A scene as a file: a page (.html) or a picture (.png, .svg), written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError
from regard.inspection.scene import Scene

FORMATS = (".html", ".png", ".svg")


def check_output(out: Path) -> None:
    """Refuses a file that could not be written, before anything is computed for it.

    Raises:
        UserError: its name has another ending, it is a folder, or it would be in one that does not exist.
    """
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"{out}: what is seen is written as {', '.join(FORMATS)}; choose such a name")
    if out.is_dir():
        raise UserError(f"{out} is a directory; a picture needs a file name")
    if not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")


def save_scene(scene: Scene, out: Path) -> None:
    """Draws the scene as the file's name asks for; an existing file is replaced.

    Raises:
        UserError: the file cannot be written.
    """
    check_output(out)
    with atomic_write(out) as part:
        part.write_bytes(_render(scene, out.suffix.lower()))


@contextmanager
def atomic_write(out: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `out` once the block has ended without an error.

    Raises:
        UserError: the file cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        yield part
        part.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _render(scene: Scene, suffix: str) -> bytes:
    if suffix == ".html":
        from regard.inspection.html import render_page

        return render_page(scene).encode("utf-8")
    from regard.inspection.figure import render_figure  # matplotlib takes a second to import

    return render_figure(scene, "png" if suffix == ".png" else "svg")
