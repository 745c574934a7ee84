"""Tokenised corpora: token sequences of different lengths in flat arrays, in memory or memory-mapped from a store.

The store of a corpus has the arrays `source`, `target` and, if words are aligned, `links`, each with its offsets, such
as `source.offsets`. No function here copies a complete array.
"""

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.data.array_store import DamagedStoreError, Store, StoreWriter, open_store
from regard.data.batching import hash_integers

Ints = npt.NDArray[np.int64]

SCAN_ROWS = 2**17
"""Number of rows read at once by functions that read the complete corpus."""

LENGTH_ROWS = 2**12
"""Number of rows whose lengths are read at once: every access maps about 64 KB of the file into memory."""

WORDS, SEGMENTATIONS = ("source.words", "target.words"), ("source.segmentations", "target.segmentations")
"""Columns of a store for BPE-dropout."""
SAMPLES = 32
"""Number of segmentations stored for each word."""

RELEASE_ABOVE = 2**25
"""Bytes; pages of smaller memory-mapped files stay in memory."""


@dataclass(frozen=True)
class RaggedArray:
    """Sequences of different lengths, concatenated: sequence i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: npt.NDArray[np.integer[Any]]
    offsets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "RaggedArray":
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, offsets[-1]), offsets)

    @classmethod
    def concatenate(cls, arrays: "Sequence[RaggedArray]") -> "RaggedArray":
        arrays = arrays or [cls.of([])]
        lengths = np.concatenate([array.lengths for array in arrays])
        return cls(np.concatenate([array.tokens for array in arrays]), np.concatenate(([0], np.cumsum(lengths))))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def lengths_at(self, rows: Ints) -> Ints:
        """Return the lengths of the given rows."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Ints) -> "RaggedArray":
        """Return the given rows, in this order, as int32 in memory."""
        lengths = self.lengths_at(rows)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        indices = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return RaggedArray(self.tokens[indices].astype(np.int32, copy=False), offsets)

    def padded(self, pad: int) -> npt.NDArray[np.int32]:
        """Return a matrix with one row per sequence, filled up with `pad`."""
        lengths = self.lengths
        matrix = np.full((len(self), int(lengths.max(initial=0))), pad, np.int32)
        matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = self.tokens
        return matrix

    def release_pages(self) -> None:
        """Release the memory of large memory-mapped files; the next access reads their pages again."""
        for array in (self.tokens, self.offsets):
            mapped = getattr(array, "_mmap", None)  # of numpy.memmap
            if mapped is not None and len(mapped) > RELEASE_ABOVE and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class DropoutTokens(RaggedArray):
    """One side of a corpus with BPE-dropout: row i + n * e of n sentences is sentence i, segmented for epoch e.

    Epoch 0 and `tokens` are without dropout. In other epochs, each word has one of its stored segmentations,
    chosen by a hash; sentences that would become longer than `limit` stay as in epoch 0.
    """

    words: RaggedArray  # index of the distinct word of each word
    segmentations: RaggedArray  # SAMPLES of each distinct word in turn; the first of them is without dropout
    limit: int
    seed: int

    def lengths_at(self, rows: Ints) -> Ints:
        if rows.max(initial=0) < len(self):
            return super().lengths_at(rows)
        chosen, offsets = self._choose_segmentations(rows)
        return self._sum_per_row(self.segmentations.lengths_at(chosen), offsets)

    def take(self, rows: Ints) -> RaggedArray:
        if rows.max(initial=0) < len(self):
            return super().take(rows)
        chosen, offsets = self._choose_segmentations(rows)
        taken = self.segmentations.take(chosen)
        return RaggedArray(taken.tokens, taken.offsets[offsets])

    def _choose_segmentations(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the stored segmentation of each word of the rows, (words,), and the offsets of the rows, (rows + 1,).

        The first of the SAMPLES segmentations of a word is without dropout. Rows of epoch 0 have it, and so have rows
        that would exceed `limit`.
        """
        words = self.words.take(rows % len(self))
        row_of_word = np.arange(len(rows)).repeat(words.lengths)
        position = np.arange(len(row_of_word)) - words.offsets[row_of_word]  # of a word in its row
        plain = words.tokens.astype(np.int64) * SAMPLES
        hashes = hash_integers(self.seed, rows[row_of_word], position)
        sampled = plain + 1 + (hashes % np.uint64(SAMPLES - 1)).astype(np.int64)
        is_too_long = self._sum_per_row(self.segmentations.lengths_at(sampled), words.offsets) > self.limit
        is_plain = is_too_long | (rows < len(self))
        return np.where(is_plain[row_of_word], plain, sampled), words.offsets

    def release_pages(self) -> None:
        super().release_pages()
        self.words.release_pages()
        self.segmentations.release_pages()

    @staticmethod
    def _sum_per_row(lengths: Ints, offsets: Ints) -> Ints:
        """Return the sum of the lengths of the words of each row, (rows,)."""
        return np.diff(np.concatenate(([0], np.cumsum(lengths)))[offsets])


@dataclass(frozen=True)
class ParallelTokens:
    """A tokenised parallel corpus: a source ends with EOS, a target stands between BOS and EOS.

    Attributes:
        links: Alignment of each pair as a flat sequence of target and source positions: t0, s0, t1, s1, ... Target
            positions are counted without BOS. None if the words are not aligned.
        sizes: Number of pairs of each of the concatenated corpora.
        words: Numbers of the words of each side, for BPE-dropout.
    """

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray | None
    sizes: tuple[int, ...]
    words: tuple[RaggedArray, RaggedArray] | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def columns(self) -> dict[str, RaggedArray]:
        """All arrays of the corpus by name."""
        columns = {"source": self.source, "target": self.target, "links": self.links}
        columns |= dict(zip(WORDS, self.words or (), strict=False))
        return {name: ragged for name, ragged in columns.items() if ragged is not None}

    def lengths_at(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the source and target lengths of the given rows, read in file order to keep memory use low."""
        source, target = np.empty_like(rows), np.empty_like(rows)
        for chunk in np.array_split(np.argsort(rows), 1 + len(rows) // LENGTH_ROWS):
            source[chunk] = self.source.lengths_at(rows[chunk])
            target[chunk] = self.target.lengths_at(rows[chunk])
            self.release_pages()
        return source, target

    def longest_pairs(self, number: int) -> Ints:
        """Return the rows of the longest pairs by the longer side (BOS not counted), longest first."""
        longest = np.empty(0, np.int64)
        for start in range(0, len(self), SCAN_ROWS):
            rows = np.concatenate((longest, np.arange(start, min(start + SCAN_ROWS, len(self)))))
            source, target = self.lengths_at(rows)
            order = np.lexsort((source + target, np.maximum(source, target - 1)))
            longest = rows[order[::-1][:number]]
        return longest

    def longest_source(self) -> int:
        """Return the number of tokens of the longest source, without EOS."""
        starts = range(0, len(self), SCAN_ROWS)
        longest = max(int(np.diff(self.source.offsets[start : start + SCAN_ROWS + 1]).max()) for start in starts)
        self.release_pages()
        return longest - 1

    def release_pages(self) -> None:
        for ragged in self.columns.values():
            ragged.release_pages()


def write_token_store(
    folder: Path,
    corpora: Iterable[Iterable[ParallelTokens]],
    max_values: dict[str, int],
    further: Callable[[], dict[str, RaggedArray]] = dict,
) -> None:
    """Write corpora one after the other into a store, holding one chunk of them in memory.

    Args:
        corpora: One iterator over chunks per corpus.
        max_values: Columns to write ("source", "target", "links") with the largest value of each, which selects the
            data type.
        further: Returns further arrays, once the corpora are written.
    """
    sizes: list[int] = []
    with StoreWriter(folder) as store:
        columns = {
            name: (store.add_array(name, np.min_scalar_type(value)), store.add_array(f"{name}.offsets", np.int64))
            for name, value in max_values.items()
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
        for name, ragged in further().items():
            store.add_array(name, np.min_scalar_type(ragged.tokens.max())).append(ragged.tokens)
            store.add_array(f"{name}.offsets", np.int64).append(ragged.offsets)
        store.metadata["sizes"] = sizes


def open_token_store(folder: Path, dropout_seed: int | None = None) -> ParallelTokens:
    """Open a tokenised corpus memory-mapped; with a seed, as `DropoutTokens`."""
    store = open_store(folder, ("source", "source.offsets", "target", "target.offsets"), {"sizes": list})
    links = _ragged(store, "links") if "links" in store.arrays else None
    corpus = ParallelTokens(_ragged(store, "source"), _ragged(store, "target"), links, tuple(store.metadata["sizes"]))
    if dropout_seed is None:
        return corpus
    (longest,) = corpus.longest_pairs(1)
    limit = int(max(corpus.source.lengths_at(longest), corpus.target.lengths_at(longest) - 1))

    def side(number: int, plain: RaggedArray) -> DropoutTokens:
        words, segmentations = _ragged(store, WORDS[number]), _ragged(store, SEGMENTATIONS[number])
        return DropoutTokens(plain.tokens, plain.offsets, words, segmentations, limit + number, dropout_seed + number)

    return replace(corpus, source=side(0, corpus.source), target=side(1, corpus.target))


def _ragged(store: Store, name: str) -> RaggedArray:
    if f"{name}.offsets" not in store.arrays:
        raise DamagedStoreError(f"{name}.offsets.npy is missing")
    return RaggedArray(store.arrays[name], store.arrays[f"{name}.offsets"])
