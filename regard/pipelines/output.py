"""Where records go: whole ones only, whatever happens, so that an output which ends early says where to go on."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, cast

from regard.errors import UserError
from regard.runtime import Interruptions

GoingOn = tuple[int, int]
"""What a file holds already: the records, and their bytes."""


class Output:
    """Where records go: a new file, one that is gone on with, a device, or standard output (`path` is None).

    A file holds whole records only, whatever happens: what an error leaves of one is cut off. A file without a
    record in it does not outlive an error.

    Raises:
        UserError: the file exists and is not to be gone on with, or cannot be written.
    """

    def __init__(self, path: Path | None, interruptions: Interruptions, going_on: GoingOn | None = None) -> None:
        self.name = "standard output" if path is None else str(path)
        self.records, self._bytes = going_on or (0, 0)
        self._path, self._interruptions, self._goes_on = path, interruptions, going_on is not None
        self._begun = False

    def __enter__(self) -> Self:
        path = self._path
        if path is None:
            self._stream, self._is_file = cast(BinaryIO, sys.stdout.buffer), False
            return self
        mode: Literal["r+b", "wb", "xb"] = (
            "r+b" if self._goes_on else "wb" if path.exists() and not _is_ordinary(path) else "xb"
        )
        try:
            # Without a buffer: what was written is in the file, and nothing is tried again when it is closed.
            self._stream = cast(BinaryIO, path.open(mode, buffering=0))
            self._is_file = stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode)
        except FileExistsError:
            raise UserError(f"{path} exists already; go on with it by --resume, or choose another name") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return self

    def append(self, record: str) -> None:
        """Writes one record, whole or not at all."""
        content = record.encode("utf-8")
        try:
            with self._interruptions.defer():
                if self._goes_on and not self._begun:  # not earlier: it may be the wrong file, and refused by the input
                    self._stream.truncate(self._bytes)
                    self._stream.seek(self._bytes)
                self._begun = True
                left = memoryview(content)
                while left:
                    left = left[self._stream.write(left) :]
                self._stream.flush()
                self._bytes += len(content)
                self.records += 1
        except OSError as error:
            if self._path is None:
                if isinstance(error, BrokenPipeError):
                    raise  # the reader has left, which is no mistake; the command line knows how to leave too
                _give_up_standard_output()
            raise UserError(f"{self.name}: cannot be written ({error.strerror}){self._way_on()}") from None

    def __exit__(self, kind: object, *error: object) -> None:
        if self._path is None:
            return
        if kind is not None and self._is_file and self._begun:
            self._stream.truncate(self._bytes)
        with suppress(OSError):
            self._stream.close()
        if kind is not None and self._is_file and not self.records and not self._goes_on:
            self._path.unlink(missing_ok=True)

    def _way_on(self) -> str:
        if self._path is None or not self._is_file or not self.records:
            return ""
        return f"; it holds the translations of {self.records} lines, and with --resume the same command goes on"

    def explain_interruption(self) -> str:
        """One sentence: how much is there, and what to do about the rest."""
        return f"interrupted after {self.records} lines{self._way_on()}"


class AlignedRecordFiles:
    """Files that grow together, one or more: the n-th record of each belongs to the n-th of the others.

    Raises:
        UserError: a file exists and is not to be gone on with, or cannot be written.
    """

    def __init__(
        self, paths: Sequence[Path], interruptions: Interruptions, going_on: Sequence[GoingOn] | None = None
    ) -> None:
        known: Sequence[GoingOn | None] = going_on or [None] * len(paths)
        self._interruptions = interruptions
        self._sides = [Output(path, interruptions, one) for path, one in zip(paths, known, strict=True)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for side in self._sides:
                stack.enter_context(side)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def records(self) -> int:
        """How many records all of them hold."""
        return min(side.records for side in self._sides)

    def append(self, *records: str) -> None:
        """Writes a record to each, and lets no interruption come between."""
        with self._interruptions.defer():
            for side, record in zip(self._sides, records, strict=True):
                side.append(record)

    def explain_interruption(self) -> str:
        """One sentence: how much is there, and what to do about the rest."""
        return self._sides[-1].explain_interruption()


def count_side_by_side(paths: Sequence[Path], at_once: int = 1) -> list[GoingOn]:
    """What files that grew together hold of the records that all of them have."""
    common = min(count_lines(path, at_once)[0] for path in paths)
    return [count_lines(path, at_once, common) for path in paths]


def count_lines(path: Path, at_once: int = 1, at_most: int | None = None) -> GoingOn:
    """How many records of `at_once` whole lines a file holds, of the first `at_most`, and their bytes.

    Raises:
        UserError: the file cannot be read.
    """
    records = size = 0
    lines = whole_lines(path)
    while at_most is None or records < at_most:
        record = list(islice(lines, at_once))
        if len(record) < at_once:
            break
        records, size = records + 1, size + sum(map(len, record))
    return records, size


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their ends; what follows the last line end is half of one, and left away.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _is_ordinary(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _give_up_standard_output() -> None:
    """Python would try again to write what is left when it ends, and complain once more."""
    with suppress(OSError, ValueError):  # a stand-in for standard output may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
