"""Token sequences in flat arrays, and the plan of an epoch: which sentences share a batch, in which order.

The order is a function of the seed and the epoch alone, so that a position in it is two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from regard.text.pair import Pair
from regard.text.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Sequences of different length, end to end in one array: sequence i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: npt.NDArray[np.int32]
    offsets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, offsets[-1]), offsets)

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """The sequences of all parts, one part after the other."""
        parts = parts or [cls.of([])]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate(([0], np.cumsum(lengths))))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Ints) -> Ragged:
        """The sequences of these rows, in this order, without a Python loop over them."""
        lengths = self.lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(self.tokens[np.repeat(self.offsets[rows], lengths) + within], offsets)

    def padded(self, pad: int) -> npt.NDArray[np.int32]:
        """One row for each sequence, filled up with `pad`."""
        lengths = self.lengths
        table = np.full((len(self), int(lengths.max(initial=0))), pad, np.int32)
        table[np.arange(table.shape[1]) < lengths[:, None]] = self.tokens
        return table


@dataclass(frozen=True)
class ParallelTokens:
    """A parallel corpus as tokens: the source ends with END, the target stands between BOS and END."""

    source: Ragged
    target: Ragged
    skipped_empty: int = 0
    skipped_long: int = 0

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def encode(
        cls, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int | None = None
    ) -> ParallelTokens:
        """Tokenises a corpus as it streams by; pairs with an empty side, or over `longest` tokens, are counted out."""
        sources: list[Ragged] = []
        targets: list[Ragged] = []
        empty = long = 0
        for chunk in _chunks(pairs, 10_000):
            kept: list[tuple[list[int], list[int]]] = []
            encoded_sources = source.encode_batch([pair.source for pair in chunk])
            encoded_targets = target.encode_batch([pair.target for pair in chunk])
            for pair, s, t in zip(chunk, encoded_sources, encoded_targets, strict=True):
                if not pair.source.strip() or not pair.target.strip():
                    empty += 1
                elif longest is not None and max(len(s), len(t)) + 1 > longest:
                    long += 1
                else:
                    kept.append(([*s, source.EOS], [target.BOS, *t, target.EOS]))
            sources.append(Ragged.of([s for s, _ in kept]))
            targets.append(Ragged.of([t for _, t in kept]))
        return cls(Ragged.join(sources), Ragged.join(targets), empty, long)


def plan_padded(source: Ints, target: Ints, tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of sentences of similar length: neither side has more than `tokens` places, padding included."""
    # Noise on the lengths lets a sentence meet other company in every epoch.
    noise = rng.uniform(0, 1, size=(2, len(source)))
    order = np.lexsort((source + 2 * noise[0], np.floor(target + noise[1])))
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        window = order[start : start + tokens]
        widest = np.maximum(np.maximum.accumulate(source[window]), np.maximum.accumulate(target[window]))
        fits = int(np.searchsorted(widest * np.arange(1, len(window) + 1), tokens, side="right"))
        batches.append(window[: max(1, fits)])
        start += max(1, fits)
    return [batches[i] for i in rng.permutation(len(batches))]


def plan_packed(source: Ints, target: Ints, tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of sentences in random order, filled until either side would pass `tokens`."""
    order = rng.permutation(len(source))
    totals = np.stack((np.cumsum(source[order]), np.cumsum(target[order])))
    batches: list[Ints] = []
    start, used = 0, np.zeros(2, np.int64)
    while start < len(order):
        end = min(int(np.searchsorted(total, used[side] + tokens, side="right")) for side, total in enumerate(totals))
        end = max(end, start + 1)
        batches.append(order[start:end])
        start, used = end, totals[:, end - 1]
    return batches


def _chunks(pairs: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
