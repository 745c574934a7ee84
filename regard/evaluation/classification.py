"""How good a classifier is: accuracy with its doubt, every class by itself, what is taken for what, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
BINS = 15


@dataclass(frozen=True)
class ClassScore:
    """One class against all others, in percent; NaN where there is nothing to take a share of."""

    name: str
    images: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Calibration:
    """How sure the model was and how often it was right, bin by bin from 0 to 1; a bin without images has zeros."""

    error: float
    """The expected calibration error, in percent: how far the two are apart, averaged over all images."""
    images: Ints
    confidence: Floats
    accuracy: Floats


@dataclass(frozen=True)
class Scores:
    """Everything that follows from probabilities (N, classes) and labels (N,)."""

    classes: tuple[str, ...]
    images: int
    accuracy: float
    interval: tuple[float, float]
    """Of the accuracy, in percent: where it lies with 95 % confidence."""
    top5: float | None
    loss: float
    confusion: Ints
    """(classes, classes): row, the true class; column, what the model said."""
    calibration: Calibration

    @property
    def by_class(self) -> list[ClassScore]:
        """Precision, recall and F1 of every class."""
        hits, said, true = self.confusion.diagonal(), self.confusion.sum(0), self.confusion.sum(1)
        return [
            ClassScore(
                name,
                int(true[i]),
                _percent(int(hits[i]), int(said[i])),
                _percent(int(hits[i]), int(true[i])),
                _percent(2 * int(hits[i]), int(said[i] + true[i])),
            )
            for i, name in enumerate(self.classes)
        ]

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that there are images of."""
        return float(np.mean([score.f1 for score in self.by_class if score.images]))

    def mistakes(self, most: int = 5) -> list[tuple[str, str, int]]:
        """The commonest ones: true class, what it was taken for, how often."""
        wrong = self.confusion - np.diag(self.confusion.diagonal())
        places = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [divmod(int(place), len(self.classes)) for place in places]
        return [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def score(probabilities: Floats, labels: Ints, classes: tuple[str, ...]) -> Scores:
    """Scores a model by what it said of images whose classes are known; there must be at least one."""
    said = probabilities.argmax(1)
    right = said == labels
    own = probabilities[np.arange(len(labels)), labels]
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels, said), 1)
    better = (probabilities > own[:, None]).sum(1)
    return Scores(
        classes,
        len(labels),
        100 * float(right.mean()),
        wilson(int(right.sum()), len(labels)),
        100 * float((better < 5).mean()) if len(classes) > 5 else None,
        float(-np.log(np.maximum(own, 1e-12)).mean()),
        confusion,
        calibrate(probabilities.max(1), right),
    )


def calibrate(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Sets how sure the model was against how often it was right, in bins of equal width."""
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    number = np.bincount(place, minlength=bins)
    sure = np.bincount(place, confidence, bins) / np.maximum(number, 1)
    hits = np.bincount(place, right, bins) / np.maximum(number, 1)
    error = float((number * np.abs(sure - hits)).sum() / max(1, len(confidence)))
    return Calibration(100 * error, number, sure, hits)


def wilson(hits: int, number: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval of a share, in percent, at 95 % confidence."""
    share = hits / number
    centre = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number**2))
    whole = 1 + z * z / number
    return 100 * max(0.0, (centre - spread) / whole), 100 * min(1.0, (centre + spread) / whole)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else math.nan
