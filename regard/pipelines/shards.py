"""Batch work over folders of shards: JSONL or Parquet files in, files of the same names out.

Shards are divided into parts: ranges of bytes of a JSONL file, or of rows of a Parquet file. The output of a part
depends only on its input and on the job, wherever and however often it is computed. It is written under a temporary
name and renamed, and so are shards, so that a file that exists is complete. A command that is started again skips what
exists: every line has its results exactly once, and lines keep their order.

`regard.json` in the output folder records what it was made with. The output of unfinished shards is in `.parts`.
Folders may be local, or on any file system of fsspec, such as s3://bucket/folder.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

import fsspec
import numpy as np

from regard.data.array_store import ArrayWriter
from regard.data.text.readers import BYTE_ORDER_MARK, COMPRESSION_SUFFIXES, format_suffix, text_of
from regard.errors import UserError, import_optional, one_line
from regard.files import MAX_LINE_BYTES, parse_json
from regard.pipelines.executors import Done, Executor
from regard.pipelines.translator import WINDOW

SUFFIXES = (".jsonl", ".parquet")
MANIFEST, PARTS = "regard.json", ".parts"
FORMAT = 1
PART_BYTES, PART_ROWS = 2**22, 16 * WINDOW
"""Size of a part of a JSONL and of a Parquet file."""
Column = Literal["text", "number", "vector"]
"""Type of a new column."""


# Folders


def to_url(path: Path | str) -> str:
    """Return a path as it was written: `Path` makes s3:/bucket of s3://bucket."""
    return re.sub(r"^([a-z][a-z0-9+]+):/(?!/)", r"\1://", str(path))


def is_remote(path: Path | str) -> bool:
    """Return whether a path has a protocol, such as s3://."""
    return "://" in to_url(path)


class Folder:
    """A folder on a file system of fsspec; errors are UserErrors."""

    def __init__(self, url: Path | str) -> None:
        self.url = to_url(url)
        try:
            self.files, self.path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.url}: cannot be opened ({one_line(error)})") from None
        self.is_local = not is_remote(self.url)

    def __reduce__(self) -> Any:
        return Folder, (self.path if self.is_local else self.url,)  # workers may run in other folders

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.url.rstrip('/')}/{name}")

    def list(self) -> dict[str, int]:
        """Return the sizes of the files in the folder by name; nothing if there is no folder."""
        with _report_errors(self.url):
            self.files.invalidate_cache()
            if not self.files.exists(self.path):
                return {}
            entries = self.files.ls(self.path, detail=True)
        found = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries}
        return {name: int(found[name]["size"]) for name in sorted(found) if found[name]["type"] == "file"}

    @contextmanager
    def open(self, name: str, decompress: bool = True) -> Iterator[BinaryIO]:
        """Open a file for reading, decompressed by its suffix."""
        where = f"{self.url}/{name}"
        compression = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}.get(Path(name).suffix.lower())
        with (
            _report_errors(where),
            self.files.open(f"{self.path}/{name}", "rb", compression=compression if decompress else None) as stream,
        ):
            yield cast(BinaryIO, stream)

    @contextmanager
    def create(self, name: str) -> Iterator[Path]:
        """Yield a local path to write to; the file appears as `name` when the block succeeds."""
        where = f"{self.url}/{name}"
        with ExitStack() as stack, _report_errors(where):
            if self.is_local:
                target = Path(self.path, name)
                hidden = target.parent if target.parent.name == PARTS else target.parent / PARTS
                hidden.mkdir(parents=True, exist_ok=True)
                path = hidden / f"{uuid.uuid4().hex}.tmp"
                stack.callback(path.unlink, missing_ok=True)
            else:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory()), Path(name).name)
            yield path
            if self.is_local:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                path.replace(target)
            else:
                self.files.put_file(str(path), f"{self.path}/{name}")  # objects appear when they are complete

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it exists."""
        with _report_errors(f"{self.url}/{name}"):
            if self.files.exists(f"{self.path}/{name}"):
                self.files.rm(f"{self.path}/{name}", recursive=True)


@contextmanager
def _report_errors(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{where}: no such file or folder") from None
    except (EOFError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or one_line(error)
        raise UserError(f"{where}: cannot be read or written ({reason})") from None


# Parts


@dataclass(frozen=True)
class Part:
    """A range of a shard: of bytes of a JSONL file, in which its lines start, or of rows of a Parquet file.

    Attributes:
        shard: Name of the file.
        number: Number of the part, from 0.
        count: Number of parts of the shard.
        stop: None for the end of the file.
    """

    shard: str
    number: int
    count: int
    start: int
    stop: int | None

    def __str__(self) -> str:
        return f"{self.shard}, part {self.number + 1} of {self.count}"

    def output(self, suffix: str) -> str:
        """Return the name of its output, which is that of the shard if this is the only part."""
        name = output_name(self.shard, suffix)
        return name if self.count == 1 else f"{PARTS}/{name}.{self.number:06d}-of-{self.count:06d}"


def counts_name(part: Part) -> str:
    """Return the name of the file with the counts of a part."""
    return f"{PARTS}/{part.shard}.{part.number:06d}.counts"


def output_name(shard: str, suffix: str) -> str:
    """Return the name of the output of a shard; it is not compressed."""
    return Path(shard).name.removesuffix("".join(_suffixes(shard))) + suffix


def _suffixes(shard: str) -> list[str]:
    suffixes = Path(shard).suffixes
    return suffixes[-2:] if suffixes[-1].lower() in COMPRESSION_SUFFIXES else suffixes[-1:]


def find_shards(folder: Folder) -> dict[str, int]:
    """Return the sizes of the shards in a folder by name, in the order of their names."""
    shards = {name: size for name, size in folder.list().items() if format_suffix(Path(name)) in SUFFIXES}
    shards = {name: size for name, size in shards.items() if not name.startswith(".")}
    if not shards:
        raise UserError(f"{folder.url}: contains no {' or '.join(SUFFIXES)} files; give a folder of shards")
    names: dict[str, str] = {}
    for name in shards:
        other = names.setdefault(output_name(name, ""), name)
        if other != name:
            raise UserError(f"{folder.url}: {other} and {name} would have the same output; rename one of them")
    return shards


def divide(
    folder: Folder, shard: str, size: int, part_bytes: int = PART_BYTES, part_rows: int = PART_ROWS
) -> list[Part]:
    """Divide a shard into parts. Compressed files are one part."""
    if format_suffix(Path(shard)) == ".parquet":
        with _open_parquet(folder, shard) as file:
            total, length = file.metadata.num_rows, part_rows
    elif Path(shard).suffix.lower() in COMPRESSION_SUFFIXES:
        return [Part(shard, 0, 1, 0, None)]
    else:
        total, length = size, part_bytes
    starts = range(0, max(1, total), length)
    return [Part(shard, i, len(starts), start, start + length) for i, start in enumerate(starts)]


# Rows


class Rows(ABC):
    """Some rows of a shard."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def texts(self, key: str) -> list[str]:
        """Return the texts of a key or column; "a.b" selects b of a.

        Raises:
            UserError: A value is missing or not text.
        """

    @abstractmethod
    def where(self, row: int) -> str:
        """Return file and place of a row, for errors."""


class JsonRows(Rows):
    """Objects of a JSONL file with the positions of their lines; `describe` returns the place of a position."""

    def __init__(self, values: list[dict[str, Any]], positions: list[int], describe: Callable[[int], str]) -> None:
        self.values, self.positions, self.describe = values, positions, describe

    def __len__(self) -> int:
        return len(self.values)

    def texts(self, key: str) -> list[str]:
        try:
            return [text_of(value, key, "") for value in self.values]
        except UserError:  # to find the number of a line, the file is read from its start
            return [text_of(value, key, self.where(row)) for row, value in enumerate(self.values) if _lacks(value, key)]

    def where(self, row: int) -> str:
        return self.describe(self.positions[row])


def _lacks(value: dict[str, Any], key: str) -> bool:
    try:
        text_of(value, key, "")
    except UserError:
        return True
    return False


class TableRows(Rows):
    """Rows of a Parquet file; `first` is the number of the first one, from 1."""

    def __init__(self, table: Any, name: str, first: int) -> None:
        self.table, self.name, self.first = table, name, first

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def texts(self, key: str) -> list[str]:
        names = [key] if key in self.table.column_names else key.split(".")
        column, kind = self.table, self.table.schema
        for name in names:
            if name not in [one.name for one in kind]:
                columns = ", ".join(f'"{one}"' for one in self.table.column_names)
                raise UserError(f'{self.name}: the column "{key}" is missing; the columns are {columns}.')
            compute = import_optional("pyarrow.compute", "data")
            column = column[name] if column is self.table else compute.struct_field(column, name)
            kind = column.type if str(column.type).startswith("struct") else ()
        values = column.to_pylist()
        for row, value in enumerate(values):
            if not isinstance(value, str):
                found = "null" if value is None else f"of type {type(value).__name__}"
                raise UserError(f'{self.where(row)}: the value of "{key}" is {found}, but must be text.')
        return cast("list[str]", values)

    def where(self, row: int) -> str:
        return f"{self.name}, row {self.first + row}"


def read_rows(folder: Folder, part: Part) -> Iterator[Rows]:
    """Yield the rows of a part, at most `WINDOW` at a time."""
    if format_suffix(Path(part.shard)) == ".parquet":
        yield from _read_table(folder, part)
        return
    lines = _read_lines(folder, part)
    describe = partial(_describe_place, folder, part)
    while window := list(islice(lines, WINDOW)):
        values = []
        for position, line in window:
            try:
                value = parse_json(line.decode("utf-8"))
            except ValueError as error:
                problem = f"not valid JSON ({one_line(error)}); each line must be one JSON object"
                raise UserError(f"{describe(position)}: {problem}") from None
            if not isinstance(value, dict):
                raise UserError(f"{describe(position)}: not a JSON object")
            values.append(value)
        yield JsonRows(values, [position for position, _ in window], describe)


def _read_lines(folder: Folder, part: Part) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that start in the part, with their positions; blank lines are skipped."""
    with folder.open(part.shard) as stream:
        position = part.start
        if position:  # the line that contains the byte before belongs to an earlier part
            stream.seek(position - 1)
            position += len(_read_line(stream, folder, part)) - 1
        while part.stop is None or position < part.stop:
            line = _read_line(stream, folder, part)
            if not line:
                return
            content = line.removeprefix(BYTE_ORDER_MARK) if not position else line
            if content.strip():
                yield position, content
            position += len(line)


def _read_line(stream: BinaryIO, folder: Folder, part: Part) -> bytes:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{folder.url}/{part.shard}: has a line longer than {MAX_LINE_BYTES // 2**20} MiB")
    return line


def _describe_place(folder: Folder, part: Part, position: int) -> str:
    """Return the file and the number of the line that starts at a position."""
    number = 1
    with folder.open(part.shard) as stream:
        while position > 0 and (content := stream.read(min(position, 2**20))):
            number, position = number + content.count(b"\n"), position - len(content)
    return f"{folder.url}/{part.shard}, line {number}"


@contextmanager
def _open_parquet(folder: Folder, name: str) -> Iterator[Any]:
    pyarrow, parquet = import_optional("pyarrow", "data", name), import_optional("pyarrow.parquet", "data", name)
    try:
        with folder.open(name, decompress=False) as stream, parquet.ParquetFile(stream) as file:
            yield file
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{folder.url}/{name} is damaged or not a Parquet file ({one_line(error)})") from None


def _read_table(folder: Folder, part: Part) -> Iterator[Rows]:
    pyarrow = import_optional("pyarrow", "data")
    with _open_parquet(folder, part.shard) as file:
        stop = file.metadata.num_rows if part.stop is None else min(part.stop, file.metadata.num_rows)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        groups = [i for i in range(len(sizes)) if starts[i] < stop and starts[i + 1] > part.start]
        row = int(starts[groups[0]]) if groups else 0
        rest, first = [], part.start
        for batch in file.iter_batches(WINDOW, row_groups=groups, use_threads=False):
            from_row, to_row = max(part.start - row, 0), min(stop - row, batch.num_rows)
            row += batch.num_rows
            if to_row <= from_row:
                continue
            rest.append(batch.slice(from_row, to_row - from_row))
            if sum(one.num_rows for one in rest) >= WINDOW:
                table = pyarrow.Table.from_batches(rest)
                yield TableRows(table.slice(0, WINDOW), f"{folder.url}/{part.shard}", first + 1)
                rest, first = table.slice(WINDOW).to_batches(), first + WINDOW
        if rest:
            yield TableRows(pyarrow.Table.from_batches(rest), f"{folder.url}/{part.shard}", first + 1)


# Jobs


@dataclass(frozen=True)
class Results:
    """Output rows: row i is the input row `rows[i]` with the values `columns[name][i]`."""

    rows: Sequence[int]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # added up over the shards
    examples: Sequence[Any] = ()  # plain values, collected over the shards


class Job(ABC):
    """What is computed for rows. It is pickled to reach the workers, where `load` is called once.

    Attributes:
        columns: New columns with their types.
        overwrites: Whether the input may have columns of these names, which are replaced.
        suffix: Suffix of the output; by default that of the input.
    """

    columns: ClassVar[dict[str, Column]] = {}
    overwrites: ClassVar[bool] = False
    suffix: ClassVar[str | None] = None

    @abstractmethod
    def load(self) -> Callable[[Part, Rows], Results]:
        """Load models, and return the function that is called with the rows of a part, window by window."""

    def suffix_of(self, shard: str) -> str:
        return self.suffix or format_suffix(Path(shard))


class Writer(ABC):
    """Writes the output of a part to a local file."""

    def __init__(self, path: Path, job: Job) -> None:
        self.path, self.job = path, job

    @abstractmethod
    def write(self, rows: Rows, results: Results) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @staticmethod
    @abstractmethod
    def join(folder: Folder, names: Sequence[str], path: Path) -> None:
        """Concatenate the outputs of all parts of a shard."""


class JsonWriter(Writer):
    """Writes JSON lines."""

    def __init__(self, path: Path, job: Job) -> None:
        super().__init__(path, job)
        self.file = path.open("wb")

    def write(self, rows: Rows, results: Results) -> None:
        assert isinstance(rows, JsonRows)
        columns = results.columns
        for index, row in enumerate(results.rows):
            value = rows.values[row]
            if not self.job.overwrites and (taken := columns.keys() & value.keys()):
                raise _column_exists(rows.where(row), min(taken))
            value = value | {name: column[index] for name, column in columns.items()}
            try:
                content = json.dumps(value, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:  # a lone surrogate in another key, which ASCII can express
                content = json.dumps(value).encode("ascii")
            self.file.write(content + b"\n")

    def close(self) -> None:
        self.file.close()

    @staticmethod
    def join(folder: Folder, names: Sequence[str], path: Path) -> None:
        with path.open("wb") as file:
            for name in names:
                with folder.open(name, decompress=False) as stream:
                    while content := stream.read(2**22):
                        file.write(content)


class ParquetWriter(Writer):
    """Writes a Parquet file with a row group per part."""

    def __init__(self, path: Path, job: Job) -> None:
        super().__init__(path, job)
        self.tables: list[Any] = []

    def write(self, rows: Rows, results: Results) -> None:
        pyarrow = import_optional("pyarrow", "data")
        assert isinstance(rows, TableRows)
        table = rows.table.take(pyarrow.array(results.rows, pyarrow.int64()))
        types = {"text": pyarrow.string(), "number": pyarrow.float64()}
        for name, kind in self.job.columns.items():
            column = pyarrow.array(results.columns[name], types[kind])
            if name not in table.column_names:
                table = table.append_column(name, column)
            elif self.job.overwrites:
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                raise _column_exists(rows.name, name)
        self.tables.append(table)

    def close(self) -> None:
        pyarrow, parquet = import_optional("pyarrow", "data"), import_optional("pyarrow.parquet", "data")
        if self.tables:
            parquet.write_table(pyarrow.concat_tables(self.tables), self.path)

    @staticmethod
    def join(folder: Folder, names: Sequence[str], path: Path) -> None:
        parquet = import_optional("pyarrow.parquet", "data")
        with ExitStack() as stack:
            writer: Any = None
            for name in names:
                file = stack.enter_context(_open_parquet(folder, name))
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(path, file.schema_arrow))
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))


class ArrayFileWriter(Writer):
    """Writes the only new column, vectors, as an array (rows, width) of float32 in a .npy file."""

    def __init__(self, path: Path, job: Job) -> None:
        super().__init__(path, job)
        self.array: ArrayWriter | None = None

    def write(self, rows: Rows, results: Results) -> None:
        (vectors,) = results.columns.values()
        content = np.asarray(vectors, np.float32)
        self.array = self.array or ArrayWriter(self.path, np.float32, content.shape[1:])
        self.array.append(content)

    def close(self) -> None:
        (self.array or ArrayWriter(self.path, np.float32, (0,))).close()

    @staticmethod
    def join(folder: Folder, names: Sequence[str], path: Path) -> None:
        array: ArrayWriter | None = None
        for name in names:
            with folder.open(name, decompress=False) as stream:
                content = np.lib.format.read_array(stream, allow_pickle=False)
            if len(content):
                array = array or ArrayWriter(path, np.float32, content.shape[1:])
                array.append(content)
        (array or ArrayWriter(path, np.float32, (0,))).close()


WRITERS: dict[str, type[Writer]] = {".jsonl": JsonWriter, ".parquet": ParquetWriter, ".npy": ArrayFileWriter}


def _column_exists(where: str, name: str) -> UserError:
    return UserError(f'{where}: has "{name}" already, which the results would replace; rename it in the input')


# Execution


@dataclass(frozen=True)
class PartCounts:
    """A completed part: its numbers of input and output rows, and what its results have counted."""

    part: Part
    rows: int
    written: int
    counts: dict[str, int]
    examples: list[Any]


@dataclass(frozen=True)
class PartWork:
    """Applies a job to parts of `source`, and writes their outputs and counts to `target`."""

    job: Job
    source: Folder
    target: Folder

    def open(self) -> Callable[[Part], PartCounts]:
        function = self.job.load()

        def run(part: Part) -> PartCounts:
            suffix = self.job.suffix_of(part.shard)
            total = written = 0
            counts: Counter[str] = Counter()
            examples: list[Any] = []
            with self.target.create(part.output(suffix)) as path:
                writer = WRITERS[suffix](path, self.job)
                try:
                    for rows in read_rows(self.source, part):
                        results = function(part, rows)
                        writer.write(rows, results)
                        total, written = total + len(rows), written + len(results.rows)
                        counts.update(results.counts)
                        examples += results.examples
                    if not total and suffix == ".parquet":
                        self._write_empty(part, writer)
                finally:
                    writer.close()
                done = PartCounts(part, total, written, dict(counts), examples)
                with self.target.create(counts_name(part)) as record:  # before the output itself appears
                    values = {"rows": total, "written": written, "counts": done.counts, "examples": examples}
                    record.write_text(json.dumps(values), encoding="utf-8")
            return done

        return run

    def _write_empty(self, part: Part, writer: Writer) -> None:
        """Write the columns of a Parquet file without rows."""
        with _open_parquet(self.source, part.shard) as file:
            rows = TableRows(file.schema_arrow.empty_table(), part.shard, 1)
        writer.write(rows, Results([], {name: [] for name in self.job.columns}))


class ShardRun:
    """A job over all shards of a folder.

    Args:
        source: Folder of the shards.
        target: Folder for the output; new, or of an interrupted command with the same conditions.
        command: Name of the command, for `regard.json`.
        conditions: Everything besides the shards that the output depends on.

    Raises:
        UserError: The output folder belongs to something else, or a shard has changed since its output was started.
    """

    def __init__(
        self,
        source: Folder,
        target: Folder,
        command: str,
        conditions: Mapping[str, Any],
        part_bytes: int = PART_BYTES,
        part_rows: int = PART_ROWS,
    ) -> None:
        if source.path.rstrip("/") == target.path.rstrip("/"):
            raise UserError(f"{target.url} is the folder of the input; choose another one for the output")
        self.source, self.target = source, target
        self.shards = find_shards(source)
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "command": command,
            **json.loads(json.dumps(conditions)),
            "part_bytes": part_bytes,
            "part_rows": part_rows,
        }
        self._parts: dict[str, list[Part]] = {}
        self._before: dict[str, Any] = {}
        self._check()

    def parts(self, shard: str) -> list[Part]:
        """Return the parts of a shard."""
        if shard not in self._parts:
            lengths = self.manifest["part_bytes"], self.manifest["part_rows"]
            self._parts[shard] = divide(self.source, shard, self.shards[shard], *lengths)
        return self._parts[shard]

    def run(self, job: Job, executor: Executor) -> Iterator[Done[PartCounts]]:
        """Compute what is missing, and yield the counts of each part that was computed.

        Shards appear in the output folder as soon as all their parts are complete.
        """
        if self.is_complete:
            return
        self.start()
        try:
            yield from self._run(job, executor)
        except BaseException:
            self._remove_if_empty()
            raise

    def _run(self, job: Job, executor: Executor) -> Iterator[Done[PartCounts]]:
        existing = self.target.list().keys()
        missing = [shard for shard in self.shards if output_name(shard, job.suffix_of(shard)) not in existing]
        finished = self.finished_parts()
        remaining: dict[str, set[int]] = {}
        parts = []
        for shard in missing:
            todo = [part for part in self.parts(shard) if part.output(job.suffix_of(shard)) not in finished]
            remaining[shard] = {part.number for part in todo}
            parts += todo
            if not todo:
                self._join(job, shard)
        for done in executor.run(PartWork(job, self.source, self.target), parts):
            part = done.result.part
            remaining[part.shard].discard(part.number)
            if not remaining[part.shard] and part.count > 1:
                self._join(job, part.shard)
            yield done

    def finished_parts(self) -> set[str]:
        """Return the names of the files in `.parts`."""
        return {f"{PARTS}/{name}" for name in (self.target / PARTS).list()}

    def counts(self) -> Iterator[PartCounts]:
        """Yield the counts of all completed parts in order, including those of interrupted commands."""
        finished = self.finished_parts()
        for shard in self.shards:
            for part in self.parts(shard):
                if counts_name(part) in finished:
                    with self.target.open(counts_name(part)) as stream:
                        yield PartCounts(part=part, **json.load(stream))

    @property
    def is_complete(self) -> bool:
        """Whether an earlier command has completed the output."""
        return bool(self._before.get("complete"))

    def start(self) -> None:
        """Create the output folder with `regard.json`, unless it exists."""
        if self._is_new or self._has_new_shards:
            self._write(complete=False)

    def finish(self) -> dict[str, int]:
        """Record that the output is complete with its numbers of rows, return these, and remove `.parts`."""
        if self.is_complete:
            return {key: int(self._before[key]) for key in ("rows", "written")}
        totals = {"rows": 0, "written": 0}
        for one in self.counts():
            totals = {"rows": totals["rows"] + one.rows, "written": totals["written"] + one.written}
        self._write(complete=True, **totals)
        self.target.remove(PARTS)
        return totals

    def _check(self) -> None:
        """Compare an existing output with this command."""
        found = self.target.list()
        self._is_new, self._has_new_shards, self._before = MANIFEST not in found, False, {}
        if self._is_new:
            if found:
                raise UserError(
                    f"{self.target.url}: is not empty, and not the output of this command; choose a new folder"
                )
            return
        self._before = self._read()
        for key, now in self.manifest.items():
            if self._before.get(key) != now:
                old, new = (json.dumps(value, ensure_ascii=False)[:80] for value in (self._before.get(key), now))
                raise UserError(
                    f"{self.target.url}: was started with {key} {old}, not {new}; repeat the same command, or choose a "
                    f"new folder"
                )
        for name, size in self._before["shards"].items():
            if self.shards.get(name, size) != size:
                raise UserError(f"{self.source.url}/{name}: has changed since {self.target.url} was started")
        self._has_new_shards = self._before["shards"].keys() < self.shards.keys()
        if self._has_new_shards and self.is_complete:
            raise UserError(
                f"{self.source.url}: has new shards since {self.target.url} was completed; choose a new folder for them"
            )

    def _remove_if_empty(self) -> None:
        """Remove an output folder without any output."""
        if self._is_new and self.target.list().keys() <= {MANIFEST} and not self.finished_parts():
            self.target.files.rm(self.target.path, recursive=True)

    def _read(self) -> dict[str, Any]:
        try:
            with self.target.open(MANIFEST) as stream:
                before = parse_json(stream.read().decode("utf-8"))
            if not isinstance(before["shards"], dict):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.target.url}/{MANIFEST}: damaged; choose a new folder") from None
        return cast("dict[str, Any]", before)

    def _write(self, **state: Any) -> None:
        content = self.manifest | {"shards": self.shards} | state
        with self.target.create(MANIFEST) as path:
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _join(self, job: Job, shard: str) -> None:
        """Create the output of a shard from those of its parts, and remove these."""
        suffix = job.suffix_of(shard)
        names = [part.output(suffix) for part in self.parts(shard)]
        with self.target.create(output_name(shard, suffix)) as path:
            WRITERS[suffix].join(self.target, names, path)
        for name in names:
            self.target.remove(name)
