"""Sentence pairs, and readers of text files and of parallel text: line files, TSV, JSON lines and Parquet.

All readers are lazy and hold only one line, or some thousand rows of a Parquet file, in memory. A file is opened when
the first item is requested. Invalid files raise a UserError, which names the file and the line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.data.text.compression import open_decompressed, report_damaged
from regard.data.text.languages import find_language
from regard.errors import UserError, import_optional, one_line, prefix_errors
from regard.files import check_regular, parse_json, read_raw_lines, report_unreadable

COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
PAIR_SUFFIXES = (".tsv", ".jsonl", ".parquet", ".tmx", ".xlf", ".xliff")
"""Suffixes of files that contain both sides of a parallel corpus."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET_ROWS = 8192
COLUMN_NAMES = ("source", "target", "src", "tgt", "trg", "input", "output", "text", "translation", "reference", "ref")
"""Names of columns, besides languages, by which the header of a .tsv file is recognised."""
Item = TypeVar("Item")
Links = list[tuple[int, int]]
"""Word alignment of a pair: indices of linked source and target words, counted from 0."""


class Pair(NamedTuple):
    """A source text and a target text, for example a sentence and its translation."""

    source: str
    target: str


class PairRecord(NamedTuple):
    """A pair with the file and line (or row) that it was read from and, if available, its word alignment."""

    pair: Pair
    file: str
    line: int
    links: Links | None = None


@dataclass(frozen=True)
class Shard:
    """A file with pairs, or two line files, that can be read repeatedly."""

    name: str
    read: Callable[[], Iterator[Pair]]
    header: Callable[[], Pair | None] = lambda: None  # names of the columns, if the first line contains them
    languages: Callable[[], tuple[str, str] | None] = lambda: None  # codes of the languages, if the file states them


def format_suffix(path: Path) -> str:
    """Return the lower-case suffix without a compression suffix: ".tsv" for corpus.TSV.gz, "" if there is none."""
    if path.suffix.lower() in COMPRESSION_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def read_parallel(
    source: Path,
    target: Path | None = None,
    *,
    columns: tuple[int, int] = (0, 1),
    keys: tuple[str, str] = ("source", "target"),
) -> Iterator[Pair]:
    """Read the pairs of all shards found by `find_shards`."""
    shards = find_shards(source, target, columns=columns, keys=keys)
    pairs = chain.from_iterable(shard.read() for shard in shards)
    return require_nonempty(pairs, str(source) if target is None else f"{source} and {target}")


def require_nonempty(items: Iterable[Item], name: str) -> Iterator[Item]:
    """Yield all items, or raise a UserError if there are none."""
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise UserError(f"{name} contains no pairs; a corpus needs at least one.")


def read_texts(path: Path) -> Iterator[str]:
    """Read the lines of a text file, or both sides of all pairs of a file or folder with pairs."""
    if path.is_dir() or format_suffix(path) in PAIR_SUFFIXES:
        return (text for pair in read_parallel(path) for text in pair)
    return read_lines(path)


def languages_in_names(source: Path, target: Path | None) -> tuple[str, str]:
    """Return the language codes at the ends of file names: train.en and train.de, or train.en-de.tsv; "" if unknown."""
    names = language_in_name(source), language_in_name(target)
    if target is None and re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", names[0]):
        first, second = names[0].split("-")
        return first, second
    return names


def language_in_name(path: Path | None) -> str:
    """Return the language code at the end of a file name, such as "en" for train.en.gz; "" if there is none."""
    if path is None:
        return ""
    suffixes = [s[1:] for s in path.suffixes if s.lower() not in (*COMPRESSION_SUFFIXES, *PAIR_SUFFIXES, ".txt")]
    return suffixes[-1] if suffixes and re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]+)?", suffixes[-1]) else ""


def find_shards(
    source: Path,
    target: Path | None = None,
    *,
    columns: tuple[int, int] = (0, 1),
    keys: tuple[str, str] = ("source", "target"),
) -> list[Shard]:
    """Find the files of a parallel corpus.

    Args:
        source: A .tsv, .jsonl, .parquet, .tmx or XLIFF file, a folder of such files, or the line file of the source
            side. All but .parquet files may be compressed (.gz, .xz, .zst).
        target: Line file of the target side if `source` is a line file.
        columns: Columns of source and target in a .tsv file, counted from 0.
        keys: Keys of source and target in a .jsonl file, names of two columns of a .parquet file, or two languages of
            a .tmx file.
    """
    with report_unreadable(source):
        is_folder = source.is_dir()
    if is_folder and target is None:
        paths = sorted(path for path in source.iterdir() if _is_shard(path))
        if not paths:
            raise UserError(f"{source} is a folder without {', '.join(PAIR_SUFFIXES)} files; it must contain shards.")
        return [shard for path in paths for shard in find_shards(path, columns=columns, keys=keys)]
    suffix = format_suffix(source)
    if target is None:
        readers: dict[str, Callable[[], Iterator[Pair]]] = {
            ".tsv": lambda: read_tsv(source, *columns),
            ".jsonl": lambda: read_jsonl(source, *keys),
            ".parquet": lambda: read_parquet(source, *keys),
        }
        if suffix in readers:
            header = [lambda: read_tsv_header(source, *columns)] if suffix == ".tsv" else []
            return [Shard(str(source), readers[suffix], *header)]
        if suffix in PAIR_SUFFIXES:
            from regard.data.text.interchange import read_interchange, read_languages

            return [
                Shard(
                    str(source),
                    lambda: map(Pair._make, read_interchange(source, keys)),
                    languages=lambda: read_languages(source, keys),
                )
            ]
        raise UserError(
            f"{source} is given without a target file, so it must contain both sides: a .parquet file, a .tsv, "
            f".jsonl, .tmx or .xlf file (also compressed as .gz, .xz or .zst), or a folder of such files."
        )
    if suffix in PAIR_SUFFIXES:
        raise UserError(f"{source} is a {suffix} file and contains both sides; omit the target file {target}.")
    return [Shard(str(source), lambda: read_pairs(source, target))]


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Read two line files side by side: line n of one file is the translation of line n of the other."""
    source_lines, target_lines = read_lines(source), read_lines(target)
    for count, (source_line, target_line) in enumerate(zip_longest(source_lines, target_lines)):
        if source_line is None or target_line is None:
            longer = count + 1 + sum(1 for _ in source_lines) + sum(1 for _ in target_lines)
            source_count, target_count = (count, longer) if source_line is None else (longer, count)
            raise UserError(
                f"{source} has {source_count} lines but {target} has {target_count}: "
                f"parallel files need the same number of lines."
            )
        yield Pair(source_line, target_line)


def read_tsv(path: Path, source_column: int = 0, target_column: int = 1) -> Iterator[Pair]:
    """Read two columns, counted from 0, of a tab-separated file; quotation marks have no special meaning.

    A first line that consists of two column names, such as "en" and "zh" or "source" and "target", is not a pair.
    """
    rows = _read_rows(path, source_column, target_column)
    for first in islice(rows, 1):
        if not is_header(first):
            yield first
    yield from rows


def read_tsv_header(path: Path, source_column: int = 0, target_column: int = 1) -> Pair | None:
    """Return the names of two columns of a tab-separated file; None if its first line is a pair."""
    first = next(_read_rows(path, source_column, target_column), None)
    return first if first is not None and is_header(first) else None


def is_header(pair: Pair) -> bool:
    """Return whether the first line of a .tsv file has the names of columns, such as "en" and "zh"."""
    named = all(name.strip().lower() in COLUMN_NAMES or find_language(name) for name in pair)
    return named and pair.source != pair.target


def _read_rows(path: Path, source_column: int, target_column: int) -> Iterator[Pair]:
    if min(source_column, target_column) < 0:
        raise UserError(f"{path}: columns {source_column} and {target_column} are invalid; columns are counted from 0.")
    required = max(source_column, target_column) + 1
    for number, line in _number_lines(path):
        fields = line.split("\t")
        if len(fields) < required:
            columns = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            raise UserError(
                f"{path}, line {number}: has {columns} separated by tabs, but column {required - 1} is needed; "
                f"columns are counted from 0."
            )
        yield Pair(fields[source_column], fields[target_column])


def read_jsonl(path: Path, source: str = "source", target: str = "target") -> Iterator[Pair]:
    """Read the values of two keys from a file with one JSON object per line; "a.b" selects key b of the object a."""
    for where, row in read_objects(path, f'{{"{source}": "…", "{target}": "…"}}'):
        yield Pair(text_of(row, source, where), text_of(row, target, where))


def read_objects(path: Path, form: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Read a file with one JSON object per line, such as `form`, and yield the place of each and the object."""
    for number, line in _number_lines(path):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UserError(f"{where}: not valid JSON ({error}); each line must be one JSON object.") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object; a line must look like {form}.")
        yield where, row


def read_parquet(path: Path, source: str = "source", target: str = "target") -> Iterator[Pair]:
    """Read two text columns of a Parquet file; "a.b" selects field b of the struct column a."""
    with prefix_errors(path):
        pyarrow, parquet = import_optional("pyarrow", "data"), import_optional("pyarrow.parquet", "data")
    if not path.exists():
        raise UserError(f"{path} does not exist; give the path of an existing file.")
    check_regular(path)
    try:
        with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            _check_columns(file.schema_arrow, (source, target), path)
            row = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=[source, target], use_threads=False):
                table = pyarrow.Table.from_batches([batch])
                while any(pyarrow.types.is_struct(field.type) for field in table.schema):
                    table = table.flatten()
                for texts in zip(table[source].to_pylist(), table[target].to_pylist(), strict=True):
                    row += 1
                    if None in texts:
                        missing = (source, target)[texts.index(None)]
                        raise UserError(f'{path}, row {row}: the value of "{missing}" is null, but must be text.')
                    yield Pair(*texts)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged or not a Parquet file ({one_line(error)}); download it again.") from error


def read_lines(path: Path) -> Iterator[str]:
    r"""Read a UTF-8 text file, plain or compressed (.gz, .xz, .zst), line by line.

    A line ends with "\n" or "\r\n" only: other line separators of Unicode occur within sentences, and splitting there
    would shift one side of a corpus against the other. A byte order mark at the start of the file is removed.
    """
    return read_stream(_read_raw_lines(path), str(path))


def read_stream(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines as `read_lines` does, for example of standard input; errors contain `name`."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
            if not line:  # the file contains only a byte order mark
                return
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            is_utf16 = line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line
            problem = "looks like UTF-16" if is_utf16 else "is not valid UTF-8"
            raise UserError(
                f"{name}, line {number}: byte {error.start + 1} of the line {problem}; save it as UTF-8"
            ) from error
        yield text.removesuffix("\n").removesuffix("\r")


def _read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bytes, decompressed according to its suffix."""
    with report_damaged(path), open_decompressed(path) as stream:
        yield from read_raw_lines(stream, str(path))


def _number_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers from 1, without the blank lines at the end of the file."""
    last_with_text = 0
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip(" "):
            yield from ((blank, "") for blank in range(last_with_text + 1, number))  # not at the end after all
            yield number, line
            last_with_text = number


def text_of(row: dict[str, object], key: str, where: str) -> str:
    """Return the value of a key, which must be a string; "a.b" selects key b of the object a."""
    value: object = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            keys = ", ".join(f'"{name}"' for name in row) or "none"
            raise UserError(f'{where}: the key "{key}" is missing; the keys of this line are {keys}.')
        value = value[part]
    if not isinstance(value, str):
        raise UserError(f'{where}: the value of "{key}" has type {type(value).__name__}, but must be a string.')
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f'{where}: the value of "{key}" contains a lone surrogate (\\u{ord(value[error.start]):04x}), which is '
            f"half of a character; both halves must be present."
        ) from error
    return value


def _check_columns(schema: Any, names: tuple[str, str], path: Path) -> None:
    import pyarrow

    types = dict(_flatten(schema))
    for name in names:
        if name not in types:
            raise UserError(f'{path} has no column "{name}"; it has {", ".join(types)}, so set keys to two of them.')
        if not (pyarrow.types.is_string(types[name]) or pyarrow.types.is_large_string(types[name])):
            raise UserError(f'{path}: the column "{name}" has type {types[name]}, but must be text (string).')


def _flatten(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and type of every column; fields of struct columns are named "column.field"."""
    import pyarrow

    for field in fields:
        if pyarrow.types.is_struct(field.type):
            yield from _flatten(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def _is_shard(path: Path) -> bool:
    return format_suffix(path) in PAIR_SUFFIXES and not path.name.startswith(".")
