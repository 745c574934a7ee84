"""Translation probabilities of words, learned from the corpus itself, by which misaligned pairs are found.

IBM Model 1 (Brown et al., 1993) with a fixed share of words that have no counterpart is estimated in both directions on
a sample of the pairs. A pair is scored by how much better its words are predicted by the words of the other side than
by their frequencies: log p(t | S) / p(t), averaged over the words of both sides. The words of a translation explain one
another; those of a misaligned pair do not. Links of two words that occur together in a single pair are ignored, because
a misaligned pair would explain its own rare words.

Scores are made comparable between corpora by two points: 0 is the median of random pairs, which are made by exchanging
the targets of the sample, and 1 is the median of the sample. Few words are weak evidence, so that the score of a pair
is averaged with `PRIOR_WORDS` words of score 1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.characters import mix
from regard.data.text.cleaning.fingerprints import FingerprintMap
from regard.data.text.cleaning.texts import Words, sums

UNLINKED = 0.1
"""Probability of a word without a counterpart. Its logarithm is the lowest score of a word."""
MAX_WORDS = 32
"""Distinct words of a side that are compared, which bounds the number of links of a pair; the most frequent are left
out of longer texts."""
MAX_VOCABULARY = 2**17
MAX_LINKS = 4_000_000
"""Links of the pairs that the model is estimated on, which bound its memory."""
ITERATIONS = 5
MIN_PROBABILITY = 0.003
"""Lower probabilities are dropped after the estimation."""
PRIOR_WORDS = 3
CALIBRATION_PAIRS = 10_000
MIN_PAIRS = 1_000
"""Pairs of a corpus that the estimation needs."""
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Side(NamedTuple):
    """The distinct known words of each text."""

    ids: Integers
    owners: Integers
    bounds: Integers


class Vocabulary:
    """The words that occur at least twice, by frequency."""

    def __init__(self, hashes: npt.NDArray[np.uint64]) -> None:
        words, counts = np.unique(hashes, return_counts=True)
        order = np.argsort(-counts, kind="stable")[: min(MAX_VOCABULARY, int(np.count_nonzero(counts > 1)))]
        self.frequencies = counts[order] / max(1, counts[order].sum())
        self._ids = FingerprintMap(words[order], np.arange(len(order), dtype=np.float32), default=-1)

    def select(self, words: Words) -> Side:
        """Return the distinct known words of each text, the `MAX_WORDS` rarest ones at most."""
        ids = self._ids.get(words.hashes).astype(np.int64)
        known = ids >= 0
        keys = np.sort(words.owners[known] * MAX_VOCABULARY + ids[known])
        keys = keys[np.diff(keys, prepend=-1) > 0]
        texts = np.arange(len(words.counts) + 1)
        ends = np.searchsorted(keys, (texts[:-1] + 1) * MAX_VOCABULARY)
        keys = keys[np.arange(len(keys)) >= ends[keys // MAX_VOCABULARY] - MAX_WORDS]
        owners = keys // MAX_VOCABULARY
        return Side(keys % MAX_VOCABULARY, owners, np.searchsorted(owners, texts))


def link(source: Side, target: Side) -> tuple[Integers, Integers]:
    """Return the source and the target word of every link: all combinations of the words of each pair."""
    numbers = np.diff(source.bounds)[target.owners]
    targets = np.repeat(np.arange(len(target.ids)), numbers)
    first = np.cumsum(numbers) - numbers
    sources = np.arange(len(targets)) - np.repeat(first - source.bounds[target.owners], numbers)
    return sources, targets


class Lexicon:
    """Translation probabilities in both directions, estimated on pairs.

    Args:
        source, target: Words of the pairs, side by side.

    Attributes:
        random, usual: Medians of the scores of random pairs and of the given ones.
        separated: Whether nine tenths of the pairs score higher than nine tenths of random pairs, among those that the
            estimation has not seen. If not, the corpus is too small or not parallel.
    """

    def __init__(self, source: Words, target: Words) -> None:
        self._vocabularies = Vocabulary(source.hashes), Vocabulary(target.hashes)
        order = np.random.default_rng(0).permutation(len(source.counts))
        held_out, rest = np.split(order, [min(CALIBRATION_PAIRS, len(order) // 10)])
        links = np.minimum(source.counts[rest], MAX_WORDS) * np.minimum(target.counts[rest], MAX_WORDS)
        learned = np.sort(rest[np.cumsum(links) <= MAX_LINKS])
        self._learn(source.select(learned), target.select(learned))
        given, shuffled = self._compare(source, target, order[:CALIBRATION_PAIRS])
        self.random, self.usual = _quantile(shuffled, 0.5), _quantile(given, 0.5)
        given, shuffled = self._compare(source, target, held_out)
        self.separated = _quantile(given, 0.1) > _quantile(shuffled, 0.9)

    def _compare(self, source: Words, target: Words, pairs: Integers) -> tuple[Floats, Floats]:
        """Return the scores of pairs, and of the same pairs with exchanged targets."""
        given = self.score(source.select(pairs), target.select(pairs))
        return given, self.score(source.select(pairs), target.select(np.roll(pairs, 1)))

    def _learn(self, source: Words, target: Words) -> None:
        sides = self._vocabularies[0].select(source), self._vocabularies[1].select(target)
        links = link(*sides)
        all_keys = sides[0].ids[links[0]] << 32 | sides[1].ids[links[1]]
        keys, counts = np.unique(all_keys, return_counts=True)
        keys = keys[counts > 1]
        parameters = np.minimum(np.searchsorted(keys, all_keys), max(0, len(keys) - 1))
        kept = keys[parameters] == all_keys if len(keys) else np.zeros(len(all_keys), np.bool_)
        del all_keys, counts
        parameters, links = parameters[kept].astype(np.int32), (links[0][kept], links[1][kept])
        maps = []
        for given, conditions in enumerate((keys >> 32, keys & (2**32 - 1))):
            frequencies = self._vocabularies[1 - given].frequencies
            values = _estimate(parameters, conditions, sides[1 - given], links[1 - given], sides[given], frequencies)
            useful = values > MIN_PROBABILITY
            maps.append(FingerprintMap(mix(keys[useful].astype(np.uint64)), values[useful].astype(np.float32)))
        self._maps = maps

    def score(self, source: Words, target: Words) -> Floats:
        """Return the score of each pair before calibration; NaN if one of its sides has no known word."""
        sides = self._vocabularies[0].select(source), self._vocabularies[1].select(target)
        links = link(*sides)
        keys = mix((sides[0].ids[links[0]] << 32 | sides[1].ids[links[1]]).astype(np.uint64))
        means = []
        for given in (0, 1):
            predicted, condition = sides[1 - given], sides[given]
            found = np.bincount(links[1 - given], self._maps[given].get(keys), len(predicted.ids))
            numbers = np.maximum(1, np.diff(condition.bounds))[predicted.owners]
            frequencies = self._vocabularies[1 - given].frequencies[predicted.ids]
            gains = np.log(UNLINKED + (1 - UNLINKED) * found / numbers / frequencies)
            with np.errstate(invalid="ignore"):
                means.append(sums(gains, predicted.bounds, np.float64) / np.diff(predicted.bounds))
        result: Floats = (means[0] + means[1]) / 2
        return result

    def calibrated(self, source: Words, target: Words) -> Floats:
        """Return the calibrated score of each pair; NaN if one of its sides has no known word."""
        scores = (self.score(source, target) - self.random) / (self.usual - self.random)
        words = np.minimum(source.counts, MAX_WORDS) + np.minimum(target.counts, MAX_WORDS)
        result: Floats = (words * scores + PRIOR_WORDS) / (words + PRIOR_WORDS)
        return result


def _quantile(scores: Floats, share: float) -> float:
    known = scores[~np.isnan(scores)]
    return float(np.quantile(known, share)) if len(known) else 0.0


def _estimate(
    parameters: npt.NDArray[np.int32],
    conditions: Integers,
    predicted: Side,
    words: Integers,
    given: Side,
    frequencies: Floats,
) -> Floats:
    """Return the probability of each parameter by expectation maximisation.

    Args:
        parameters: Parameter of each link.
        conditions: Given word of each parameter.
        predicted: Side that is predicted.
        words: Index of the predicted word of each link.
        given: Side that is given.
        frequencies: Relative frequency of every predicted word.
    """
    values = np.full(len(conditions), 1e-3)
    numbers = np.maximum(1, np.diff(given.bounds))[predicted.owners]
    unlinked = UNLINKED * frequencies[predicted.ids] * numbers / (1 - UNLINKED)
    for _ in range(ITERATIONS):
        linked = values[parameters]
        totals = np.bincount(words, linked, len(predicted.ids)) + unlinked
        counts = np.bincount(parameters, linked / totals[words], len(values))
        values = counts / np.maximum(1e-9, np.bincount(conditions, counts)[conditions])
    return values
