"""Batches of augmented images.

If all images fit, they are on the device as bytes, and a batch is gathered, augmented and mixed there without
synchronising.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, groupby, islice, tee

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import ImageDataset, TensorImages, prefetch_batches
from regard.data.images.preprocessing import ImagePreprocessing, Normalisation
from regard.training.state import DataPosition, DataShard, Positioned
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.simple_task import TensorBatch

GROUP_IMAGES, GROUP_BYTES = 1024, 2**23
"""On a GPU, several small batches are augmented at once, up to this size: augmentation launches hundreds of kernels,
which take as long for a few images as for many."""


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """Preprocessed images and target probabilities."""

    images: Tensor  # (B, channels, size, size)
    targets: Tensor  # (B, classes)


@dataclass(frozen=True)
class Plan:
    """Plan of a batch: rows of the dataset, seed of the augmentation, and index of the augmentation stage."""

    rows: Tensor
    seed: tuple[int, ...]
    stage: int = 0


class ImageBatches:
    """Training batches without end; the images of an epoch that do not fill a batch are dropped, others each time.

    If the images of the dataset are on the device, batches are gathered there.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        preprocessing: ImagePreprocessing,
        recipe: ClassificationRecipe,
        device: torch.device,
    ) -> None:
        self.dataset, self.recipe, self.device = dataset, recipe, device
        self.labels, self.classes = dataset.labels.to(device), len(preprocessing.classes)
        normalisation = Normalisation(preprocessing.mean, preprocessing.std)
        total_batches = recipe.training.steps * recipe.optim.accumulate
        stages = recipe.augmentation.stages
        self.stage_starts = [round(start * total_batches) for start, _ in stages]
        self.stages = [Augmentation(settings, preprocessing.size, normalisation) for _, settings in stages]
        self.size = min(recipe.batch.images, len(dataset))
        group_images = min(GROUP_IMAGES, GROUP_BYTES // int(np.prod(dataset.shape)))
        self.group_size = max(1, group_images // self.size) if device.type == "cuda" else 1

    def iterate(self, position: DataPosition, shard: DataShard) -> Generator[Positioned[ImageBatch], None, None]:
        """Iterate over the batches of one process from a position on."""
        # Two iterators over the same groups: images are loaded several groups before they are augmented.
        groups, groups_to_load = tee(self.group(shard.select(self.plan(position))))
        rows = (_rows([planned.item for planned in group]) for group in groups_to_load)
        in_memory = isinstance(self.dataset, TensorImages)
        loaded = map(self.dataset.take, rows) if in_memory else prefetch_batches(self.dataset, rows)
        for group, pixels in zip(groups, loaded, strict=True):
            batches = self.make([planned.item for planned in group], pixels)
            for planned, batch in zip(group, batches, strict=True):
                yield Positioned(batch, planned.after)

    def plan(self, position: DataPosition) -> Iterator[Positioned[Plan]]:
        """Plan the batches of all processes from a position on."""
        seed, used, per_epoch = self.recipe.training.seed, position.batch, len(self.dataset) // self.size
        for epoch in count(position.epoch):
            order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.dataset)))
            if isinstance(self.dataset, TensorImages):  # one copy per epoch instead of one per batch
                order = order.to(self.dataset.pixels.device)
            for number in range(used, per_epoch):
                rows = order[number * self.size : (number + 1) * self.size]
                stage = max(i for i, start in enumerate(self.stage_starts) if epoch * per_epoch + number >= start)
                yield Positioned(Plan(rows, (seed, epoch, number), stage), DataPosition(epoch, number + 1))
            used = 0

    def group(self, plans: Iterator[Positioned[Plan]]) -> Iterator[list[Positioned[Plan]]]:
        """Group consecutive batches of the same stage that are augmented at once."""
        for _, same_stage in groupby(plans, lambda planned: planned.item.stage):
            while group := list(islice(same_stage, self.group_size)):
                yield group

    def make(self, plans: Sequence[Plan], pixels: Tensor) -> list[ImageBatch]:
        """Augment the images of some plans of one stage, concatenated, and split them into batches."""
        augmentation, smoothing = self.stages[plans[0].stage], self.recipe.optim.label_smoothing
        generators = [_generator(plan.seed) for plan in plans]
        images = augmentation(pixels.to(self.device, non_blocking=True), *generators)
        labels = self.labels[_rows(plans).to(self.device, non_blocking=True)]
        if augmentation.settings.mixes:
            images, targets = augmentation.mix(images, labels, self.classes, *generators)
        else:
            targets = F.one_hot(labels, self.classes).to(images)
        made = ImageBatch(images, targets * (1 - smoothing) + smoothing / self.classes)
        ends = accumulate(len(plan.rows) for plan in plans)
        return [made.part(slice(end - len(plan.rows), end)) for plan, end in zip(plans, ends, strict=True)]

    def first(self) -> ImageBatch:
        """Return a batch of the first images; all batches have the same size."""
        rows = torch.arange(self.size)
        (batch,) = self.make([Plan(rows, (self.recipe.training.seed,))], self.dataset.take(rows))
        return batch


def _rows(plans: Sequence[Plan]) -> Tensor:
    return plans[0].rows if len(plans) == 1 else torch.cat([plan.rows for plan in plans])


def _generator(seed: tuple[int, ...]) -> torch.Generator:
    """Return a generator on the CPU, so that its decisions do not synchronise with the device."""
    number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator().manual_seed(number)
