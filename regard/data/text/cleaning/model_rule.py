"""A rule that scores pairs by trained models, which are passed as a function."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.sample import Sample
from regard.data.text.cleaning.settings import ModelCleaningSettings
from regard.data.text.readers import Pair

CALIBRATION_PAIRS = 300
Floats = npt.NDArray[np.float64]
PairScore = Callable[[Sequence[Pair]], Floats]
"""Returns a cross-entropy in nats per token for each pair, lower for better pairs; NaN for those it cannot read."""


class ModelRule:
    """Removes pairs that the models consider improbable.

    Cross-entropies depend on the models and their vocabularies. They are calibrated like the scores of the lexicon: 0
    is the median of pairs with exchanged targets, 1 is the median of the sample. With `max_cross_entropy`, the values
    themselves are compared.

    Args:
        score: Cross-entropies of pairs.
        sample: Pairs of the corpus.
        settings: Thresholds.

    Attributes:
        note: What was learned, or why the rule is not applied.
    """

    def __init__(self, score: PairScore, sample: Sample, settings: ModelCleaningSettings) -> None:
        self._score, self._settings = score, settings
        pairs = next(sample.parts(CALIBRATION_PAIRS), [])
        self.random = self.usual = np.nan
        if len(pairs) > 1:
            targets = [pair.target for pair in [*pairs[1:], pairs[0]]]
            shuffled = [Pair(pair.source, target) for pair, target in zip(pairs, targets, strict=True)]
            self.random, self.usual = (float(np.nanmedian(score(texts))) for texts in (shuffled, pairs))
        self.note = (
            f"Cross-entropy of the model: {self.usual:.2f} nats per token for typical pairs, {self.random:.2f} for "
            "random ones."
        )
        self.applied = settings.max_cross_entropy is not None or self.random > self.usual
        if not self.applied:
            self.note += " The rule model is not applied, because the model does not distinguish them."

    def check(self, pairs: Sequence[Pair]) -> tuple[npt.NDArray[np.bool_], Floats]:
        """Return which pairs break the rule, and their values."""
        entropies = self._score(pairs)
        with np.errstate(invalid="ignore"):
            if self._settings.max_cross_entropy is not None:
                return entropies > self._settings.max_cross_entropy, entropies
            values: Floats = (self.random - entropies) / (self.random - self.usual)
            return values < self._settings.model, values
