"""Arrays that grow on the disk: plain .npy files, written as a stream."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy


class ArrayWriter:
    """A .npy file to which rows of one shape are appended; its header is completed at the end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.row, self.length = path, np.dtype(dtype), row, 0
        self._digest = hashlib.sha256()
        self._file = path.open("wb")
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.seek(0)
        self._write_header()  # numpy leaves room for any length, so that this one is as long as the first
        self._file.close()

    def append(self, rows: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows, self.dtype)
        self._digest.update(content.data)
        self._file.write(content.data)
        self.length += len(content)

    def describe(self) -> dict[str, Any]:
        """What the finished file is like."""
        state = self.path.stat()
        return {
            "length": self.length,
            "sha256": self._digest.hexdigest(),
            "bytes": state.st_size,
            "time": state.st_mtime_ns,
        }

    def _write_header(self) -> None:
        shape = (self.length, *self.row)
        header = {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)
