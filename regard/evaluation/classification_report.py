"""A classifier on a set of images with known classes: its scores, and under what conditions they came about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.batching import prefetch
from regard.data.images.datasets import read_resized
from regard.data.images.decoding import ImageError, Pixels
from regard.data.images.image_sets import ImageSet, ImageSettings, Split, open_images
from regard.errors import UserError
from regard.evaluation.classification import Scores, score
from regard.pipelines.classifier import BATCH, THREADS, Classifier

SHOWN = 20
"""Classes that are listed on a screen; JSON has them all."""


@dataclass(frozen=True)
class Report:
    """What came of it."""

    data: str
    fingerprint: str
    scores: Scores
    bad: list[str]
    """A sentence for each image that could not be read."""
    date: str
    mirrored: bool = False
    """Whether each image was seen both ways round."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        s = self.scores
        classes = [{key: _plain(value) for key, value in asdict(one).items()} for one in s.by_class]
        c = s.calibration
        bins = zip(c.images.tolist(), c.confidence.tolist(), c.accuracy.tolist(), strict=True)
        conditions = {"data": self.data, "set": self.fingerprint, "images": s.images}
        return {
            "conditions": conditions | ({"mirrored": True} if self.mirrored else {}),
            "date": self.date,
            "accuracy": s.accuracy,
            "interval": list(s.interval),
            "top5": s.top5,
            "loss": s.loss,
            "macro_f1": s.macro_f1,
            "calibration_error": c.error,
            "calibration": [{"images": n, "confidence": sure, "accuracy": right} for n, sure, right in bins],
            "classes": classes,
            "confusion": s.confusion.tolist(),
            "bad": self.bad,
        }

    def lines(self) -> Iterator[str]:
        """The scores for a person."""
        s = self.scores
        low, high = s.interval
        five = "" if s.top5 is None else f"; {s.top5:.2f} % among the first five"
        both = ", each seen both ways round" if self.mirrored else ""
        within = f"(95 % confidence: {low:.2f} to {high:.2f})"
        yield f"accuracy {s.accuracy:.2f} % of {s.images:,} images{both} {within}{five}"
        yield f"loss {s.loss:.3f}; macro F1 {s.macro_f1:.2f}; calibration error (ECE) {s.calibration.error:.2f} %"
        width = max(len(name) for name in ("class", *s.classes))
        yield f"{'class':{width}}  images  precision  recall     F1"
        worst_first = sorted(s.by_class, key=lambda one: (math.isnan(one.f1), one.f1))
        for one in worst_first[:SHOWN]:
            yield f"{one.name:{width}}  {one.images:6}  {one.precision:9.2f}  {one.recall:6.2f}  {one.f1:5.2f}"
        if len(worst_first) > SHOWN:
            yield f"and {len(worst_first) - SHOWN} classes that are better; --json lists them all"
        for true, said, number in s.mistakes():
            yield f"{number} times {true} was taken for {said}"


def open_test_set(path: Path, classifier: Classifier, split: str | None = None) -> ImageSet:
    """The images of a set to be judged: those of a split, by default test or else valid where there are any.

    Raises:
        UserError: there are none, or a class of theirs is none of the model's.
    """
    settings = ImageSettings(channels=classifier.preprocessing.channels)
    if split is not None and split not in ("train", "valid", "test"):
        raise UserError(f"--split {split}: choose train, valid or test")
    wanted: list[Split | None] = [split] if split else ["test", "valid", None]  # type: ignore[list-item]
    for place, one in enumerate(wanted):
        try:
            images = open_images(path, settings, one)
            break
        except UserError:
            if place + 1 == len(wanted):
                raise
    return images.with_classes(classifier.classes)


def evaluate(classifier: Classifier, images: ImageSet, name: str, watch: Any = None, mirrored: bool = False) -> Report:
    """Scores a classifier on images; those that cannot be read are named in the report and do not count.

    Args:
        classifier: what is scored.
        images: with classes of its.
        name: of the images, for the report.
        watch: is told how many have been seen since it was told before.
        mirrored: whether each image is seen as it is and mirrored, and the mean of both probabilities counts.

    Raises:
        UserError: not a single image can be read.
    """
    frame = classifier.preprocessing.resize

    def open_one(index: int) -> Pixels | ImageError:
        try:
            return read_resized(images, index, frame)
        except ImageError as error:
            return error

    rows: list[Any] = []
    kept: list[int] = []
    bad: list[str] = []
    opened = enumerate(prefetch(open_one, range(len(images)), threads=THREADS, ahead=2 * BATCH))
    while batch := list(islice(opened, BATCH)):
        good = [(i, pixels) for i, pixels in batch if not isinstance(pixels, ImageError)]
        bad += [str(error) for _, error in batch if isinstance(error, ImageError)]
        if good:
            kept += [i for i, _ in good]
            seen = [pixels for _, pixels in good]
            found = classifier.predict(seen)
            rows.append((found + classifier.predict(list(map(np.fliplr, seen)))) / 2 if mirrored else found)
        if watch is not None:
            watch(len(batch))
    if not rows:
        raise UserError(f"{name}: none of its {len(images)} images can be read, as in: {bad[0]}")
    scores = score(np.concatenate(rows), images.labels[kept], classifier.classes)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(name, images.fingerprint(), scores, bad, date, mirrored)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
