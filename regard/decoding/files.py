"""Whole files of translations: lines in, records out, in bounded memory and never half a record.

A record is what one input line becomes: a line of text, its n best translations in a line each, or a JSON object. As
records stand in the order of the lines, an output that ends early says by itself where to go on.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.settings import AnySettings
from regard.decoding.translator import WINDOW, Translator, Wishes
from regard.errors import UserError
from regard.interruption import Interruptions
from regard.text.readers import COMPRESSIONS, read_jsonl, read_lines

Form = Literal["text", "n-best", "json"]
SEPARATOR = " ||| "


@dataclass
class Tally:
    """What has been written: records, the translations in them, and how many of those do not meet every wish."""

    records: int = 0
    translations: int = 0
    unmet: int = 0

    def add(self, found: Sequence[Hypothesis]) -> None:
        self.records += 1
        self.translations += len(found)
        self.unmet += sum(not all(hypothesis.phrases.values()) for hypothesis in found)


def translate_lines(
    translator: Translator,
    lines: Iterable[str],
    write: Callable[[str], object],
    settings: AnySettings,
    wishes: Wishes | None = None,
    *,
    form: Form = "text",
    alignments: bool = False,
    done: int = 0,
    watch: Callable[[int], object] | None = None,
) -> Tally:
    """Writes the record of every line, in order, with no more than a window of lines in memory.

    Args:
        translator: what translates.
        lines: the source, without line ends.
        write: takes one whole record, line ends included.
        settings: how to search.
        wishes: what every translation must begin with, say, or not say.
        form: how a record looks, as `write_record` has it.
        alignments: whether JSON records carry what translations looked at.
        done: how many records there are already; as many lines are passed over.
        watch: is told how many records have come, window by window.

    Raises:
        UserError: there are fewer lines than records already, or a line cannot be translated.
    """
    lines, start = _pass_over(lines, done)
    tally = Tally()
    told = 0
    sources: deque[str] = deque()
    found_by_line = translator.stream(
        _remember(lines, sources), settings, first=start + 1, wishes=wishes, alignments=alignments
    )
    for number, found in enumerate(found_by_line, start + 1):
        source = sources.popleft()
        if number > done:
            write(write_record(form, number, source, found))
            tally.add(found)
        if watch is not None and not sources:  # the window has been handed out
            watch(tally.records - told)
            told = tally.records
    return tally


def _pass_over(lines: Iterable[str], done: int) -> tuple[Iterator[str], int]:
    """The lines that remain to be read, and how many stand before them.

    Reading starts with the window that the next line belongs to, and not with that line: the last digits of a score
    depend on the batch, and so the output is the same, byte for byte, however often it was interrupted.
    """
    lines = iter(lines)
    start = done - done % WINDOW
    passed = sum(1 for _ in islice(lines, start))
    window = list(islice(lines, done - start))
    if passed + len(window) < done:
        raise UserError(
            f"the output holds the translations of {done} lines, but the input has only {passed + len(window)}; "
            f"they do not belong together"
        )
    following = list(islice(lines, 1))
    return (chain(window, following, lines) if following else iter(())), start


def _remember(lines: Iterable[str], sources: deque[str]) -> Iterator[str]:
    for line in lines:
        sources.append(line)
        yield line


def write_record(form: Form, number: int, source: str, found: Sequence[Hypothesis]) -> str:
    """What a line becomes, line ends included: its best translation, or all of those found.

    "n-best" has a line for each, "line ||| text ||| score"; "json" one object with all that is known. A line end
    within a translation would break the file, so it becomes a space, but in JSON.
    """
    if form == "text":
        return f"{_without_line_ends(found[0].text)}\n"
    if form == "n-best":
        parts = ((str(number), _without_line_ends(one.text), f"{one.score:.6f}") for one in found)
        return "".join(f"{SEPARATOR.join(part)}\n" for part in parts)
    record: dict[str, Any] = {"source": source}
    if found[0].alignment is not None:
        record["source_pieces"] = found[0].source_pieces
    record["hypotheses"] = [_describe(hypothesis) for hypothesis in found]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _describe(hypothesis: Hypothesis) -> dict[str, Any]:
    described = {
        "text": hypothesis.text,
        "score": round(hypothesis.score, 6),
        "pieces": hypothesis.pieces,
        "log_probabilities": [round(value, 6) for value in hypothesis.log_probabilities],
    }
    if hypothesis.alignment is not None:
        described["alignment"] = [[round(weight, 4) for weight in row] for row in hypothesis.alignment]
    if hypothesis.phrases:
        described["phrases"] = hypothesis.phrases
    return described


def _without_line_ends(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def read_texts(path: Path, key: str | None = None) -> Iterator[str]:
    """The lines of a file, or the values of one key ("source" unless given) of a .jsonl file.

    Raises:
        UserError: a key is given for a file that has none, or the file cannot be read.
    """
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    if inner.suffix.lower() == ".jsonl":
        key = "source" if key is None else key
        return (pair.source for pair in read_jsonl(path, key, key))
    if key is not None:
        raise UserError(f"{path}: only a .jsonl file has keys; leave --key away")
    return read_lines(path)


class Output:
    """Where records go: a new file, one that is gone on with, a device, or standard output (`path` is None).

    A file holds whole records only, whatever happens: what an error leaves of one is cut off. A file without a
    record in it does not outlive an error.

    Raises:
        UserError: the file exists and is not to be gone on with, or cannot be written.
    """

    def __init__(
        self, path: Path | None, interruptions: Interruptions, going_on: tuple[int, int] | None = None
    ) -> None:
        """`going_on`: the records that the file holds and their bytes, as `count_records` has it."""
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
            with self._interruptions.held_back():
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


def count_records(path: Path, form: Form, n_best: int = 1) -> tuple[int, int]:
    """How many whole records a file holds, and their bytes: what comes after them is half of one.

    The last record of an n-best list is whole where it has `n_best` lines; where it has fewer there is no telling, and
    it is not counted.

    Raises:
        UserError: the file cannot be read, or holds something else than such records.
    """
    records = size = 0
    group_start = group_lines = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if form == "n-best":
                    number = _number_of(line)
                    if number not in (records, records + 1) or number == 0:
                        raise UserError(f"{path} is not an n-best list of such a run, so --resume cannot go on with it")
                    if number == records + 1:
                        group_start, group_lines = size, 0
                    records, group_lines = number, group_lines + 1
                else:
                    if form == "json" and records == 0 and not line.startswith(b'{"source": '):
                        raise UserError(f"{path} was not written with --json, so --resume cannot go on with it")
                    records += 1
                size += len(line)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if form == "n-best" and records and group_lines < n_best:
        return records - 1, group_start
    return records, size


def _number_of(line: bytes) -> int | None:
    digits = line.partition(SEPARATOR.encode())[0]
    return int(digits) if digits.isdigit() else None


def _is_ordinary(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _give_up_standard_output() -> None:
    """Python would try again to write what is left when it ends, and complain once more."""
    with suppress(OSError, ValueError):  # a stand-in for standard output may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
