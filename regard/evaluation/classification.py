"""Scores of classifiers: accuracy with a confidence interval, scores by class, confusion matrix and calibration."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from regard.data.images.datasets import read_resized
from regard.data.images.image_sets import ImageSet, ImageSettings, Split, open_images
from regard.errors import UserError
from regard.pipelines.classifier import Classifier, open_batches

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
BINS = 15
LISTED = 20
"""Maximum number of classes in the text form of a report; JSON has all of them."""


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class against all others, in percent; NaN if undefined."""

    name: str
    images: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ConfidenceBins:
    """Confidence and accuracy in bins of confidence from 0 to 1; empty bins have zeros.

    Attributes:
        error: Expected calibration error (ECE) in percent: the mean distance of confidence and accuracy.
        images, confidence, accuracy: Number of images, mean confidence and accuracy of each bin.
    """

    error: float
    images: Ints
    confidence: Floats
    accuracy: Floats


@dataclass(frozen=True)
class Scores:
    """Scores of predicted probabilities.

    Attributes:
        accuracy, interval: Accuracy and its 95 % confidence interval, in percent.
        top5: Share of images whose class is among the five most likely, in percent; None for up to five classes.
        loss: Mean cross-entropy.
        confusion: Number of images by true class (row) and predicted class (column).
    """

    classes: tuple[str, ...]
    images: int
    accuracy: float
    interval: tuple[float, float]
    top5: float | None
    loss: float
    confusion: Ints
    calibration: ConfidenceBins

    @property
    def by_class(self) -> list[ClassScore]:
        """Precision, recall and F1 of every class."""
        hits, predicted, true = self.confusion.diagonal(), self.confusion.sum(0), self.confusion.sum(1)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            precision, recall, f1 = 100 * hits / predicted, 100 * hits / true, 200 * hits / (predicted + true)
        columns = (true.tolist(), precision.tolist(), recall.tolist(), f1.tolist())
        return [ClassScore(*row) for row in zip(self.classes, *columns, strict=True)]

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that have images."""
        return float(np.mean([score.f1 for score in self.by_class if score.images]))

    def mistakes(self, most: int = 5) -> list[tuple[str, str, int]]:
        """Return the most frequent mistakes: true class, predicted class, number of images."""
        wrong = self.confusion - np.diag(self.confusion.diagonal())
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        cells = [divmod(int(index), len(self.classes)) for index in order]
        return [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in cells if wrong[i, j]]


@dataclass(frozen=True)
class Report:
    """Scores of a classifier with their conditions, and an error for each unreadable image.

    `fingerprint` is a hash of the test set. `mirrored`: whether the probabilities of mirror images were averaged.
    """

    data: str
    fingerprint: str
    scores: Scores
    unreadable: list[str]
    date: str
    mirrored: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        scores, calibration = self.scores, self.scores.calibration
        columns = (calibration.images, calibration.confidence, calibration.accuracy)
        bins = zip(*(column.tolist() for column in columns), strict=True)
        conditions = {"data": self.data, "set": self.fingerprint, "images": scores.images}
        return {
            "conditions": conditions | ({"mirrored": True} if self.mirrored else {}),
            "date": self.date,
            "accuracy": scores.accuracy,
            "interval": list(scores.interval),
            "top5": scores.top5,
            "loss": scores.loss,
            "macro_f1": scores.macro_f1,
            "calibration_error": calibration.error,
            "calibration": [{"images": n, "confidence": sure, "accuracy": right} for n, sure, right in bins],
            "classes": [{key: _nan_to_none(value) for key, value in asdict(one).items()} for one in scores.by_class],
            "confusion": scores.confusion.tolist(),
            "unreadable": self.unreadable,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text form."""
        scores = self.scores
        low, high = scores.interval
        top5 = "" if scores.top5 is None else f"; top-5 accuracy {scores.top5:.2f} %"
        mirrored = ", averaged over mirror images" if self.mirrored else ""
        interval = f"(95 % confidence: {low:.2f} to {high:.2f})"
        yield f"accuracy {scores.accuracy:.2f} % of {scores.images:,} images{mirrored} {interval}{top5}"
        yield (
            f"loss {scores.loss:.3f}; macro F1 {scores.macro_f1:.2f}; "
            f"calibration error (ECE) {scores.calibration.error:.2f} %"
        )
        width = max(len(name) for name in ("class", *scores.classes))
        yield f"{'class':{width}}  images  precision  recall     F1"
        worst_first = sorted(scores.by_class, key=lambda one: (math.isnan(one.f1), one.f1))
        for one in worst_first[:LISTED]:
            yield f"{one.name:{width}}  {one.images:6}  {one.precision:9.2f}  {one.recall:6.2f}  {one.f1:5.2f}"
        if len(worst_first) > LISTED:
            yield f"and {len(worst_first) - LISTED} classes with higher F1; --json lists all of them"
        for true, predicted, number in scores.mistakes():
            yield f"{number} of class {true} were classified as {predicted}"


def open_test_set(path: Path, classifier: Classifier, split: str | None = None) -> ImageSet:
    """Open a split of an image set; by default test, else valid, else all images."""
    settings = ImageSettings(channels=classifier.preprocessing.channels)
    if split is not None and split not in get_args(Split):
        raise UserError(f"--split {split}: choose {', '.join(get_args(Split))}")
    candidates: list[Any] = [split] if split else ["test", "valid", None]
    for candidate in candidates[:-1]:
        with suppress(UserError):
            images = open_images(path, settings, candidate)
            break
    else:
        images = open_images(path, settings, candidates[-1])
    return images.with_classes(classifier.classes)


def evaluate(
    classifier: Classifier,
    images: ImageSet,
    name: str,
    on_progress: Callable[[int], object] | None = None,
    mirrored: bool = False,
) -> Report:
    """Score a classifier on images with its classes; unreadable images are reported and not counted.

    Args:
        on_progress: Called with the number of images after each batch.
        mirrored: Whether to average the probabilities of each image and its mirror image.
    """
    resize = classifier.preprocessing.resize
    probabilities: list[Any] = []
    indices: list[int] = []
    unreadable: list[str] = []
    for batch in open_batches(lambda index: read_resized(images, index, resize), range(len(images))):
        readable = [image for image in batch if not isinstance(image, UserError)]
        unreadable += [str(error) for error in batch if isinstance(error, UserError)]
        if readable:
            indices += [i for i, _ in readable]
            pixels = [one for _, one in readable]
            probabilities.append(classifier.predict(pixels))
            if mirrored:
                probabilities[-1] = (probabilities[-1] + classifier.predict(list(map(np.fliplr, pixels)))) / 2
        if on_progress is not None:
            on_progress(len(batch))
    if not probabilities:
        raise UserError(f"{name}: none of its {len(images)} images can be read, for example {unreadable[0]}")
    scores = score(np.concatenate(probabilities), images.labels[indices], classifier.classes)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(name, images.fingerprint(), scores, unreadable, date, mirrored)


def score(probabilities: Floats, labels: Ints, classes: tuple[str, ...]) -> Scores:
    """Score probabilities, (N, classes), against labels, (N,), with N > 0."""
    predicted = probabilities.argmax(1)
    correct = predicted == labels
    true_probability = probabilities[np.arange(len(labels)), labels]
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    rank = (probabilities > true_probability[:, None]).sum(1)
    return Scores(
        classes=classes,
        images=len(labels),
        accuracy=100 * float(correct.mean()),
        interval=wilson_interval(int(correct.sum()), len(labels)),
        top5=100 * float((rank < 5).mean()) if len(classes) > 5 else None,
        loss=float(-np.log(np.maximum(true_probability, 1e-12)).mean()),
        confusion=confusion,
        calibration=bin_by_confidence(probabilities.max(1), correct),
    )


def bin_by_confidence(confidence: Floats, correct: NDArray[np.bool_], bins: int = BINS) -> ConfidenceBins:
    """Compare confidence with accuracy in bins of equal width."""
    index = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    number = np.bincount(index, minlength=bins)
    mean_confidence = np.bincount(index, confidence, bins) / np.maximum(number, 1)
    accuracy = np.bincount(index, correct, bins) / np.maximum(number, 1)
    error = float((number * np.abs(mean_confidence - accuracy)).sum() / max(1, len(confidence)))
    return ConfidenceBins(100 * error, number, mean_confidence, accuracy)


def wilson_interval(hits: int, number: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a proportion, in percent."""
    share = hits / number
    centre = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number**2))
    normaliser = 1 + z * z / number
    return 100 * max(0.0, (centre - spread) / normaliser), 100 * min(1.0, (centre + spread) / normaliser)


def _nan_to_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
