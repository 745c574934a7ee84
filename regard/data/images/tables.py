"""Tables of images: CSV files with paths and labels, Parquet files with the images themselves.

Damaged files and missing columns or values raise a UserError, which names the line or row.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.images.sources import FileSource, Listing, PackedImages, PackedSource, parse_split, split_of_file
from regard.errors import UserError, import_optional, one_line, prefix_errors
from regard.files import check_regular, open_regular, parse_json, read_raw_lines

_IMAGE_COLUMN_LIST = "image img path file filename file_name filepath image_path bytes jpg png"
IMAGE_COLUMNS = tuple(_IMAGE_COLUMN_LIST.split())
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "fine_label", "cls")
SPLIT_COLUMN = "split"
PARQUET_ROWS = 64
"""Number of rows of a Parquet file in memory at a time."""
Columns = tuple[str, str] | None
"""Names of the image column and the label column; None to detect them."""


def read_csv(path: Path, columns: Columns = None) -> Listing:
    """List the images named in a CSV or TSV file, with paths relative to it and an optional column `split`."""
    names: list[str] = []
    labels: list[str] = []
    splits: list[str | None] = []
    try:
        with open_regular(path) as file:
            lines = (line.decode("utf-8") for line in read_raw_lines(file, str(path)))
            rows = csv.DictReader(_without_mark(lines), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            if not rows.fieldnames:
                raise UserError(f"{path}: is empty; the first line must contain the column names, such as path,label")
            image, label = _choose_columns(rows.fieldnames, columns, path)
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                name, value = ((row[column] or "").strip() for column in (image, label))
                if not name or not value:
                    raise UserError(f"{where}: {image} and {label} must not be empty")
                names.append(row[image])
                labels.append(value)
                splits.append(_parse_split_value(row.get(SPLIT_COLUMN), where))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a table in UTF-8 ({error})") from None
    return Listing(FileSource(path.parent, names), labels, splits)


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    """Remove a byte order mark from the first line."""
    yield from (line.removeprefix("\ufeff") for line in islice(lines, 1))
    yield from lines


def read_parquet(path: Path, shards: Sequence[Path], columns: Columns = None) -> Listing:
    """List the images in Parquet files, stored as bytes or as structs with a field `bytes`.

    The images are copied to a temporary file. Labels are text or integers; integers refer to the class names in the
    metadata, if there are any, as in files of Hugging Face `datasets`. The split is taken from the column `split`, or
    from the file name if there are several files.
    """
    with prefix_errors(path):
        pyarrow = import_optional("pyarrow", "data")
    images = PackedImages()
    class_order: dict[str, None] = {}
    for shard in shards:
        check_regular(shard)
        try:
            shard_split = split_of_file(shard) if len(shards) > 1 else None
            class_order |= dict.fromkeys(_read_shard(shard, shard_split, columns, images))
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{shard}: damaged or not a Parquet file ({one_line(error)}); download it again") from None
    labels = set(images.labels)
    classes = tuple(name for name in class_order if name in labels) if labels <= class_order.keys() else None
    root = path if path.is_dir() else path.parent
    return Listing(PackedSource(root, images.names, images.locations), images.labels, images.splits, classes=classes)


def _read_shard(shard: Path, shard_split: str | None, columns: Columns, images: PackedImages) -> list[str]:
    """Add the images of a shard to `images` and return the class names in its metadata."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(shard, buffer_size=2**20, pre_buffer=False) as file:
        schema = file.schema_arrow
        image, label = _choose_columns(schema.names, columns, shard)
        classes = _class_names(schema, label)
        wanted = [_bytes_column(schema.field(image), shard), label, *({SPLIT_COLUMN} & set(schema.names))]
        row = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=wanted, use_threads=False):
            has_splits = SPLIT_COLUMN in batch.schema.names
            splits = batch.column(SPLIT_COLUMN).to_pylist() if has_splits else [None] * batch.num_rows
            contents, values = batch.column(image).to_pylist(), batch.column(label).to_pylist()
            for content, value, split in zip(contents, values, splits, strict=True):
                row += 1
                where = f"{shard}, row {row}"
                data = content["bytes"] if isinstance(content, dict) else content
                images.labels.append(_parse_label(value, classes, where))
                images.splits.append(_parse_split_value(split, where) or shard_split)
                images.locations.append(images.storage.append(io.BytesIO(data or b"")))  # null: fails to decode
                images.names.append(f"{shard.name}, row {row}")
    return classes


def _choose_columns(present: Iterable[str], columns: Columns, path: Path) -> tuple[str, str]:
    present = list(present)
    candidates = ((columns[0],), (columns[1],)) if columns else (IMAGE_COLUMNS, LABEL_COLUMNS)
    chosen = [next((name for name in names if name in present), None) for names in candidates]
    for found, names, kind in zip(chosen, candidates, ("images", "labels"), strict=True):
        if found is None:
            raise UserError(
                f"{path}: no column with {kind} ({' or '.join(names)}); it has {', '.join(map(str, present))}: "
                f"set data.columns to two of them"
            )
    return str(chosen[0]), str(chosen[1])


def _bytes_column(field: Any, path: Path) -> str:
    """Return the name of the column, or of the field of a struct column, that contains the encoded images."""
    import pyarrow

    column_type, name = field.type, str(field.name)
    if pyarrow.types.is_struct(column_type):
        field_types = {inner.name: inner.type for inner in column_type}
        column_type, name = field_types.get("bytes"), f"{name}.bytes"
    is_bytes = column_type is not None and (
        pyarrow.types.is_binary(column_type) or pyarrow.types.is_large_binary(column_type)
    )
    if not is_bytes:
        raise UserError(f"{path}: the column {field.name} has type {field.type}, but must contain images as bytes")
    return name


def _class_names(schema: Any, label: str) -> list[str]:
    """Return the class names in the metadata of Hugging Face `datasets`, or []."""
    try:
        names = parse_json(schema.metadata[b"huggingface"].decode("utf-8"))["info"]["features"][label]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError):
        return []


def _parse_label(value: object, classes: list[str], where: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int):
        if classes and not 0 <= value < len(classes):
            raise UserError(f"{where}: the label is {value}, but there are {len(classes)} classes")
        return classes[value] if classes else str(value)
    raise UserError(f"{where}: the label is {value!r}, but must be text or an integer")


def _parse_split_value(value: object, where: str) -> str | None:
    word = str("" if value is None else value).strip()
    split = parse_split(word)
    if word and split is None:
        raise UserError(f"{where}: split is {value!r}, but must be train, valid or test")
    return split
