"""Parallel text from Parquet files, some thousand rows at a time and only the two columns that are asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.text.pair import Pair
from regard.errors import UserError

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
