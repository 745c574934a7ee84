"""Complete records at the start of output files, after which an interrupted translation continues."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from regard.errors import UserError
from regard.files import open_regular

Form = Literal["text", "n-best", "json"]
"""Format of the records; see `regard.pipelines.translate_files.format_record`."""
SEPARATOR = " ||| "


class RecordCount(NamedTuple):
    """Complete records at the start of a file, and their size in bytes."""

    records: int
    bytes: int


def count_records(path: Path, form: Form, n_best: int = 1) -> RecordCount:
    """Count the complete records of an output file.

    The last record of an n-best list is complete if it has `n_best` lines. One with fewer lines is not counted: search
    may have found fewer translations, or the record may have been cut.
    """
    if form == "n-best":
        return _count_n_best(path, n_best)
    if form == "json" and not next(complete_lines(path), b'{"source": ').startswith(b'{"source": '):
        raise UserError(f"{path} was not written with --json, so --resume cannot continue it")
    return count_lines(path)


def _count_n_best(path: Path, n_best: int) -> RecordCount:
    """Count the records of an n-best list; an incomplete last record is not counted."""
    records = size = 0
    last_start = last_lines = 0
    for line in complete_lines(path):
        digits = line.partition(SEPARATOR.encode())[0]
        number = int(digits) if digits.isdigit() else 0
        if number not in (records, records + 1) or number == 0:
            raise UserError(f"{path} is not an n-best list written by regard, so --resume cannot continue it")
        if number == records + 1:
            last_start, last_lines = size, 0
        records, last_lines, size = number, last_lines + 1, size + len(line)
    if records and last_lines < n_best:
        return RecordCount(records - 1, last_start)
    return RecordCount(records, size)


def count_aligned(paths: Sequence[Path], lines_per_record: int = 1) -> list[RecordCount]:
    """Count the records that all of several corresponding files have."""
    common = min(count_lines(path, lines_per_record).records for path in paths)
    return [count_lines(path, lines_per_record, common) for path in paths]


def count_lines(path: Path, lines_per_record: int = 1, most: int | None = None) -> RecordCount:
    """Count the complete records of a file, up to `most`."""
    records = size = 0
    lines = complete_lines(path)
    while most is None or records < most:
        record = list(islice(lines, lines_per_record))
        if len(record) < lines_per_record:
            break
        records, size = records + 1, size + sum(map(len, record))
    return RecordCount(records, size)


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line breaks; a last line without one is dropped."""
    with open_regular(path) as file:
        yield from (line for line in file if line.endswith(b"\n"))
