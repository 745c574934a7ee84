"""Arrays on disk: .npy files in a folder, written as a stream and opened memory-mapped.

`store.json` contains metadata and a description of the arrays with checksums. It is written last, so that an
interrupted store is not mistaken for a complete one.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from regard.errors import UserError
from regard.files import check_regular, read_json

DESCRIPTION = "store.json"
FORMAT = 2


class DamagedStoreError(Exception):
    """A store whose files do not match its description."""


class ArrayWriter:
    """A .npy file to which rows of one shape are appended; closing it completes its header."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.row_shape, self.length = path, np.dtype(dtype), row_shape, 0
        self._checksum = hashlib.sha256()
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows, self.dtype)
        self._checksum.update(content.data)
        self._file.write(content.data)
        self.length += len(content)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()  # same length as the first header: numpy reserves space for any number of rows
        self._file.close()

    def describe(self) -> dict[str, Any]:
        """Return what `open_store` needs to detect damage to the closed file."""
        state = self.path.stat()
        checksum = self._checksum.hexdigest()
        return {"length": self.length, "sha256": checksum, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns}

    def _write_header(self) -> None:
        shape = (self.length, *self.row_shape)
        header = {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)


class StoreWriter:
    """Context manager that writes arrays and `metadata`; the store is complete once it exits without an error."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.metadata: dict[str, Any] = {}
        self._arrays: list[ArrayWriter] = []

    def add_array(self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        """Create the empty array `name`.npy."""
        self._arrays.append(ArrayWriter(self.folder / f"{name}.npy", dtype, row_shape))
        return self._arrays[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for array in self._arrays:
            array.close()
        if error_type is None:
            arrays = {array.path.name: array.describe() for array in self._arrays}
            description = {"format": FORMAT, "metadata": self.metadata, "arrays": arrays}
            (self.folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Store:
    """The memory-mapped, read-only arrays of a store by name, and its metadata."""

    arrays: dict[str, npt.NDArray[Any]]
    metadata: dict[str, Any]


def open_store(folder: Path, arrays: Sequence[str], metadata: Mapping[str, type]) -> Store:
    """Open a store. An array file is checked against its checksum unless its size and modification time are unchanged.

    Args:
        arrays: Names of arrays that the store must have; further arrays are opened too.
        metadata: Keys that the metadata must have, with the types of their values.

    Raises:
        DamagedStoreError: If a file is missing or does not match the description.
    """
    description = read_description(folder)
    missing = [f"{name}.npy" for name in arrays if f"{name}.npy" not in description["arrays"]]
    missing += [key for key, kind in metadata.items() if not isinstance(description["metadata"].get(key), kind)]
    if missing:
        raise DamagedStoreError(f"{DESCRIPTION} does not list {missing[0]}, or lists it incorrectly")
    opened = {
        name.removesuffix(".npy"): _open_array(folder / name, known) for name, known in description["arrays"].items()
    }
    return Store(opened, description["metadata"])


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of a store: format, metadata and arrays."""
    try:
        description: dict[str, Any] = read_json(folder / DESCRIPTION)
        if description["format"] != FORMAT:
            raise DamagedStoreError(f"{DESCRIPTION} has format {description['format']!r:.40}, not {FORMAT}")
        if not isinstance(description["metadata"], dict):
            raise DamagedStoreError(f"{DESCRIPTION} is incomplete")
        for name, array in description["arrays"].items():
            if not array["sha256"] or not re.fullmatch(r"\w[\w.-]*\.npy", name):
                raise DamagedStoreError(f"{DESCRIPTION} does not describe {name}")
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{DESCRIPTION} cannot be read: {error}") from None
    return description


def store_checksum(folder: Path) -> str:
    """Return a checksum of the contents of all arrays and of the metadata, taken from the description."""
    description = read_description(folder)
    contents = {name: array["sha256"] for name, array in description["arrays"].items()}
    return hashlib.sha256(json.dumps([contents, description["metadata"]], sort_keys=True).encode()).hexdigest()


def _open_array(path: Path, known: dict[str, Any]) -> npt.NDArray[Any]:
    try:
        check_regular(path)
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        state = path.stat()
    except Exception as error:  # numpy raises many exception types for damaged headers
        raise DamagedStoreError(f"{path.name} cannot be read: {error}") from None
    if state.st_size != known.get("bytes") or not array.ndim or len(array) != known.get("length"):
        raise DamagedStoreError(f"{path.name} has {state.st_size} bytes, not {known.get('bytes')!r:.40}")
    if not array.flags.c_contiguous:
        raise DamagedStoreError(f"{path.name} is not stored row by row")
    if array.dtype.kind not in "biuf":
        raise DamagedStoreError(f"{path.name} contains {array.dtype}, not numbers")
    if state.st_mtime_ns != known.get("mtime_ns") and hashlib.sha256(array.data).hexdigest() != known["sha256"]:
        raise DamagedStoreError(f"{path.name} does not match its checksum")
    return array
