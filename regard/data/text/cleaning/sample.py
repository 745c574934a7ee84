"""A sample of pairs of bounded size, taken evenly from a stream of unknown length."""

from collections.abc import Iterator, Sequence

import numpy as np

from regard.data.text.cleaning.fingerprints import Fingerprints
from regard.data.text.readers import Pair

MAX_SAMPLE_CHARACTERS = 2**24


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
