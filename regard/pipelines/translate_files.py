"""Whole files of translations: lines in, records out, in bounded memory.

A record is what one input line becomes: a line of text, its n best translations in a line each, or a JSON object. As
records stand in the order of the lines, an output that ends early says by itself where to go on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from regard.data.text.readers import format_suffix, read_jsonl, read_lines, read_parquet, read_tsv
from regard.decoding.config import DecodingSettings
from regard.errors import UserError
from regard.pipelines.constraints import Constraints
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.output import GoingOn, count_lines, whole_lines
from regard.pipelines.translator import WINDOW, Translator

Form = Literal["text", "n-best", "json"]
SEPARATOR = " ||| "
Item = TypeVar("Item")


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
    settings: DecodingSettings,
    constraints: Constraints | None = None,
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
        constraints: what every translation must begin with, say, or not say.
        form: how a record looks, as `write_record` has it.
        alignments: whether JSON records carry what translations looked at.
        done: how many records there are already; as many lines are passed over.
        watch: is told how many records have come, window by window.

    Raises:
        UserError: there are fewer lines than records already, or a line cannot be translated.
    """
    tally = Tally()

    def take(number: int, source: str, found: Sequence[Hypothesis]) -> None:
        write(write_record(form, number, source, found))
        tally.add(found)

    translate_items(translator, lines, str, take, settings, constraints, alignments=alignments, done=done, watch=watch)
    return tally


def translate_items(
    translator: Translator,
    items: Iterable[Item],
    text: Callable[[Item], str],
    take: Callable[[int, Item, Sequence[Hypothesis]], object],
    settings: DecodingSettings,
    constraints: Constraints | None = None,
    *,
    alignments: bool = False,
    done: int = 0,
    watch: Callable[[int], object] | None = None,
) -> None:
    """`translate_lines` for whatever has a text: `take` gets every item's number, the item, and what was found."""
    items, start = _pass_over(items, done)
    told = done
    waiting: deque[Item] = deque()
    found_by_item = translator.stream(
        map(text, _remember(items, waiting)), settings, first=start + 1, constraints=constraints, alignments=alignments
    )
    for number, found in enumerate(found_by_item, start + 1):
        item = waiting.popleft()
        if number > done:
            take(number, item, found)
        if watch is not None and not waiting:  # the window has been handed out
            watch(number - told)
            told = number


def _pass_over(items: Iterable[Item], done: int) -> tuple[Iterator[Item], int]:
    """The items that remain to be read, and how many stand before them.

    Reading starts with the window that the next item belongs to, and not with that item: the last digits of a score
    depend on the batch, and so the output is the same, byte for byte, however often it was interrupted.
    """
    items = iter(items)
    start = done - done % WINDOW
    passed = sum(1 for _ in islice(items, start))
    window = list(islice(items, done - start))
    if passed + len(window) < done:
        raise UserError(
            f"the output holds the translations of {done} lines, but the input has only {passed + len(window)}; "
            f"they do not belong together"
        )
    following = list(islice(items, 1))
    return (chain(window, following, items) if following else iter(())), start


def _remember(items: Iterable[Item], waiting: deque[Item]) -> Iterator[Item]:
    for item in items:
        waiting.append(item)
        yield item


def write_record(form: Form, number: int, source: str, found: Sequence[Hypothesis]) -> str:
    """What a line becomes, line ends included: its best translation, or all of those found.

    "n-best" has a line for each, "line ||| text ||| score"; "json" one object with all that is known. A line end
    within a translation would break the file, so it becomes a space, but in JSON.
    """
    if form == "text":
        return f"{without_line_ends(found[0].text)}\n"
    if form == "n-best":
        parts = ((str(number), without_line_ends(one.text), f"{one.score:.6f}") for one in found)
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


def without_line_ends(text: str) -> str:
    """The text as one line: a line end within it becomes a space."""
    return text.replace("\n", " ").replace("\r", " ")


def read_texts(path: Path, key: str | None = None) -> Iterator[str]:
    """The lines of a file, the values of one key ("source" unless given) of a .jsonl or .parquet file, or a column.

    The columns of a .tsv file are counted from 0, which is the source's.

    Raises:
        UserError: a key is given for a file that has none, is no column's number, or the file cannot be read.
    """
    kind = format_suffix(path)
    if kind in (".jsonl", ".parquet"):
        key = "source" if key is None else key
        read = read_jsonl if kind == ".jsonl" else read_parquet
        return (pair.source for pair in read(path, key, key))
    if kind == ".tsv":
        if key is not None and not key.isdecimal():
            raise UserError(f"{path}: --key {key} is no column of a .tsv file; columns are numbers, counted from 0")
        column = int(key or 0)
        return (pair.source for pair in read_tsv(path, column, column))
    if key is not None:
        raise UserError(f"{path}: only .jsonl and .parquet files have keys, and .tsv files columns; leave --key away")
    return read_lines(path)


def count_records(path: Path, form: Form, n_best: int = 1) -> GoingOn:
    """How many whole records a file holds, and their bytes: what comes after them is half of one.

    The last record of an n-best list is whole where it has `n_best` lines; where it has fewer there is no telling, and
    it is not counted.

    Raises:
        UserError: the file cannot be read, or holds something else than such records.
    """
    if form == "n-best":
        return _count_groups(path, n_best)
    if form == "json" and not next(whole_lines(path), b'{"source": ').startswith(b'{"source": '):
        raise UserError(f"{path} was not written with --json, so --resume cannot go on with it")
    return count_lines(path)


def _count_groups(path: Path, n_best: int) -> GoingOn:
    records = size = 0
    group_start = group_lines = 0
    for line in whole_lines(path):
        number = _number_of(line)
        if number not in (records, records + 1) or number == 0:
            raise UserError(f"{path} is not an n-best list of such a run, so --resume cannot go on with it")
        if number == records + 1:
            group_start, group_lines = size, 0
        records, group_lines, size = number, group_lines + 1, size + len(line)
    return (records - 1, group_start) if records and group_lines < n_best else (records, size)


def _number_of(line: bytes) -> int | None:
    digits = line.partition(SEPARATOR.encode())[0]
    return int(digits) if digits.isdigit() else None
