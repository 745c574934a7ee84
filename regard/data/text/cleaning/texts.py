"""What the rules need to know of many texts and pairs at once, computed from the array of all their characters."""

import unicodedata
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.characters import DIGIT, LETTER, SINGLE, mix, tables
from regard.data.text.cleaning.fingerprints import Fingerprints
from regard.data.text.cleaning.settings import MAX_CHARACTERS
from regard.data.text.readers import Pair

NGRAM_BITS = 18
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C55)
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.uint64, np.float64)


class Words(NamedTuple):
    """The words of all texts: a run of letters and digits, or one character of a script without spaces."""

    hashes: Fingerprints  # of the folded words
    owners: npt.NDArray[np.int64]  # text of each word, ascending
    counts: Counts  # words of each text

    @property
    def bounds(self) -> Counts:
        """Bounds of the words of each text."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @classmethod
    def concatenate(cls, parts: "Sequence[Words]") -> "Words":
        counts = np.concatenate([part.counts for part in parts])
        return cls(np.concatenate([part.hashes for part in parts]), np.repeat(np.arange(len(counts)), counts), counts)

    def select(self, texts: Counts) -> "Words":
        """Return the words of some of the texts, in the given order."""
        counts = self.counts[texts]
        owners = np.repeat(np.arange(len(texts)), counts)
        places = np.arange(len(owners)) + np.repeat(self.bounds[texts] - (np.cumsum(counts) - counts), counts)
        return Words(self.hashes[places], owners, counts)


class Texts:
    """The characters of several texts, and what follows from them.

    Args:
        texts: Texts; only their first `MAX_CHARACTERS` characters are analysed.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        if self.lengths.max(initial=0) > MAX_CHARACTERS:
            texts = [text[:MAX_CHARACTERS] for text in texts]
        joined = "".join(texts)
        if not unicodedata.is_normalized("NFC", joined):
            texts = [unicodedata.normalize("NFC", text) for text in texts]
            joined = "".join(texts)
        self.codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        self.bounds = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=self.bounds[1:])
        self.flags = tables().flags[self.codes]

    def __len__(self) -> int:
        return len(self.lengths)

    def count(self, characters: Mask) -> Counts:
        """Return how many characters of each text are selected."""
        return self.total(characters.view(np.uint8))

    def count_class(self, flags: int) -> Counts:
        """Return how many characters of each text are of one of some classes."""
        return self.count((self.flags & flags) > 0)

    def total(self, values: npt.NDArray[Any]) -> Counts:
        """Return the sum over the characters of each text."""
        return sums(values, self.bounds, np.int64)

    def has(self, *flags: int) -> Mask:
        """Return which texts have a character of the first class, or in a row characters of several classes."""
        found = (self.flags & flags[0]) > 0
        for offset, flag in enumerate(flags[1:], start=1):
            found = found[:-1] & ((self.flags[offset:] & flag) > 0)
        result = np.zeros(len(self), np.bool_)
        places = np.flatnonzero(found)
        result[np.searchsorted(self.bounds, places, side="right") - 1] = True
        return result

    def has_code(self, code: int) -> Mask:
        """Return which texts contain a code point."""
        result = np.zeros(len(self), np.bool_)
        result[np.searchsorted(self.bounds, np.flatnonzero(self.codes == code), side="right") - 1] = True
        return result

    @cached_property
    def raw_hashes(self) -> Fingerprints:
        """Fingerprints of the texts as they are."""
        return self._hash(tables().random_raw[self.codes], self.bounds)

    @cached_property
    def _letters(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Places of the letters and digits, and the bounds of the texts in this list."""
        places = np.flatnonzero(self.flags & (LETTER | DIGIT))
        return places, np.searchsorted(places, self.bounds)

    @cached_property
    def folded_hashes(self) -> Fingerprints:
        """Fingerprints of the letters and digits without case and the values of digits; of the text if it has none."""
        places, bounds = self._letters
        hashes = self._hash(tables().random[self.codes[places]], bounds)
        bare = np.diff(bounds) == 0
        hashes[bare] = self.raw_hashes[bare]
        return hashes

    def _hash(self, values: Fingerprints, bounds: npt.NDArray[np.int64]) -> Fingerprints:
        positions = np.arange(len(values)) - np.repeat(bounds[:-1], np.diff(bounds))
        return mix(sums(values * powers()[positions], bounds, np.uint64) ^ np.diff(bounds).astype(np.uint64))

    @cached_property
    def words(self) -> Words:
        places, bounds = self._letters
        single = (self.flags[places] & SINGLE) > 0
        starts = single.copy()
        starts[1:] |= single[:-1] | (np.diff(places) > 1)
        starts[bounds[:-1][bounds[:-1] < len(places)]] = True
        first = np.flatnonzero(starts)
        word_bounds = np.append(first, len(places))
        hashes = self._hash(tables().random[self.codes[places]], word_bounds)
        counts = np.diff(np.searchsorted(first, bounds))
        return Words(hashes, np.repeat(np.arange(len(self)), counts), counts)

    @cached_property
    def ngrams(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Indices below 2**NGRAM_BITS of all trigrams of characters with a letter in the middle, and their bounds."""
        values = np.where(self.flags & LETTER, tables().random[self.codes], np.uint64(0))
        places = np.flatnonzero(self.flags & LETTER)
        edges = np.zeros(len(values) + 1, np.bool_)
        edges[self.bounds] = True  # of texts, which have no neighbours
        before = np.where(edges[places], np.uint64(0), values[places - 1])
        after = np.where(edges[places + 1], np.uint64(0), np.append(values, np.uint64(0))[places + 1])
        hashed = before + (values[places] + after * _MULTIPLIER) * _MULTIPLIER
        indices = (mix(hashed) >> np.uint64(64 - NGRAM_BITS)).astype(np.int32)
        return indices, np.searchsorted(places, self.bounds)


class Pairs:
    """Some consecutive pairs, with the strings and the characters of both sides."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.strings = [pair.source for pair in pairs], [pair.target for pair in pairs]
        self.texts = Texts(self.strings[0]), Texts(self.strings[1])

    def raw_hashes(self) -> Fingerprints:
        """Fingerprints of the pairs as they are."""
        return _combine(*(texts.raw_hashes for texts in self.texts))

    def folded_hashes(self) -> Fingerprints:
        """Fingerprints of the pairs without case, punctuation, spaces and the values of digits."""
        return _combine(*(texts.folded_hashes for texts in self.texts))


def _combine(first: Fingerprints, second: Fingerprints) -> Fingerprints:
    """Return a fingerprint of two fingerprints in this order."""
    return mix(first * np.uint64(3) ^ second)


def either(masks: Sequence[Mask]) -> Mask:
    """Return where one of two masks is true."""
    return masks[0] | masks[1]


def sums(values: npt.NDArray[Any], bounds: npt.NDArray[np.int64], dtype: type[Number]) -> npt.NDArray[Number]:
    """Return the sum of each segment; unsigned numbers wrap around."""
    cumulative = np.zeros(len(values) + 1, dtype)
    np.cumsum(values, out=cumulative[1:], dtype=dtype)
    return np.subtract(cumulative[bounds[1:]], cumulative[bounds[:-1]])


@cache
def powers() -> Fingerprints:
    """Powers of an odd number, which weight the characters of a hash by their positions."""
    result = np.full(4 * MAX_CHARACTERS, _MULTIPLIER, np.uint64)
    result[0] = 1
    return np.multiply.accumulate(result)
