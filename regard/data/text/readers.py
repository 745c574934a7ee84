"""Parallel text from files, one line at a time.

Memory stays bounded by the longest line: no reader holds more of a file than the line it is at. All readers are lazy,
so a file is opened, and what is wrong with it is refused, when the first line is asked for.
"""

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

from regard.data.text.pairs import Pair
from regard.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 16 * 2**20
"""Bytes; a longer "line" is a binary file or a file without line ends, and would not stay within bounded memory."""


@dataclass(frozen=True)
class Shard:
    """A file with pairs, or two side by side; read anew each time."""

    name: str
    read: Callable[[], Iterator[Pair]]


def read_parallel(
    source: Path,
    target: Path | None = None,
    *,
    columns: tuple[int, int] = (0, 1),
    keys: tuple[str, str] = ("source", "target"),
) -> Iterator[Pair]:
    """Read the pairs of all shards that `find_shards` finds, one after the other.

    Raises:
        UserError: At the call for whatever `find_shards` refuses; during iteration for whatever the readers of the
            single formats refuse; at the end of the iteration, if there was not a single pair.
    """
    shards = find_shards(source, target, columns=columns, keys=keys)
    pairs = chain.from_iterable(shard.read() for shard in shards)
    return _refuse_emptiness(pairs, str(source) if target is None else f"{source} and {target}")


def find_shards(
    source: Path,
    target: Path | None = None,
    *,
    columns: tuple[int, int] = (0, 1),
    keys: tuple[str, str] = ("source", "target"),
) -> list[Shard]:
    """Find one .tsv, .jsonl or .parquet file, all such files of a folder by name, or two line files.

    A compression suffix (.gz, .xz, .zst) may follow any but .parquet. Pairs with an empty side are yielded as they are.

    Args:
        source: A file that holds both sides, a folder of them, or the line file of the source side.
        target: The line file of the target side, if `source` holds only one.
        columns: The columns of source and target in a .tsv file, counted from 0.
        keys: The keys of source and target in a .jsonl file, or the names of two columns of a .parquet file.

    Raises:
        UserError: If one file is given that cannot hold both sides, a second file next to one that does, or a folder
            without a single shard.
    """
    if source.is_dir() and target is None:
        paths = sorted(path for path in source.iterdir() if _is_shard(path))
        if not paths:
            raise UserError(
                f"{source} is a folder without a single {', '.join(PAIR_SUFFIXES)} file; put the shards there."
            )
        return [shard for path in paths for shard in find_shards(path, columns=columns, keys=keys)]
    kind = format_suffix(source)
    if target is None:
        read: dict[str, Callable[[], Iterator[Pair]]] = {
            ".tsv": lambda: read_tsv(source, *columns),
            ".jsonl": lambda: read_jsonl(source, *keys),
            ".parquet": lambda: read_parquet(source, *keys),
        }
        if kind in read:
            return [Shard(str(source), read[kind])]
        raise UserError(
            f"{source} is given without a target file, so it must hold both sides and end in .parquet, .tsv or .jsonl "
            f"(these two optionally with .gz, .xz or .zst behind), or be a folder of such files."
        )
    if kind in PAIR_SUFFIXES:
        raise UserError(
            f"{source} is a {kind} file and holds both sides, so the target file {target} must be left out."
        )
    return [Shard(str(source), lambda: read_pairs(source, target))]


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Read two line files side by side: line n of one is the counterpart of line n of the other.

    Raises:
        UserError: If one file has more lines than the other (the rest of the longer one is counted first), or for
            whatever `read_lines` refuses.
    """
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

    Raises:
        UserError: If a column number is negative, if a line has too few columns (blank lines at the end of the file
            are tolerated), or for whatever `read_lines` refuses.
    """
    if min(source_column, target_column) < 0:
        raise UserError(
            f"Columns {source_column} and {target_column} were asked of {path}, but columns are counted from 0."
        )
    wanted = max(source_column, target_column) + 1
    for number, line in _number_lines(path):
        fields = line.split("\t")
        if len(fields) < wanted:
            raise UserError(
                f"{path}, line {number}: {len(fields)} tab-separated column(s) found, but columns {source_column} and "
                f"{target_column} (counted from 0) need at least {wanted}."
            )
        yield Pair(fields[source_column], fields[target_column])


def read_jsonl(path: Path, source: str = "source", target: str = "target") -> Iterator[Pair]:
    """Read the values of two keys from a file with one JSON object per line; a dot reaches into an object within.

    Raises:
        UserError: If a line is not a JSON object (blank lines at the end of the file are tolerated), if one of the
            keys is missing, if its value is not a string or holds a lone surrogate, or for whatever `read_lines`
            refuses.
    """
    for number, line in _number_lines(path):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # RecursionError: brackets nested without end
            raise UserError(f"{place}: not valid JSON ({error}); each line must be one JSON object.") from error
        if not isinstance(row, dict):
            raise UserError(f'{place}: not a JSON object; a line must look like {{"{source}": "…", "{target}": "…"}}.')
        yield Pair(_take_text(row, source, place), _take_text(row, target, place))


def read_lines(path: Path) -> Iterator[str]:
    r"""Read a UTF-8 text file, plain or compressed as .gz, .xz or .zst, line by line.

    Only "\n" ends a line, with or without one "\r" before it: the other characters that Unicode counts as line ends
    occur inside sentences, and splitting at them would shift one side of a corpus against the other. A byte order mark
    at the start of the file is dropped.

    Raises:
        UserError: If the file is missing, a directory, unreadable, truncated or damaged, if a line is not valid UTF-8
            or longer than 16 MiB, or if the file ends in .zst and pyarrow is not installed.
    """
    return _decode_lines(_read_raw_lines(path), str(path))


def read_stream(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Read lines as `read_lines` does, from an open binary stream such as standard input; `name` stands in errors."""
    return _decode_lines(stream, name)


def _decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
            if not line:  # the file is a byte order mark and nothing else
                return
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            doubt = "looks like UTF-16" if _looks_like_utf16(line) else "is not valid UTF-8"
            raise UserError(
                f"{name}, line {number}: byte {error.start + 1} of the line {doubt}; save it as UTF-8"
            ) from error
        yield text.removesuffix("\n").removesuffix("\r")


def _looks_like_utf16(line: bytes) -> bool:
    """Whether bytes begin with UTF-16's byte order mark, or hold the zeros that it gives to every Latin letter."""
    return line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line


def _read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the decompressed lines with their line ends, and turn what goes wrong on the way into a `UserError`."""
    try:
        with _open_decompressed(path) as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(
                        f"{path}, line {number}: longer than {LONGEST_LINE // 2**20} MiB; "
                        f"the file must be text with one sentence per line."
                    )
                yield line
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; give the path of an existing file.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; give the path of a file in it.") from error
    except EOFError as error:
        raise UserError(f"{path} is truncated: its compressed data stop before their end; fetch it again.") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path} is damaged or not compressed the way its suffix says ({error}); fetch or rename it."
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); check the file and its permissions."
        ) from error


def _open_decompressed(path: Path) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".xz":
            return cast(BinaryIO, lzma.open(path, "rb"))
        case ".zst":
            return _open_zstandard(path)
        case _:
            return path.open("rb")


def _open_zstandard(path: Path) -> BinaryIO:
    try:
        import pyarrow  # an optional extra, and slow to import
    except ImportError as error:
        raise UserError(f"{path} is compressed with zstd; to read it, run: pip install 'regard[data]'.") from error
    # The file is opened here and not by pyarrow, so that a missing file or a directory is told apart as everywhere
    # else; and pyarrow's streams cannot be read by lines, hence the BufferedReader around them.
    return io.BufferedReader(pyarrow.input_stream(path.open("rb"), compression="zstd"))


def _number_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers from 1, without the blank lines at the end of the file."""
    last_with_text = 0
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip(" "):
            # Text follows the blank lines held back so far, so they were not at the end.
            yield from ((blank, "") for blank in range(last_with_text + 1, number))
            yield number, line
            last_with_text = number


def _take_text(row: dict[str, object], key: str, place: str) -> str:
    text: object = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(text, dict) or part not in text:
            raise UserError(f'{place}: the key "{key}" is missing; each line must have it.')
        text = text[part]
    if not isinstance(text, str):
        raise UserError(f'{place}: the value of "{key}" is a {type(text).__name__}, but must be a string.')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f'{place}: the value of "{key}" holds a lone surrogate (\\u{ord(text[error.start]):04x}), half of a '
            f"character; both halves must be there."
        ) from error
    return text


def _is_shard(path: Path) -> bool:
    return format_suffix(path) in PAIR_SUFFIXES and not path.name.startswith(".")


def _refuse_emptiness(pairs: Iterator[Pair], name: str) -> Iterator[Pair]:
    empty = True
    for pair in pairs:
        empty = False
        yield pair
    if empty:
        raise UserError(f"There is not a single pair in {name}; a corpus needs at least one.")


ROWS = 8192


def read_parquet(path: Path, source: str = "source", target: str = "target") -> Iterator[Pair]:
    """Read two columns of text; a dot reaches into a column of records, as in "translation.en".

    Raises:
        UserError: If the file is missing, damaged or not Parquet, if a column is missing or holds no text, if a value
            is null or no valid text, or if pyarrow is not installed.
    """
    try:
        import pyarrow  # an optional extra, and slow to import
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} is a Parquet file; to read it, run: pip install 'regard[data]'.") from error
    if not path.exists():
        raise UserError(f"{path} does not exist; give the path of an existing file.")
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            _check_columns(file.schema_arrow, (source, target), path)
            row = 0
            for batch in file.iter_batches(ROWS, columns=[source, target], use_threads=False):
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
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or not a Parquet file ({reason}); fetch it again.") from error


def _check_columns(schema: Any, wanted: tuple[str, str], path: Path) -> None:
    """Refuses columns that are not there or are not text."""
    import pyarrow

    kinds = dict(_flatten(schema))
    for name in wanted:
        if name not in kinds:
            raise UserError(f'{path} has no column "{name}"; it has {", ".join(kinds)}, so set keys to two of them.')
        if not (pyarrow.types.is_string(kinds[name]) or pyarrow.types.is_large_string(kinds[name])):
            raise UserError(f'{path}: the column "{name}" holds {kinds[name]}, but must hold text (string).')


def _flatten(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The name and type of every column; those within a column of records have its name before theirs."""
    import pyarrow

    for field in fields:
        if pyarrow.types.is_struct(field.type):
            yield from _flatten(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
PAIR_SUFFIXES = (".tsv", ".jsonl", ".parquet")
"""Kinds of file that hold a sentence and its translation together."""


def format_suffix(path: Path) -> str:
    """The suffix before a compression, in small letters: ".tsv" of corpus.TSV.gz, "" of a name without one."""
    if path.suffix.lower() in COMPRESSION_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()
