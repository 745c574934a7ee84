"""Output files of records, and how many complete records they have.

A record is the result of one input line: a line of text, its n best translations in a line each, or a JSON object.
Records are in the order of the lines, and output files contain complete records only, so that an interrupted output
can be continued after its last record.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self, cast

from regard.console import Interruptions
from regard.errors import UserError
from regard.files import open_regular

Form = Literal["text", "n-best", "json"]
"""Format of the records; see `regard.cli.translate.format_record`."""
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


class RecordFile:
    """Writes records to a new file, to an existing file that is continued, or to a device.

    After an error, an incomplete record at the end is removed, and so is a new file without any record.

    Args:
        path: The file.
        interruptions: Signals, which are deferred while a record is written.
        finished: The records to keep when an existing file is continued.
    """

    def __init__(self, path: Path, interruptions: Interruptions, finished: RecordCount | None = None) -> None:
        self.count, self._bytes = finished or (0, 0)
        self._path, self._interruptions, self._continues = path, interruptions, finished is not None
        self._started = False

    def __enter__(self) -> Self:
        path = self._path
        is_device = path.exists() and not (path.is_file() or path.is_dir())
        mode: Literal["r+b", "wb", "xb"] = "r+b" if self._continues else "wb" if is_device else "xb"
        try:
            # Unbuffered: written bytes are in the file, and closing does not retry a failed write.
            self._stream = cast(BinaryIO, path.open(mode, buffering=0))
            self._is_file = stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode)
        except FileExistsError:
            raise UserError(f"{path} already exists; continue it with --resume, or choose another name") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return self

    def append(self, record: str) -> None:
        """Write one record, completely or not at all."""
        content = record.encode("utf-8")
        try:
            with self._interruptions.defer():
                if self._continues and not self._started:
                    # Not before the first record: until then the input may still turn out to be the wrong one.
                    self._stream.truncate(self._bytes)
                    self._stream.seek(self._bytes)
                self._started = True
                rest = memoryview(content)
                while rest:
                    rest = rest[self._stream.write(rest) :]
                self._bytes += len(content)
                self.count += 1
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written ({error.strerror}){self._resume_hint()}") from None

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None and self._is_file and self._started:
            self._stream.truncate(self._bytes)
        with suppress(OSError):
            self._stream.close()
        if kind is not None and self._is_file and not self.count and not self._continues:
            self._path.unlink(missing_ok=True)

    def _resume_hint(self) -> str:
        if not self._is_file or not self.count:
            return ""
        return f"; {self._path} has the translations of {self.count} lines: continue with the same command and --resume"

    def explain_interruption(self) -> str:
        """Return one sentence on how much is complete, and how to continue."""
        return f"interrupted after {self.count} lines{self._resume_hint()}"


class AlignedRecordFiles:
    """Several files with corresponding records: the n-th record of each belongs to the n-th of the others."""

    def __init__(
        self, paths: Sequence[Path], interruptions: Interruptions, finished: Sequence[RecordCount] | None = None
    ) -> None:
        counts: Sequence[RecordCount | None] = finished or [None] * len(paths)
        self._interruptions = interruptions
        self._files = [RecordFile(path, interruptions, count) for path, count in zip(paths, counts, strict=True)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for file in self._files:
                stack.enter_context(file)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def count(self) -> int:
        """Number of records that all files have."""
        return min(file.count for file in self._files)

    def append(self, *records: str) -> None:
        """Write one record to each file, without an interruption in between."""
        with self._interruptions.defer():
            for file, record in zip(self._files, records, strict=True):
                file.append(record)

    def explain_interruption(self) -> str:
        """Return one sentence on how much is complete, and how to continue."""
        return self._files[-1].explain_interruption()
