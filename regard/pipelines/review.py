"""Lines that a person should read: those with low confidence or with flags."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from regard.errors import UserError
from regard.files import report_unwritable
from regard.pipelines.hypothesis import Hypothesis

SUFFIX = ".review.tsv"
HEADER = ("line", "confidence", "flags", "source", "translation")


def needs_review(hypothesis: Hypothesis, threshold: float) -> bool:
    """Return whether the confidence of a translation is below the threshold, or it has flags.

    Examples:
        >>> needs_review(Hypothesis("Hallo", -0.1, confidence=0.9, flags={}), 0.4)
        False
    """
    return (hypothesis.confidence is not None and hypothesis.confidence < threshold) or bool(hypothesis.flags)


def describe_flags(hypothesis: Hypothesis) -> str:
    """Return the flags with their details, such as "missing-number (42)"."""
    return ", ".join(f"{name} ({detail})" for name, detail in (hypothesis.flags or {}).items())


def review_path(output: Path) -> Path:
    """Return the path of the review file of an output file: its name with the suffix .review.tsv."""
    return output.with_name(output.name + SUFFIX)


class ReviewFile:
    """Lists the lines that a person should read, in a .tsv file beside the output, or on standard error.

    Args:
        output: The output file; None for standard output.
        threshold: Confidence below which a translation is listed.
        finished: Number of lines of an output that is continued, None for a new output. Later lines are removed.

    Raises:
        UserError: The file exists although the output is new.
    """

    def __init__(self, output: Path | None, threshold: float, finished: int | None = None) -> None:
        self.path = None if output is None else review_path(output)
        self.threshold, self.count = threshold, 0
        self._finished = finished
        self._stream: BinaryIO | None = None
        if self.path is not None and self.path.exists() and finished is None:
            raise UserError(f"{self.path} already exists; remove it, or choose another name for --output")

    def __enter__(self) -> Self:
        if self.path is None:
            return self
        kept = self._finished_rows()
        with report_unwritable(self.path):
            self._stream = cast(BinaryIO, self.path.open("wb", buffering=0))
        with ExitStack() as stack:
            stack.push(self)
            self._write(b"".join(kept))
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._stream is not None and self.path is not None:
            self._stream.close()
            if kind is not None and not self.count and not self._finished:
                self.path.unlink(missing_ok=True)

    def add(self, number: int, source: str, hypothesis: Hypothesis) -> bool:
        """List a line if a person should read it, and return whether it is listed."""
        if not needs_review(hypothesis, self.threshold):
            return False
        self.count += 1
        confidence = f"{hypothesis.confidence:.2f}"
        if self._stream is None:
            flags = describe_flags(hypothesis)
            sys.stderr.write(f"regard: line {number} needs review: confidence {confidence}{flags and f', {flags}'}\n")
        else:
            row = (str(number), confidence, describe_flags(hypothesis), source, hypothesis.text)
            self._write(_encode(row))
        return True

    def _write(self, content: bytes) -> None:
        assert self._stream is not None and self.path is not None
        rest = memoryview(content)
        with report_unwritable(self.path):
            while rest:
                rest = rest[self._stream.write(rest) :]

    def _finished_rows(self) -> list[bytes]:
        """Return the header and the rows of the lines that the continued output contains."""
        assert self.path is not None
        rows = [_encode(HEADER)]
        if self._finished is None or not self.path.exists():
            return rows
        for line in self.path.read_bytes().splitlines(keepends=True)[1:]:
            number = line.partition(b"\t")[0]
            if number.isdigit() and int(number) <= self._finished and line.endswith(b"\n"):
                rows.append(line)
        self.count = len(rows) - 1
        return rows


def _encode(row: Sequence[str]) -> bytes:
    return ("\t".join(" ".join(cell.split()) for cell in row) + "\n").encode("utf-8")
