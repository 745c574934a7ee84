"""Models of images timed from pixels to probabilities, beside other programs with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.images.decoding import Pixels
from regard.errors import UserError
from regard.evaluation.bench.comparison import SIZES, Race, naming
from regard.evaluation.bench.speed import Result, share_of_same, split_options
from regard.evaluation.bench.timing import measure_speed
from regard.interop.huggingface_vision import build_huggingface_images
from regard.pipelines.classifier import Classifier

TIMED = "from pixels of the model's size, in memory, to probabilities"


@dataclass(frozen=True)
class ImageContender:
    """A model of images, and who computes with its weights."""

    name: str
    classifier: Classifier
    predict: Callable[[Sequence[Pixels]], NDArray[np.float32]]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.classifier.model.parameters())

    def classes(self, images: Sequence[Pixels]) -> list[str]:
        """What is likeliest on each image."""
        return [self.classifier.classes[place] for place in self.predict(images).argmax(1)]

    def at_work(self, noise: Sequence[Pixels]) -> Callable[[Sequence[int]], object]:
        """The work that is timed: on those of the images that have these numbers."""
        return lambda numbers: self.predict([noise[number] for number in numbers])


def race_images(runs: Sequence[str], wanted: Race) -> Race:
    """Times the classifiers of runs, and the first of them in other programs, on images of noise.

    Raises:
        UserError: a model or a peer cannot be had.
    """
    contenders = [_open(run, wanted.device) for run in runs]
    for peer in wanted.peers:
        with naming(peer):
            contenders.append(_open_peer(peer, contenders[0]))
    sizes = sorted(set(wanted.sizes or SIZES))
    noise = [draw_noise(max(sizes), contender.classifier) for contender in contenders]
    at_work = [contender.at_work(images) for contender, images in zip(contenders, noise, strict=True)]
    by_size = [measure_speed(at_work, range(max(sizes)), size, wanted.seconds, "images") for size in sizes]
    results: list[Result] = []
    first = contenders[0].classes(noise[0])
    for contender, images, timings in zip(contenders, noise, zip(*by_size, strict=True), strict=True):
        same = share_of_same(contender.classes(images), first) if wanted.peers else None
        results.append(Result(contender.name, {}, contender.parameters, list(timings), None, same, "images"))
    on = f"{max(sizes)} images of noise"
    return replace(wanted, sizes=tuple(sizes), results=results, timed=TIMED, on=on)


def draw_noise(number: int, classifier: Classifier) -> list[Pixels]:
    """Images as a model sees them, always the same."""
    size, channels = classifier.preprocessing.size, classifier.preprocessing.channels
    return list(np.random.default_rng(0).integers(0, 256, (number, size, size, channels), np.uint8))


def _open(run: str, device: torch.device) -> ImageContender:
    path, settings = split_options(run)
    if settings:
        raise UserError(f"{run}: a model of images does not search, so it takes no settings; give {path}")
    classifier = Classifier.load(path, device)
    return ImageContender(run, classifier, classifier.predict)


def _open_peer(peer: str, first: ImageContender) -> ImageContender:
    if peer != "huggingface":
        raise UserError("has no models of images; huggingface has")
    classifier = first.classifier
    theirs = build_huggingface_images(classifier).to(classifier.device)

    @torch.inference_mode()
    def predict(images: Sequence[Pixels]) -> NDArray[np.float32]:
        logits = theirs(classifier.preprocessing.normalise(images, classifier.device)).logits
        probabilities: NDArray[np.float32] = logits.float().softmax(1).cpu().numpy()
        return probabilities

    return ImageContender(f"{first.name} in transformers", classifier, predict)
