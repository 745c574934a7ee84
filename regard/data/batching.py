"""The plan of a window of an epoch: which sentences share a batch, in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def plan_padded(source: Ints, target: Ints, tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of sentences of similar length: neither side has more than `tokens` places, padding included."""
    # The longer side counts, since both are padded; noise lets a sentence meet other company in every epoch.
    noise = rng.uniform(0, 1, size=(2, len(source)))
    order = np.lexsort((target + 2 * noise[0], np.floor(np.maximum(source, target) + noise[1])))
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        window = order[start : start + tokens]
        widest = np.maximum(np.maximum.accumulate(source[window]), np.maximum.accumulate(target[window]))
        fits = int(np.searchsorted(widest * np.arange(1, len(window) + 1), tokens, side="right"))
        batches.append(window[: max(1, fits)])
        start += max(1, fits)
    return [batches[i] for i in rng.permutation(len(batches))]


def plan_packed(
    source: Ints, target: Ints, tokens: int, rng: np.random.Generator, sentences: int | None = None
) -> list[Ints]:
    """Batches of sentences in random order, filled until either side would pass `tokens`, or there are `sentences`."""
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


Words = npt.NDArray[np.uint64]

WINDOW = 2**17
"""Sentences planned together. A plan holds a few numbers for each, so that this bounds its memory."""

ROUNDS = 6


@dataclass(frozen=True)
class Part:
    """A corpus within the training data: `pairs` rows from `start` on, `taken` of them in every epoch."""

    start: int
    pairs: int
    taken: int


@dataclass(frozen=True)
class EpochOrder:
    """Which rows an epoch shows, one after the other, by seed and epoch.

    A corpus is an endless stream of passes over it, each shuffled anew. An epoch takes the next stretch of every
    stream and mixes them, so that within a pass no row is dropped or repeated, whatever the weight.
    """

    seed: int
    parts: tuple[Part, ...]
    window: int = WINDOW

    @classmethod
    def of(cls, seed: int, sizes: Sequence[int], weights: Sequence[float], window: int = WINDOW) -> EpochOrder:
        """The order over corpora that lie one behind the other; a weight says how often an epoch shows a sentence."""
        starts = np.cumsum([0, *sizes]).tolist()
        taken = [max(1, round(size * weight)) for size, weight in zip(sizes, weights, strict=True)]
        return cls(seed, tuple(Part(*part) for part in zip(starts, sizes, taken, strict=False)), window)

    def __len__(self) -> int:
        """How many sentences an epoch shows."""
        return sum(part.taken for part in self.parts)

    @property
    def windows(self) -> int:
        """How many stretches of about the same length an epoch is planned in."""
        return -(-len(self) // self.window)

    def rows(self, epoch: int, window: int) -> Ints:
        """The rows of one window of an epoch, in their order."""
        start, end = (len(self) * edge // self.windows for edge in (window, window + 1))
        mixed = shuffle(np.arange(start, end), len(self), _key(self.seed, epoch))
        rows = np.empty_like(mixed)
        first = 0
        for number, part in enumerate(self.parts):
            ours = (first <= mixed) & (mixed < first + part.taken)
            passes, places = np.divmod(epoch * part.taken + mixed[ours] - first, part.pairs)
            rows[ours] = part.start + shuffle(places, part.pairs, _key(self.seed, passes, number + 1))
            first += part.taken
        return rows


def shuffle(places: Ints, size: int, key: Words) -> Ints:
    """Where a permutation of 0 … size-1 sends these places; `key`, one for all or one for each, chooses it."""
    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    key = np.broadcast_to(key, places.shape)
    images = _permute(places.astype(np.uint64), half, key)
    while (beyond := np.flatnonzero(images >= size)).size:
        images[beyond] = _permute(images[beyond], half, key[beyond])
    return images.astype(np.int64)


def _permute(x: Words, half: np.uint64, key: Words) -> Words:
    """A permutation of the numbers of 2 · half bits: what is done to one half depends on the other."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (_scramble(right ^ _scramble(key + np.uint64(number))) & mask)
    return (left << half) | right


def _key(*numbers: int | Ints) -> Words:
    """A key that depends on all of these numbers."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _scramble(key ^ np.asarray(number).astype(np.uint64))
    return key


def _scramble(x: Words) -> Words:
    """A word in which every bit depends on every bit of the given one: the finaliser of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, waiting: int) -> Iterator[Result]:
    """What `work` makes of each item, in order; no more than `waiting` results lie about unused."""
    with ThreadPoolExecutor(threads) as pool:
        futures: deque[Future[Result]] = deque()
        try:
            for item in items:
                futures.append(pool.submit(work, item))
                if len(futures) > waiting:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
