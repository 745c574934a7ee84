"""Save a scene as a page (.html) or a figure (.png, .svg). Files are written atomically."""

from pathlib import Path

from regard.errors import UserError
from regard.inspection.scene import Scene
from regard.runtime import replace_text_file

FORMATS = (".html", ".png", ".svg")


def check_output(out: Path) -> None:
    """Raise a `UserError` if a file cannot be written, before anything is computed for it."""
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"{out}: the file name must end in {', '.join(FORMATS)}")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file name")
    if not out.parent.is_dir():
        raise UserError(f"{out}: folder {out.parent} does not exist")


def save_scene(scene: Scene, out: Path) -> None:
    """Draw a scene in the format of the file's suffix. An existing file is replaced."""
    check_output(out)
    if out.suffix.lower() == ".html":
        from regard.inspection.html import render_page

        with replace_text_file(out) as file:
            file.write(render_page(scene))
    else:
        from regard.inspection.figure import save_scene_figure  # importing matplotlib takes a second

        save_scene_figure(scene, out)
