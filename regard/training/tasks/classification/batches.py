"""Batches of augmented images: which images make one, and what becomes of them on the device.

Where all images fit, they lie on the device as bytes, and a batch is gathered, changed and mixed there; nothing of a
step waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby, islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.augmentation import Augmentation, Normalisation
from regard.data.images.datasets import ImageDataset, TensorImages, prefetch_batches
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.training.state import DataShard, Position, Positioned
from regard.training.tasks.classification.recipe import ClassificationRecipe

TOGETHER, BYTES = 1024, 2**23
"""So many images, and bytes of them, a GPU is given at once where batches are smaller: it is told to do hundreds of
small things to them, and to tell it takes as long for a few images as for many."""


@dataclass(frozen=True)
class ImageBatch:
    """Images as the model takes them, (B, channels, size, size), and the share of each class in them, (B, classes)."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def split(self, *sizes: int) -> list[ImageBatch]:
        """Its images in several batches."""
        parts = zip(torch.split(self.images, list(sizes)), torch.split(self.targets, list(sizes)), strict=True)
        return [ImageBatch(images, targets) for images, targets in parts]


@dataclass(frozen=True)
class Plan:
    """Which images make a batch, the numbers from which all chance in it is drawn, and the stage that the run is in."""

    rows: Tensor
    seed: tuple[int, ...]
    stage: int = 0


class ImageBatches:
    """The batches of a run, without end; an epoch's last images, too few for one, are left out, other ones each time.

    Args:
        pictures: from which they are made; where they lie on the device, so do the batches from the beginning.
        preprocessing: how the model sees images.
        recipe: says how many make a batch, and how they are changed.
        device: where batches are made.
    """

    def __init__(
        self,
        pictures: ImageDataset,
        preprocessing: ImagePreprocessing,
        recipe: ClassificationRecipe,
        device: torch.device,
    ) -> None:
        self.pictures, self.recipe, self.device = pictures, recipe, device
        self.labels, self.classes = pictures.labels.to(device), len(preprocessing.classes)
        normalisation, whole = (
            Normalisation(preprocessing.mean, preprocessing.std),
            recipe.training.steps * recipe.optim.accumulate,
        )
        stages = recipe.augmentation.stages
        self.begins = [round(share * whole) for share, _ in stages]
        self.stages = [Augmentation(how, preprocessing.size, normalisation) for _, how in stages]
        self.size = min(recipe.batch.images, len(pictures))
        bytes_each = int(np.prod(pictures.shape))
        at_once = min(TOGETHER, BYTES // bytes_each) // self.size if device.type == "cuda" else 1
        self.at_once = max(1, at_once)

    def begin(self, position: Position, share: DataShard) -> Iterator[Positioned[ImageBatch]]:
        """This process's batches from a position on."""
        groups = self.group(share.pick(self.plan(position)))
        taken = self._take(groups) if isinstance(self.pictures, TensorImages) else self._take_ahead(groups)
        for group, pixels in taken:
            batches = self.make([placed.batch for placed in group], pixels)
            for placed, batch in zip(group, batches, strict=True):
                yield Positioned(batch, placed.after)

    def plan(self, position: Position) -> Iterator[Positioned[Plan]]:
        """Which images make the batches of all processes."""
        seed, used, each = self.recipe.training.seed, position.batch, len(self.pictures) // self.size
        for epoch in count(position.epoch):
            order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.pictures)))
            if isinstance(self.pictures, TensorImages):  # once an epoch, so that no batch has to wait for its own
                order = order.to(self.pictures.pixels.device)
            for number in range(used, each):
                rows = order[number * self.size : (number + 1) * self.size]
                stage = max(i for i, begin in enumerate(self.begins) if epoch * each + number >= begin)
                yield Positioned(Plan(rows, (seed, epoch, number), stage), Position(epoch, number + 1))
            used = 0

    def group(self, planned: Iterator[Positioned[Plan]]) -> Iterator[list[Positioned[Plan]]]:
        """Batches to be made at once: so many that it is worth while, and all of them changed in the same way."""
        for _, alike in groupby(planned, lambda placed: placed.batch.stage):
            while group := list(islice(alike, self.at_once)):
                yield group

    def make(self, plans: Sequence[Plan], pixels: Tensor) -> list[ImageBatch]:
        """The batches of plans that are alike, from their images as they are, one batch behind the other."""
        augmentation, smoothing = self.stages[plans[0].stage], self.recipe.optim.label_smoothing
        chances = [_draw_from(plan.seed) for plan in plans]
        images = augmentation(pixels.to(self.device, non_blocking=True), *chances)
        labels = self.labels[_rows(plans).to(self.device, non_blocking=True)]
        if augmentation.settings.mixes:
            images, targets = augmentation.mix(images, labels, self.classes, *chances)
        else:
            targets = F.one_hot(labels, self.classes).to(images)
        made = ImageBatch(images, targets * (1 - smoothing) + smoothing / self.classes)
        return made.split(*(len(plan.rows) for plan in plans))

    def first(self) -> ImageBatch:
        """The first images: every batch has as many."""
        rows = torch.arange(self.size)
        (batch,) = self.make([Plan(rows, (self.recipe.training.seed,))], self.pictures.take(rows))
        return batch

    def _take(self, groups: Iterator[list[Positioned[Plan]]]) -> Iterator[tuple[list[Positioned[Plan]], Tensor]]:
        return ((group, self.pictures.take(_rows([placed.batch for placed in group]))) for group in groups)

    def _take_ahead(self, groups: Iterator[list[Positioned[Plan]]]) -> Iterator[tuple[list[Positioned[Plan]], Tensor]]:
        """Images that are decoded in the background."""
        waiting: list[list[Positioned[Plan]]] = []

        def rows() -> Iterator[Tensor]:
            for group in groups:
                waiting.append(group)
                yield _rows([placed.batch for placed in group])

        for pixels in prefetch_batches(self.pictures, rows()):
            yield waiting.pop(0), pixels


def _rows(plans: Sequence[Plan]) -> Tensor:
    return plans[0].rows if len(plans) == 1 else torch.cat([plan.rows for plan in plans])


def _draw_from(numbers: tuple[int, ...]) -> torch.Generator:
    """On the CPU, so that nothing that it decides is waited for."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator().manual_seed(seed)
