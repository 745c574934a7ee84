"""Recognise texts in another language by what is usual on their side of the corpus.

The frequencies of character trigrams are learned for both sides. A text whose trigrams are more usual on the other
side is in the language of the other side. A text whose trigrams are much rarer than usual is foreign if py3langid
confirms it or, without py3langid, if they are rarer still.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.texts import NGRAM_BITS, Texts, sums
from regard.data.text.languages import ExpectedLanguage
from regard.errors import UserError

SMOOTHING = 0.01
SUSPICIOUS = 1.5
"""Standard deviations from which py3langid is asked."""
MAX_PROBABILITY = 0.01
"""A text is foreign if py3langid gives its language less than this."""
SEPARATION = 3.5
"""Standard deviations between the usual texts of a side and those of the other side that the comparison needs."""
MAX_TRIGRAMS = 160
"""The mean of more trigrams does not become more certain, because the topic of a text influences all of them."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution with a median absolute deviation of 1."""
Floats = npt.NDArray[np.float64]


class Trigrams:
    """Frequencies of the character trigrams of a side, by hash."""

    def __init__(self) -> None:
        self._counts = np.zeros(2**NGRAM_BITS)
        self._table = np.zeros(2**NGRAM_BITS, np.float32)

    def add(self, texts: Texts) -> None:
        self._counts += np.bincount(texts.ngrams[0], minlength=2**NGRAM_BITS)
        total = self._counts.sum() + SMOOTHING * 2**NGRAM_BITS
        self._table = np.log((self._counts + SMOOTHING) / total).astype(np.float32)

    def score(self, texts: Texts) -> Floats:
        """Return the mean logarithm of the frequencies of the trigrams of each text; NaN if it has none."""
        indices, bounds = texts.ngrams
        with np.errstate(invalid="ignore"):
            result: Floats = sums(self._table[indices], bounds, np.float64) / np.diff(bounds)
        return result


class LanguageRule:
    """Finds texts in a foreign language or in that of the other side.

    Args:
        samples: Texts of both sides, in parts.
        codes: Language codes of both sides.
        threshold: Standard deviations without py3langid.
    """

    def __init__(self, samples: Sequence[tuple[Texts, Texts]], codes: tuple[str, str], threshold: float) -> None:
        self._threshold = threshold
        self._trigrams = Trigrams(), Trigrams()
        for sides in samples:
            for trigrams, texts in zip(self._trigrams, sides, strict=True):
                trigrams.add(texts)
        self._centres, self._spreads, self._limits = list[float](), list[float](), list[float]()
        for side in (0, 1):
            own = np.concatenate([self._trigrams[side].score(sides[side]) for sides in samples])
            other = np.concatenate([self._trigrams[1 - side].score(sides[side]) for sides in samples])
            numbers = np.concatenate([np.diff(sides[side].ngrams[1]) for sides in samples])
            centre = float(np.nanmedian(own))
            self._centres.append(centre)
            self._spreads.append(_spread((own - centre) * _certainty(numbers)))
            usual = float(np.nanmedian(other - own))
            self._limits.append(max(0.0, usual + SEPARATION * _spread(other - own - usual)))
        self.detectors = [load_detector(code) for code in codes]

    def deviations(self, texts: Texts, side: int) -> Floats:
        """Return by how many standard deviations the trigrams of each text are more frequent than usual."""
        certainty = _certainty(np.diff(texts.ngrams[1]))
        return (self._trigrams[side].score(texts) - self._centres[side]) * certainty / self._spreads[side]

    def exchanged(self, texts: Texts, side: int) -> npt.NDArray[np.bool_]:
        """Return which texts of a side are in the language of the other side."""
        difference = self._trigrams[1 - side].score(texts) - self._trigrams[side].score(texts)
        return difference > self._limits[side]

    def foreign(self, texts: Texts, strings: Sequence[str], side: int) -> npt.NDArray[np.bool_]:
        """Return which texts of a side are in a third language."""
        deviations, detector = self.deviations(texts, side), self.detectors[side]
        if detector is None:
            return deviations < -self._threshold
        result = deviations < -SUSPICIOUS
        for index in np.flatnonzero(result).tolist():
            result[index] = detector(strings[index])[0] < MAX_PROBABILITY
        return result


def load_detector(code: str) -> Callable[[str], tuple[float, str]] | None:
    """Return what gives the probability of a language and the most likely one; None without py3langid."""
    try:
        expected = ExpectedLanguage(code)
    except UserError:  # not installed
        return None
    return expected.probability if expected.known else None


def _certainty(numbers: npt.NDArray[np.int64]) -> Floats:
    return np.sqrt(np.clip(numbers, 1, MAX_TRIGRAMS))


def _spread(deviations: Floats) -> float:
    return max(1e-6, NORMAL * float(np.nanmedian(np.abs(deviations))))
