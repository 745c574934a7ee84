"""Output files that a command writes for a long time: checked before the work starts, complete when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from regard.errors import UserError
from regard.runtime import Interrupted, Interruptions, LineProgress

if TYPE_CHECKING:
    from regard.pipelines.records import AlignedRecordFiles, RecordFile

Records = TypeVar("Records", "RecordFile", "AlignedRecordFiles")


def check_output(output: Path, resume: bool, inputs: Sequence[Path]) -> None:
    """Check, before a model is loaded, that translations can be written to `output`.

    Raises:
        UserError: the file cannot be written, exists without `resume`, or is one of the `inputs`.
    """
    from regard.data.text.readers import COMPRESSION_SUFFIXES

    if output.suffix.lower() in COMPRESSION_SUFFIXES:
        raise UserError(f"{output}: translations are not compressed; choose a name without {output.suffix}")
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UserError(f"{output} is an input file; choose another name for the translations")
    if output.is_dir():
        raise UserError(f"{output} is a directory; translations need a file name")
    if output.is_file() and not resume:
        raise UserError(f"{output} already exists; continue it with --resume, or choose another name")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if resume and output.exists() and not output.is_file():
        raise UserError(f"{output} is not a regular file, so --resume cannot continue it")


@contextmanager
def open_output(
    open_records: Callable[[Interruptions], Records], total: int | None, shown: bool = True
) -> Iterator[tuple[Records, LineProgress]]:
    """Open record files and a progress display; on an interruption print how to continue and exit."""
    with Interruptions() as interruptions:
        records = open_records(interruptions)
        try:
            with records, LineProgress(total, records.count, shown=shown) as progress:
                yield records, progress
        except Interrupted as interrupted:
            typer.echo(f"regard: {records.explain_interruption()}", err=True)
            sys.exit(128 + interrupted.signal)
