"""Token sequences in flat arrays, in memory or mapped from files: nothing here makes a copy of a whole array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SCAN_ROWS = 2**17
"""Rows looked at together where all of a corpus must be."""

PIECE = 2**12
"""Rows whose lengths are read at once: the kernel maps some 64 KB of a file for each that it touches."""


@dataclass(frozen=True)
class RaggedArray:
    """Sequences of different length, end to end in one array: sequence i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: npt.NDArray[np.integer[Any]]
    offsets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> RaggedArray:
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, offsets[-1]), offsets)

    @classmethod
    def join(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        """The sequences of all parts, one part after the other."""
        parts = parts or [cls.of([])]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate(([0], np.cumsum(lengths))))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def lengths_at(self, rows: Ints) -> Ints:
        """The lengths of these rows alone."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Ints) -> RaggedArray:
        """The sequences of these rows, in this order, without a Python loop over them."""
        lengths = self.lengths_at(rows)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return RaggedArray(self.tokens[places].astype(np.int32, copy=False), offsets)

    def padded(self, pad: int) -> npt.NDArray[np.int32]:
        """One row for each sequence, filled up with `pad`."""
        lengths = self.lengths
        table = np.full((len(self), int(lengths.max(initial=0))), pad, np.int32)
        table[np.arange(table.shape[1]) < lengths[:, None]] = self.tokens
        return table

    def release_pages(self) -> None:
        """Gives back the memory that mapped files took; what is needed again comes back by itself."""


@dataclass(frozen=True)
class ParallelTokens:
    """A parallel corpus as tokens: the source ends with END, the target stands between BOS and END.

    Where the words are aligned, `links` holds for each pair the linked places: the place of a label (a target token
    behind BOS), then the place of a source token, and so on in turn. `sizes` counts the pairs of each of the corpora
    that lie one behind the other in here.
    """

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray | None
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def columns(self) -> dict[str, RaggedArray]:
        """All that is kept of a pair, by name."""
        named = {"source": self.source, "target": self.target, "links": self.links}
        return {name: ragged for name, ragged in named.items() if ragged is not None}

    def lengths_at(self, rows: Ints) -> tuple[Ints, Ints]:
        """The lengths of both sides of these rows, read in the order of the files and let go piece by piece."""
        source, target = np.empty_like(rows), np.empty_like(rows)
        for piece in np.array_split(np.argsort(rows), 1 + len(rows) // PIECE):
            source[piece] = self.source.lengths_at(rows[piece])
            target[piece] = self.target.lengths_at(rows[piece])
            self.release_pages()
        return source, target

    def longest_pairs(self, number: int) -> Ints:
        """The rows of the longest pairs, by their longer side (BOS not counted), the longest first."""
        found = np.empty(0, np.int64)
        for start in range(0, len(self), SCAN_ROWS):
            rows = np.concatenate((found, np.arange(start, min(start + SCAN_ROWS, len(self)))))
            source, target = self.lengths_at(rows)
            order = np.lexsort((source + target, np.maximum(source, target - 1)))
            found = rows[order[::-1][:number]]
        return found

    def release_pages(self) -> None:
        for ragged in self.columns.values():
            ragged.release_pages()
