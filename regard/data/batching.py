"""Batches: the order of the pairs of an epoch, the pairs of each batch, and preparation in background threads.

The order of an epoch is a permutation computed by a Feistel network, so that any part of it can be computed without
storing the rest, and training can resume at any position.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item")
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WINDOW = 2**17
"""Maximum number of pairs that are divided into batches together, which bounds the memory needed."""

FEISTEL_ROUNDS = 6


def plan_padded(source: Ints, target: Ints, tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Divide pairs with the given lengths (N,) into batches of similar length and return the indices of each batch.

    Neither side of a batch has more than `tokens` positions, padding included; a longer pair is a batch of its own.
    Pairs of almost the same length are combined differently in every epoch.
    """
    noise = rng.uniform(0, 1, size=(2, len(source)))
    order = np.lexsort((target + 2 * noise[0], np.floor(np.maximum(source, target) + noise[1])))
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        candidates = order[start : start + tokens]
        longest = np.maximum(np.maximum.accumulate(source[candidates]), np.maximum.accumulate(target[candidates]))
        size = int(np.searchsorted(longest * np.arange(1, len(candidates) + 1), tokens, side="right"))
        batches.append(candidates[: max(1, size)])
        start += max(1, size)
    return [batches[i] for i in rng.permutation(len(batches))]


def plan_packed(
    source: Ints, target: Ints, tokens: int, rng: np.random.Generator, sentences: int | None = None
) -> list[Ints]:
    """Divide pairs in random order into batches of at most `tokens` tokens per side and at most `sentences` pairs."""
    order = rng.permutation(len(source))
    totals = np.stack((np.cumsum(source[order]), np.cumsum(target[order])))
    batches: list[Ints] = []
    start, used = 0, np.zeros(2, np.int64)
    while start < len(order):
        end = min(int(np.searchsorted(total, used[side] + tokens, side="right")) for side, total in enumerate(totals))
        end = max(end if sentences is None else min(end, start + sentences), start + 1)
        batches.append(order[start:end])
        start, used = end, totals[:, end - 1]
    return batches


@dataclass(frozen=True)
class CorpusPart:
    """A corpus within the training data: `pairs` rows from row `start`, `per_epoch` of which are drawn in an epoch."""

    start: int
    pairs: int
    per_epoch: int


@dataclass(frozen=True)
class EpochOrder:
    """The order of the training pairs in every epoch.

    Every corpus is an endless sequence of passes over it, each in a new random order. An epoch takes the next
    `per_epoch` pairs of every corpus and shuffles them, so that a pass contains every pair exactly once for any weight.
    """

    seed: int
    parts: tuple[CorpusPart, ...]
    window: int = WINDOW

    @classmethod
    def of(cls, seed: int, sizes: Sequence[int], weights: Sequence[float], window: int = WINDOW) -> "EpochOrder":
        """Create the order of concatenated corpora; a weight is how often an epoch contains a pair on average."""
        starts = np.cumsum([0, *sizes]).tolist()
        per_epoch = [max(1, round(size * weight)) for size, weight in zip(sizes, weights, strict=True)]
        return cls(seed, tuple(CorpusPart(*part) for part in zip(starts, sizes, per_epoch, strict=False)), window)

    def __len__(self) -> int:
        """Number of pairs in an epoch."""
        return sum(part.per_epoch for part in self.parts)

    @property
    def windows(self) -> int:
        """Number of windows of about the same length into which an epoch is divided."""
        return -(-len(self) // self.window)

    def rows(self, epoch: int, window: int) -> Ints:
        """Return the rows of one window of an epoch."""
        start, end = (len(self) * bound // self.windows for bound in (window, window + 1))
        shuffled = shuffle(np.arange(start, end), len(self), hash_integers(self.seed, epoch))
        rows = np.empty_like(shuffled)
        first = 0
        for number, part in enumerate(self.parts):
            own = (first <= shuffled) & (shuffled < first + part.per_epoch)
            passes, indices = np.divmod(epoch * part.per_epoch + shuffled[own] - first, part.pairs)
            rows[own] = part.start + shuffle(indices, part.pairs, hash_integers(self.seed, passes, number + 1))
            first += part.per_epoch
        return rows


def shuffle(indices: Ints, size: int, key: Words) -> Ints:
    """Apply a pseudo-random permutation of 0 ... size-1, selected by `key`, to each index.

    The permutation is a Feistel network over the next power of four; results of `size` or more are permuted again until
    they are smaller (cycle walking). There is one key for all indices or one for each.
    """
    half_bits = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    key = np.broadcast_to(key, indices.shape)
    shuffled = _feistel(indices.astype(np.uint64), half_bits, key)
    while (outside := np.flatnonzero(shuffled >= size)).size:
        shuffled[outside] = _feistel(shuffled[outside], half_bits, key[outside])
    return shuffled.astype(np.int64)


def _feistel(x: Words, half_bits: np.uint64, key: Words) -> Words:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = x >> half_bits, x & mask
    for number in range(FEISTEL_ROUNDS):
        left, right = right, left ^ (_splitmix64(right ^ _splitmix64(key + np.uint64(number))) & mask)
    return (left << half_bits) | right


def hash_integers(*numbers: int | Ints) -> Words:
    """Return a pseudo-random number of 64 bits for each tuple of integers; arrays are broadcast."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _splitmix64(key ^ np.asarray(number).astype(np.uint64))
    return key


def _splitmix64(x: Words) -> Words:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def prefetch_iterator(iterator: Iterator[Item], ahead: int) -> Generator[Item, None, None]:
    """Yield the items of an iterator that a background thread advances, at most `ahead` items in advance."""
    end = object()
    futures: deque[Future[object]] = deque()
    with ThreadPoolExecutor(1) as pool:
        try:
            while True:
                while len(futures) <= ahead:
                    futures.append(pool.submit(next, iterator, end))
                item = futures.popleft().result()
                if item is end:
                    return
                yield cast(Item, item)
        finally:
            for future in futures:
                future.cancel()
