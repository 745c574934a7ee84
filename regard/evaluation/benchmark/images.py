"""Speed of image classifiers, from pixels to probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.images.preprocessing import Pixels
from regard.errors import UserError
from regard.evaluation.benchmark.harness import (
    BATCH_SIZES,
    Result,
    SpeedReport,
    measure_speed,
    share_of_same,
    split_options,
)
from regard.pipelines.classifier import Classifier

TIMED = "from resized pixels in memory to probabilities"


@dataclass(frozen=True)
class ImageSystem:
    """A classifier, and the function that computes its probabilities."""

    name: str
    classifier: Classifier
    predict: Callable[[Sequence[Pixels]], NDArray[np.float32]]

    @classmethod
    def open(cls, run: str, device: torch.device) -> Self:
        """Load the classifier of a run."""
        path, settings = split_options(run)
        if settings:
            raise UserError(f"{run}: an image model has no search settings; give {path}")
        classifier = Classifier.load(path, device)
        return cls(run, classifier, classifier.predict)

    @classmethod
    def in_transformers(cls, system: "ImageSystem", model: Any) -> Self:
        """Return a system that runs `model`, a model of transformers with the weights of `system`."""
        classifier = system.classifier
        model = model.to(classifier.device)

        @torch.inference_mode()
        def predict(images: Sequence[Pixels]) -> NDArray[np.float32]:
            logits = model(classifier.preprocessing.normalise(images, classifier.device)).logits
            probabilities: NDArray[np.float32] = logits.float().softmax(1).cpu().numpy()
            return probabilities

        return cls(f"{system.name} in transformers", classifier, predict)

    def best_classes(self, images: Sequence[Pixels]) -> list[str]:
        """Return the most likely class of each image."""
        return [self.classifier.classes[index] for index in self.predict(images).argmax(1)]


def benchmark_classifiers(
    systems: Sequence[ImageSystem], batch_sizes: Sequence[int], seconds: float, compare: bool = False
) -> SpeedReport:
    """Time classifiers on random images; with `compare`, also report how often they agree with the first one."""
    sizes = sorted(set(batch_sizes or BATCH_SIZES))
    images = [random_images(max(sizes), system.classifier) for system in systems]
    functions = [_predict_by_index(system, own) for system, own in zip(systems, images, strict=True)]
    by_size = [measure_speed(functions, range(max(sizes)), size, seconds, "images") for size in sizes]
    first = systems[0].best_classes(images[0])
    results = []
    for system, own, timings in zip(systems, images, zip(*by_size, strict=True), strict=True):
        same = share_of_same(system.best_classes(own), first) if compare else None
        parameters = sum(parameter.numel() for parameter in system.classifier.model.parameters())
        results.append(Result(system.name, {}, parameters, list(timings), None, same, "images"))
    return SpeedReport(results, TIMED, f"{max(sizes)} random images", seconds)


def random_images(number: int, classifier: Classifier) -> list[Pixels]:
    """Return random images of the classifier's input size, always the same."""
    size, channels = classifier.preprocessing.size, classifier.preprocessing.channels
    return list(np.random.default_rng(0).integers(0, 256, (number, size, size, channels), np.uint8))


def _predict_by_index(system: ImageSystem, images: Sequence[Pixels]) -> Callable[[Sequence[int]], object]:
    """Systems have different input sizes, so batches are given as indices of their own images."""
    return lambda indices: system.predict([images[index] for index in indices])
