"""Tokens on the disk: plain .npy files in a folder, written as a stream and mapped into memory, never loaded whole.

`source.npy`, `target.npy` and, where words are aligned, `links.npy` hold sequences end to end; `….offsets.npy` says
where each begins. `store.json` describes them, with checksums.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from regard.data.arrays import ArrayWriter
from regard.data.text.tokens import ParallelTokens, RaggedArray

DESCRIPTION = "store.json"
FORMAT = 1
KEPT = 2**25
"""Bytes: what is mapped of a smaller file may stay in memory."""


class DamagedStoreError(Exception):
    """A store that does not hold what its description says."""


@dataclass(frozen=True)
class Mapped(RaggedArray):
    """Sequences in mapped files."""

    maps: tuple[mmap.mmap, ...]

    def release_pages(self) -> None:
        for mapped in self.maps:
            if len(mapped) > KEPT and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def write_store(folder: Path, corpora: Iterable[Iterable[ParallelTokens]], largest: dict[str, int]) -> None:
    """Writes corpora that stream by, one behind the other, holding no more than a chunk of them.

    Args:
        folder: Made unless it is there, and worth nothing before this function returns.
        corpora: Each a stream of chunks.
        largest: The columns to keep, with the largest number that can stand in each.
    """
    folder.mkdir(exist_ok=True)
    sizes: list[int] = []
    with ExitStack() as stack:
        columns = {
            name: (
                stack.enter_context(ArrayWriter(folder / f"{name}.npy", np.min_scalar_type(number))),
                stack.enter_context(ArrayWriter(folder / f"{name}.offsets.npy", np.dtype(np.int64))),
            )
            for name, number in largest.items()
        }
        for _, offsets in columns.values():
            offsets.append(np.zeros(1, np.int64))
        for corpus in corpora:
            sizes.append(0)
            for chunk in corpus:
                sizes[-1] += len(chunk)
                for name, (tokens, offsets) in columns.items():
                    offsets.append(tokens.length + chunk.columns[name].offsets[1:])
                    tokens.append(chunk.columns[name].tokens)
    arrays = [array for column in columns.values() for array in column]
    description = {"format": FORMAT, "sizes": sizes, "arrays": {a.path.name: a.describe() for a in arrays}}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def open_store(folder: Path) -> ParallelTokens:
    """The tokens of a store. A file whose size and time are as they were is trusted, any other read and compared.

    Raises:
        DamagedStoreError: something is missing or not what was written; says what.
    """
    description = _describe(folder)
    columns = {}
    for name in ("source", "target", "links"):
        if f"{name}.npy" in description["arrays"]:
            (tokens, one), (offsets, other) = (
                _open_array(folder / file, description["arrays"].get(file, {}))
                for file in (f"{name}.npy", f"{name}.offsets.npy")
            )
            columns[name] = Mapped(tokens, offsets, (one, other))
    if "source" not in columns or "target" not in columns:
        raise DamagedStoreError(f"{DESCRIPTION} lacks a side")
    sizes = tuple(int(size) for size in description["sizes"])
    return ParallelTokens(columns["source"], columns["target"], columns.get("links"), sizes)


def digest_store(folder: Path) -> str:
    """One checksum of all that a store holds, read off its description.

    Raises:
        DamagedStoreError: there is no description.
    """
    description = _describe(folder)
    known = {name: array["sha256"] for name, array in description["arrays"].items()} | {"sizes": description["sizes"]}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _describe(folder: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise DamagedStoreError(f"it is of format {description['format']}, not {FORMAT}")
        if not all(array["sha256"] for array in description["arrays"].values()) or not description["sizes"]:
            raise DamagedStoreError(f"{DESCRIPTION} is incomplete")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{DESCRIPTION} cannot be read: {error}") from None
    return description


def _open_array(path: Path, known: dict[str, Any]) -> tuple[npt.NDArray[Any], mmap.mmap]:
    try:
        with path.open("rb") as file:
            if npy.read_magic(file) != (1, 0):
                raise DamagedStoreError(f"{path.name} is of another version")
            shape, _, dtype = npy.read_array_header_1_0(file)
            start = file.tell()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DamagedStoreError(f"{path.name} cannot be read: {error}") from None
    state = path.stat()
    if state.st_size != known.get("bytes") or shape != (known.get("length"),):
        raise DamagedStoreError(f"{path.name} has {state.st_size} bytes, not {known.get('bytes')}")
    array = np.frombuffer(mapped, dtype, offset=start)
    if state.st_mtime_ns != known.get("time") and _checksum(array) != known.get("sha256"):
        raise DamagedStoreError(f"{path.name} is not what was written")
    return array, mapped


def _checksum(array: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256()
    digest.update(array.data)
    return digest.hexdigest()
