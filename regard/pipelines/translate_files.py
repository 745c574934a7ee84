"""Translation of files: lines in, records out, in bounded memory.

A record is the result of one input line: a line of text, its n best translations in a line each, or a JSON object.
Records are in the order of the lines, and output files contain complete records only, so that an interrupted output
can be continued after its last record.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeVar, cast

from regard.console import Interruptions
from regard.data.text.readers import format_suffix, read_lines, read_parquet, read_tsv
from regard.data.text.sentences import LengthWarnings
from regard.decoding.settings import DecodingSettings
from regard.errors import UserError
from regard.pipelines.constraints import Constraints
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.record_counts import SEPARATOR, Form, RecordCount
from regard.pipelines.translator import WINDOW, Translator

if TYPE_CHECKING:
    from regard.data.text.glossary import Glossary

ItemT = TypeVar("ItemT")


@dataclass
class TranslationCounts:
    """Numbers of records, translations, violated constraints, and terms in the best translations; long lines."""

    records: int = 0
    translations: int = 0
    violations: int = 0
    terms: int = 0
    kept_terms: int = 0
    lengths: LengthWarnings = field(default_factory=lambda: LengthWarnings("line"))

    def add(self, number: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Count the n best translations of a line."""
        best = hypotheses[0]
        self.records += 1
        self.lengths.add(number, best.warning)
        self.translations += len(hypotheses)
        self.terms += len(best.terms)
        self.kept_terms += sum(use.kept for use in best.terms)
        self.violations += sum(not all(hypothesis.phrases.values()) for hypothesis in hypotheses)


def translate_items(
    translator: Translator,
    items: Iterable[tuple[ItemT, str]],
    settings: DecodingSettings,
    constraints: Constraints | None = None,
    *,
    done: int = 0,
    on_progress: Callable[[int], object] | None = None,
    glossary_of: Callable[[ItemT], Glossary | None] | None = None,
    **options: bool,
) -> Iterator[tuple[int, ItemT, list[Hypothesis]]]:
    """Translate items in order, at most `WINDOW` at a time, and yield the number of each, the item and its hypotheses.

    Args:
        translator: The translator.
        items: Items, such as source lines, each with its text.
        settings: Settings of the search.
        constraints: Required and forbidden text.
        done: Number of items whose results exist already; as many items are skipped.
        on_progress: Called with the number of new results after each window.
        glossary_of: Returns the glossary of an item, or None for that of the translator.
        options: Arguments of `Translator.hypotheses`, such as `split` and `alignments`.
    """
    items, before = _skip(items, done)
    while window := list(islice(items, WINDOW)):
        texts = [text for _, text in window]
        glossaries = None if glossary_of is None else [glossary_of(item) for item, _ in window]
        results = translator.hypotheses(
            texts,
            settings,
            constraints=constraints,
            glossary=None,
            glossaries=glossaries,
            first=before + 1,
            **options,
        )
        for number, ((item, _), hypotheses) in enumerate(zip(window, results, strict=True), before + 1):
            if number > done:
                yield number, item, hypotheses
        del results  # to free memory before the next window is translated
        if on_progress is not None:
            on_progress(before + len(window) - max(before, done))
        before += len(window)


def _skip(items: Iterable[ItemT], done: int) -> tuple[Iterator[ItemT], int]:
    """Return the items from the start of the window that contains the next item, and the number of items before.

    The last digits of a score depend on the batch. Whole windows are translated again, so that the output does not
    depend on interruptions.
    """
    items = iter(items)
    start = done - done % WINDOW
    skipped = sum(1 for _ in islice(items, start))
    window = list(islice(items, done - start))
    if skipped + len(window) < done:
        raise UserError(
            f"the output has the translations of {done} lines, but the input has only {skipped + len(window)}; "
            f"they do not belong together"
        )
    following = list(islice(items, 1))
    if not following:  # everything is translated already
        return iter(()), start
    return chain(window, following, items), start


def format_record(
    form: Form, number: int, source: str, hypotheses: Sequence[Hypothesis], needs_review: bool | None = None
) -> str:
    """Return the record of a line, including line breaks.

    "text" is the best translation; "n-best" has a line "number ||| text ||| score" for each translation; "json" is an
    object with the best translation, and the n best translations of each sentence with their scores and subwords; it
    also contains `needs_review` unless that is None. Except in JSON, line breaks in a translation become spaces.
    """
    if form == "text":
        return f"{join_lines(hypotheses[0].text)}\n"
    if form == "n-best":
        fields = ((str(number), join_lines(one.text), f"{one.score:.6f}") for one in hypotheses)
        return "".join(f"{SEPARATOR.join(row)}\n" for row in fields)
    n_best_lists = zip(*(hypothesis.sentences for hypothesis in hypotheses), strict=True) if source.strip() else ()
    sentences = [_sentence_to_json(n_best) for n_best in n_best_lists]
    best = hypotheses[0]
    record: dict[str, Any] = {"source": source, "text": best.text}
    record |= {} if best.confidence is None else {"confidence": best.confidence}
    record |= {} if best.flags is None else {"flags": best.flags}
    record |= {} if needs_review is None else {"needs_review": needs_review}
    record["sentences"] = sentences
    return json.dumps(record, ensure_ascii=False) + "\n"


def _sentence_to_json(n_best: Sequence[Hypothesis]) -> dict[str, Any]:
    best = n_best[0]
    values: dict[str, Any] = {"source": best.source}
    if best.alignment is not None:
        values["source_subwords"] = best.source_subwords
    values["hypotheses"] = [
        _to_json(hypothesis) for rank, hypothesis in enumerate(n_best) if not rank or hypothesis is not n_best[rank - 1]
    ]
    if best.memory:
        values["memory"] = [match.as_dict() for match in best.memory]
    return values if best.warning is None else values | {"warning": best.warning}


def _to_json(hypothesis: Hypothesis) -> dict[str, Any]:
    values = {
        "text": hypothesis.text,
        "score": round(hypothesis.score, 6),
        "subwords": hypothesis.subwords,
        "token_log_probs": [round(value, 6) for value in hypothesis.token_log_probs],
    }
    if hypothesis.alignment is not None:
        values["alignment"] = [[round(weight, 4) for weight in row] for row in hypothesis.alignment]
    if hypothesis.phrases:
        values["phrases"] = hypothesis.phrases
    if hypothesis.terms:
        values["terms"] = [use.as_dict() for use in hypothesis.terms]
    if hypothesis.confidence is not None:
        values["confidence"] = hypothesis.confidence
        values["token_confidences"] = hypothesis.token_confidences
    if hypothesis.flags is not None:
        values["flags"] = hypothesis.flags
    return values


def join_lines(text: str) -> str:
    """Replace line breaks with spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def glossary_of_line(line: str) -> Glossary | None:
    """Return the glossary of a line that `read_texts` has read; None if it has none."""
    return getattr(line, "glossary", None)


def read_texts(path: Path, key: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file, the values of a key of a .jsonl or .parquet file, or a column of a .tsv file.

    The default key is "source". Columns are counted from 0, which is the default. Lines of a .jsonl file may have a
    glossary; see `glossary_of_line`.
    """
    suffix = format_suffix(path)
    if suffix == ".jsonl":
        from regard.data.text.glossary import read_texts_with_glossaries

        return read_texts_with_glossaries(path, key or "source")
    if suffix == ".parquet":
        key = "source" if key is None else key
        return (pair.source for pair in read_parquet(path, key, key))
    if suffix == ".tsv":
        if key is not None and not key.isdecimal():
            raise UserError(f"{path}: --key {key} is not a column of a .tsv file; columns are counted from 0")
        column = int(key or 0)
        return (pair.source for pair in read_tsv(path, column, column))
    if key is not None:
        raise UserError(f"{path}: only .jsonl and .parquet files have keys, and .tsv files columns; omit --key")
    return read_lines(path)


# Output files


class RecordFile:
    """Writes records to a new file, to an existing file that is continued, to a device, or to standard output.

    After an error, an incomplete record at the end is removed, and so is a new file without any record.

    Args:
        path: None for standard output.
        interruptions: Signals, which are deferred while a record is written.
        finished: The records to keep when an existing file is continued.
    """

    def __init__(self, path: Path | None, interruptions: Interruptions, finished: RecordCount | None = None) -> None:
        self.count, self._bytes = finished or (0, 0)
        self._path, self._interruptions, self._continues = path, interruptions, finished is not None
        self._started = False

    def __enter__(self) -> Self:
        path = self._path
        if path is None:
            self._stream, self._is_file = cast(BinaryIO, sys.stdout.buffer), False
            return self
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
                self._stream.flush()
                self._bytes += len(content)
                self.count += 1
        except OSError as error:
            if self._path is None:
                if isinstance(error, BrokenPipeError):
                    raise  # the reader has closed the pipe; the command line exits silently
                _close_standard_output()
            name = self._path or "standard output"
            raise UserError(f"{name}: cannot be written ({error.strerror}){self._resume_hint()}") from None

    def __exit__(self, kind: object, *error: object) -> None:
        if self._path is None:
            return
        if kind is not None and self._is_file and self._started:
            self._stream.truncate(self._bytes)
        with suppress(OSError):
            self._stream.close()
        if kind is not None and self._is_file and not self.count and not self._continues:
            self._path.unlink(missing_ok=True)

    def _resume_hint(self) -> str:
        if self._path is None or not self._is_file or not self.count:
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


def _close_standard_output() -> None:
    """Discard buffered output: at exit, Python would try to write it again and print another error."""
    with suppress(OSError, ValueError):  # a replacement of sys.stdout may have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
