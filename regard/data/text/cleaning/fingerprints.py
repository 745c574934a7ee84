"""Sets and maps of 64-bit fingerprints in numpy arrays, 12 to 27 bytes for each, and a sample of bounded size."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from regard.data.text.readers import Pair

Fingerprints = npt.NDArray[np.uint64]
FIRST_SLOTS = 2**12
MAX_LOAD = 0.6
"""Share of the slots in use, above which their number is doubled."""
MAX_SAMPLE_CHARACTERS = 2**24


class FingerprintSet:
    """A set of 64-bit fingerprints other than 0: a hash table with linear probing, for many keys at once."""

    def __init__(self) -> None:
        self.slots = np.zeros(FIRST_SLOTS, np.uint64)
        self.size = 0

    def add(self, keys: Fingerprints) -> npt.NDArray[np.bool_]:
        """Add keys; return for each of them whether it was new, which of equal keys only the first is."""
        new = np.zeros(len(keys), np.bool_)
        distinct, first = np.unique(keys, return_index=True)
        while self.size + len(distinct) > MAX_LOAD * len(self.slots):
            self._grow()
        new[first] = self._insert(distinct)
        self.size += int(np.count_nonzero(new))
        return new

    def contains(self, keys: Fingerprints) -> npt.NDArray[np.bool_]:
        """Return which keys are in the set."""
        return find_slots(self.slots, keys) >= 0

    def _insert(self, keys: Fingerprints) -> npt.NDArray[np.bool_]:
        """Insert distinct keys, for which there is space; return which of them were new."""
        mask = len(self.slots) - 1
        new = np.zeros(len(keys), np.bool_)
        rest, at = np.arange(len(keys)), _home(keys, mask)
        while len(rest):
            found = self.slots[at]
            free = found == 0
            self.slots[at[free]] = keys[rest[free]]  # of several keys for one slot, one stays
            placed = free & (self.slots[at] == keys[rest])
            new[rest[placed]] = True
            moving = ~(placed | (found == keys[rest]))
            rest, at = rest[moving], (at[moving] + 1) & mask
        return new

    def _grow(self) -> None:
        before = self.slots
        self.slots = np.zeros(2 * len(before), np.uint64)
        for start in range(0, len(before), 2**20):
            part = before[start : start + 2**20]
            self._insert(part[part != 0])


class FingerprintMap:
    """A map from distinct fingerprints other than 0 to numbers; `default` for other fingerprints."""

    def __init__(self, keys: Fingerprints, values: npt.NDArray[np.float32], default: float = 0.0) -> None:
        owner = FingerprintSet()
        for start in range(0, len(keys), 2**20):
            owner.add(keys[start : start + 2**20])
        self.slots = owner.slots
        self.values = np.full(len(self.slots) + 1, default, np.float32)  # the last one is for keys that are not found
        self.values[find_slots(self.slots, keys)] = values

    def get(self, keys: Fingerprints) -> npt.NDArray[np.float32]:
        """Return the value of each key."""
        return self.values[find_slots(self.slots, keys)]


def find_slots(slots: Fingerprints, keys: Fingerprints) -> npt.NDArray[np.int64]:
    """Return the slot of each key, -1 for those that are not there."""
    mask = len(slots) - 1
    at = _home(keys, mask)
    found = slots[at]
    result = np.where(found == keys, at, -1)
    rest = np.flatnonzero((found != keys) & (found != 0))
    at = at[rest]
    while len(rest):
        at = (at + 1) & mask
        found = slots[at]
        matches = found == keys[rest]
        result[rest[matches]] = at[matches]
        moving = ~matches & (found != 0)
        rest, at = rest[moving], at[moving]
    return result


def _home(keys: Fingerprints, mask: int) -> npt.NDArray[np.int64]:
    return (keys & np.uint64(mask)).astype(np.int64)


class Sample:
    """The pairs with the smallest fingerprints, which depend only on the set of pairs and not on their order."""

    def __init__(self, limit: int = MAX_SAMPLE_CHARACTERS) -> None:
        self.limit, self.characters = limit, 0
        self._pairs: list[tuple[int, Pair]] = []
        self._largest = 2**64 - 1

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, pairs: Sequence[Pair], fingerprints: Fingerprints) -> None:
        """Add different pairs; if the sample becomes too large, about half of it is dropped."""
        for index in np.flatnonzero(fingerprints <= np.uint64(self._largest)).tolist():
            self._pairs.append((int(fingerprints[index]), pairs[index]))
            self.characters += len(pairs[index].source) + len(pairs[index].target)
        while self.characters > self.limit and self._largest:
            self._largest //= 2
            self._pairs = [(fingerprint, pair) for fingerprint, pair in self._pairs if fingerprint <= self._largest]
            self.characters = sum(len(pair.source) + len(pair.target) for _, pair in self._pairs)

    def parts(self, size: int) -> Iterator[list[Pair]]:
        """Yield the pairs in parts."""
        for start in range(0, len(self._pairs), size):
            yield [pair for _, pair in self._pairs[start : start + size]]
