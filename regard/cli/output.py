"""Files that a command writes for a long time: refused before the work where they cannot be, whole after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from regard.pipelines.output import AlignedRecordFiles, Output
    from regard.pipelines.progress import LineProgress
    from regard.runtime import Interruptions

Records = TypeVar("Records", "Output", "AlignedRecordFiles")


def check_output(output: Path, resume: bool, read: Sequence[Path]) -> None:
    """Refuses a file that could not be written, or that is one of those to `read`, before a model is loaded."""
    from regard.data.text.readers import COMPRESSION_SUFFIXES
    from regard.errors import UserError

    if output.suffix.lower() in COMPRESSION_SUFFIXES:
        raise UserError(f"{output}: translations are not compressed; choose a name without {output.suffix}")
    if output.exists() and any(path.exists() and output.samefile(path) for path in read):
        raise UserError(f"{output} is what is to be read; choose another name for the translations")
    if output.is_dir():
        raise UserError(f"{output} is a directory; translations need a file name")
    if output.is_file() and not resume:
        raise UserError(f"{output} exists already; go on with it by --resume, or choose another name")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if resume and output.exists() and not output.is_file():
        raise UserError(f"{output} is no ordinary file, so --resume cannot go on with it")


@contextmanager
def writing(
    make: Callable[[Interruptions], Records], total: int | None, shown: bool = True
) -> Iterator[tuple[Records, LineProgress]]:
    """An open output and a display of how far it is; an interruption is explained and ends the process."""
    from regard.pipelines.progress import LineProgress
    from regard.runtime import Interrupted, Interruptions

    with Interruptions() as interruptions:
        records = make(interruptions)
        try:
            with records, LineProgress(total, records.records, shown=shown) as progress:
                yield records, progress
        except Interrupted as interrupted:
            typer.echo(f"regard: {records.explain_interruption()}", err=True)
            sys.exit(128 + interrupted.signal)
