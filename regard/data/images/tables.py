"""Tables of images: CSV with paths and labels, Parquet with the images themselves."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.data.images.sources import Files, Listing, Packed, Spool, split_of, split_of_shard
from regard.errors import UserError

IMAGE_COLUMNS = (
    "image",
    "img",
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "image_path",
    "bytes",
    "jpg",
    "png",
)
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "fine_label", "cls")
SPLIT_COLUMN = "split"
ROWS = 64
"""Rows of a Parquet file that are in memory at a time."""
Columns = tuple[str, str] | None


def read_csv(path: Path, columns: Columns = None) -> Listing:
    """The images that a CSV names, relative to itself; a column `split` may say train, valid or test.

    Raises:
        UserError: the file is not text, a column is missing, or a row lacks a value; it is named.
    """
    names: list[str] = []
    labels: list[str] = []
    splits: list[str | None] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            if not rows.fieldnames:
                raise UserError(f"{path}: is empty; its first line must name the columns, such as path,label")
            image, label = _choose(rows.fieldnames, columns, path)
            for row in rows:
                name, value = ((row[column] or "").strip() for column in (image, label))
                if not name or not value:
                    raise UserError(f"{path}, line {rows.line_num}: {image} and {label} must both be there")
                names.append(row[image])
                labels.append(value)
                splits.append(_read_split(row.get(SPLIT_COLUMN), f"{path}, line {rows.line_num}"))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise UserError(f"{path}: not a table in UTF-8 ({error})") from None
    return Listing(Files(path.parent, names), labels, splits)


def _read_split(value: object, where: str) -> str | None:
    """What a row says of its split, if it does.

    Raises:
        UserError: it says something else.
    """
    word = str("" if value is None else value).strip()
    split = split_of(word)
    if word and split is None:
        raise UserError(f"{where}: split is {value!r}, but must be train, valid or test")
    return split


def read_parquet(path: Path, shards: Sequence[Path], columns: Columns = None) -> Listing:
    """The images in Parquet files, as bytes or as records with `bytes`; they are unpacked into a temporary file.

    Labels are text or whole numbers; where the files state the names of classes, as those of `datasets` do, the numbers
    stand for these. A column `split` may say train, valid or test; else the name of a file among several may.

    Raises:
        UserError: pyarrow is not installed, a file is damaged, a column missing or of the wrong type, a label null, or
            a split unknown.
    """
    try:
        import pyarrow  # an optional extra, and slow to import
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path} is a Parquet file; to read it, run: pip install 'regard[data]'.") from None
    spool = Spool()
    names: list[str] = []
    labels: list[str] = []
    splits: list[str | None] = []
    offsets: list[int] = []
    sizes: list[int] = []
    order: dict[str, None] = {}
    for shard in shards:
        of_shard = split_of_shard(shard) if len(shards) > 1 else None
        try:
            with pyarrow.parquet.ParquetFile(shard, buffer_size=2**20, pre_buffer=False) as file:
                image, label = _choose(file.schema_arrow.names, columns, shard)
                classes = _class_names(file.schema_arrow, label)
                order |= dict.fromkeys(classes)
                wanted = _column_of_bytes(file.schema_arrow.field(image), shard)
                columns_read = [wanted, label, *({SPLIT_COLUMN} & set(file.schema_arrow.names))]
                row = 0
                for batch in file.iter_batches(ROWS, columns=columns_read, use_threads=False):
                    for content, value, split in zip(
                        _contents(batch.column(image)), batch.column(label), _splits(batch), strict=True
                    ):
                        row += 1
                        where = f"{shard}, row {row}"
                        labels.append(_label(value.as_py(), classes, where))
                        splits.append(_read_split(split, where) or of_shard)
                        start, size = spool.append(io.BytesIO(content))
                        names.append(f"{shard.name}, row {row}")
                        offsets.append(start)
                        sizes.append(size)
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{shard}: damaged or not a Parquet file ({reason}); fetch it again") from None
    spool.finish()
    present = set(labels)
    stated = tuple(name for name in order if name in present) if present <= order.keys() else None
    home = path if path.is_dir() else path.parent
    return Listing(Packed(home, names, [spool], [0] * len(names), offsets, sizes), labels, splits, classes=stated)


def _choose(present: Iterable[str], columns: Columns, path: Path) -> tuple[str, str]:
    """The columns with images and labels: those that are asked for, or those whose names are known."""
    present = list(present)
    candidates = ((columns[0],), (columns[1],)) if columns else (IMAGE_COLUMNS, LABEL_COLUMNS)
    chosen = [next((name for name in names if name in present), None) for names in candidates]
    for found, names, what in zip(chosen, candidates, ("images", "labels"), strict=True):
        if found is None:
            raise UserError(
                f"{path}: no column with {what} ({' or '.join(names)}); it has {', '.join(map(str, present))}: "
                f"set data.columns to two of them"
            )
    return str(chosen[0]), str(chosen[1])


def _column_of_bytes(field: Any, path: Path) -> str:
    """The name under which the bytes of a column of images are read."""
    import pyarrow

    kinds, name = field.type, str(field.name)
    if pyarrow.types.is_struct(kinds):
        inner = {each.name: each.type for each in kinds}
        kinds, name = inner.get("bytes"), f"{name}.bytes"
    if kinds is None or not (pyarrow.types.is_binary(kinds) or pyarrow.types.is_large_binary(kinds)):
        raise UserError(f"{path}: the column {field.name} holds {field.type}, but must hold images as bytes")
    return name


def _contents(column: Any) -> Iterable[bytes]:
    """The bytes of a column; none where they are null, which is found when the image is decoded."""
    for value in column:
        content = value.as_py()
        content = content["bytes"] if isinstance(content, dict) else content
        yield content or b""


def _splits(batch: Any) -> list[object]:
    """What the rows say of their splits: nothing, where there is no such column."""
    named = SPLIT_COLUMN in batch.schema.names
    return batch.column(SPLIT_COLUMN).to_pylist() if named else [None] * batch.num_rows


def _class_names(schema: Any, label: str) -> list[str]:
    """The names that `datasets` keeps beside numbers for classes."""
    try:
        stated = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
        return [str(name) for name in stated]
    except (KeyError, TypeError, ValueError):
        return []


def _label(value: object, classes: list[str], where: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int):
        if classes and not 0 <= value < len(classes):
            raise UserError(f"{where}: label {value}, but there are {len(classes)} classes")
        return classes[value] if classes else str(value)
    raise UserError(f"{where}: the label is {value!r}, but must be text or a whole number")
