"""Classification as a task: batches of augmented images in, a classifier out.

Where all images fit, they lie on the device as bytes, and a batch is gathered, changed and mixed there; nothing of a
step waits for the device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.recognition.classifier import Classifier
from regard.training.classification.data import ImageRunData
from regard.training.classification.recipe import ClassificationRecipe
from regard.training.skips import ADVICE
from regard.training.state import Placed, Position, Share
from regard.training.task import Loss, Sample, Step, Validation
from regard.vision.augmentation import Augmentation, Evaluation, Normalisation
from regard.vision.pictures import Pictures, Resident, take_ahead

TOP = 5
ROOM = 0.4
"""Share of a GPU's free memory that images may take."""


@dataclass(frozen=True)
class ImageBatch:
    """Images as the model takes them, (B, channels, size, size), and the share of each class in them, (B, classes)."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Plan:
    """Which images make a batch, and the numbers from which all chance in it is drawn."""

    rows: Tensor
    seed: tuple[int, ...]


class ClassificationTask:
    """The model says the class of images that are changed and mixed as the recipe has it."""

    def __init__(self, model: Any, data: ImageRunData, recipe: ClassificationRecipe, device: torch.device) -> None:
        self.model, self.recipe, self.device, self.reading, self.names = model, recipe, device, data.reading, data.names
        if recipe.training.compile:
            model.compile()
        self.width: int = model.head.in_features
        self.train, self.valid = _place(data.train, device), _place(data.valid, device)
        self.labels = self.train.labels.to(device)
        normalisation = Normalisation(data.reading.mean, data.reading.std)
        self.augmentation = Augmentation(recipe.augmentation, data.reading.size, normalisation)
        self.evaluation = Evaluation(data.reading.size, normalisation)
        self.classes = len(data.reading.classes)
        self.batch = min(recipe.batch.images, len(self.train))

    def batches(self, position: Position, share: Share) -> Iterator[Placed[ImageBatch]]:
        """Without end; an epoch's last images, too few for a batch, are left out, other ones each time."""
        ours = share.pick(self._planned(position))
        if isinstance(self.train, Resident):
            return (Placed(self.make(plan.batch, self.train.take(plan.batch.rows)), plan.after) for plan in ours)
        return self._streamed(ours)

    def make(self, plan: Plan, pixels: Tensor) -> ImageBatch:
        """The batch of a plan from its images as they are."""
        seed = int(np.random.SeedSequence(plan.seed).generate_state(1, np.uint64)[0] >> 1)
        chance = torch.Generator().manual_seed(seed)  # on the CPU, so that nothing that it decides is waited for
        images = self.augmentation(pixels.to(self.device, non_blocking=True), chance)
        labels = self.labels[plan.rows.to(self.device, non_blocking=True)]
        if self.recipe.augmentation.mixes:
            images, targets = self.augmentation.mix(images, labels, self.classes, chance)
        else:
            targets = F.one_hot(labels, self.classes).to(images)
        smoothing = self.recipe.optim.smoothing
        return ImageBatch(images, targets * (1 - smoothing) + smoothing / self.classes)

    def largest(self) -> ImageBatch:
        """The first images: every batch has as many."""
        rows = torch.arange(self.batch)
        return self.make(Plan(rows, (self.recipe.training.seed,)), self.train.take(rows))

    def count(self, batch: ImageBatch) -> int:
        return len(batch)

    def size(self, batch: ImageBatch) -> int:
        return len(batch)

    def split(self, batch: ImageBatch) -> tuple[ImageBatch, ImageBatch] | None:
        half = len(batch) // 2
        if not half:
            return None
        return (
            ImageBatch(batch.images[:half], batch.targets[:half]),
            ImageBatch(batch.images[half:], batch.targets[half:]),
        )

    def describe(self, batch: ImageBatch) -> str:
        size = self.reading.size
        return (
            f"an image of {size}×{size} pixels" if len(batch) == 1 else f"{len(batch)} images of {size}×{size} pixels"
        )

    def advise(self, batch: ImageBatch) -> str:
        if len(batch) == 1:
            return f"data.size={self.reading.size // 2}, or a smaller model"
        return f"batch.images={len(batch) // 2}"

    def loss(self, batch: ImageBatch, step: Step) -> Loss:
        logits = self.model(batch.images).float()
        return Loss(F.cross_entropy(logits, batch.targets, reduction="sum"), len(batch))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """The loss without smoothing; how many images get the right class, first or among the first five, in percent.

        Raises:
            UserError: the loss is no number.
        """
        model.eval()
        plan = list(torch.split(torch.arange(len(self.valid)), self.batch))
        logits = torch.cat([model(self.evaluation(images)).float() for images in self._taken(plan)]).cpu()
        labels = self.valid.labels
        loss = float(F.cross_entropy(logits, labels))
        if not math.isfinite(loss):
            raise UserError(f"the validation loss is {loss}, so the model has diverged; {ADVICE}, and begin anew")
        ranked = logits.topk(min(TOP, self.classes), 1).indices == labels[:, None]
        scores = {"loss": loss, "accuracy": 100 * float(ranked[:, 0].float().mean())}
        if self.classes > TOP:
            scores["top5"] = 100 * float(ranked.any(1).float().mean())
        scores["score"] = -loss if self.recipe.training.watch == "loss" else scores["accuracy"]
        return Validation(scores, self._samples(logits.argmax(1)))

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        Classifier(model, self.reading).save(folder)
        (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")

    def _planned(self, position: Position) -> Iterator[Placed[Plan]]:
        seed, used = self.recipe.training.seed, position.batch
        for epoch in count(position.epoch):
            order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.train)))
            if isinstance(self.train, Resident):  # once an epoch, so that no batch has to wait for its own
                order = order.to(self.train.pixels.device)
            for number in range(used, len(self.train) // self.batch):
                rows = order[number * self.batch : (number + 1) * self.batch]
                yield Placed(Plan(rows, (seed, epoch, number)), Position(epoch, number + 1))
            used = 0

    def _streamed(self, planned: Iterator[Placed[Plan]]) -> Iterator[Placed[ImageBatch]]:
        """Batches of images that are decoded in the background."""
        waiting: list[Placed[Plan]] = []

        def rows() -> Iterator[Tensor]:
            for placed in planned:
                waiting.append(placed)
                yield placed.batch.rows

        for pixels in take_ahead(self.train, rows()):
            placed = waiting.pop(0)
            yield Placed(self.make(placed.batch, pixels), placed.after)

    def _taken(self, plan: list[Tensor]) -> Iterator[Tensor]:
        """The validation images of a plan, on the device."""
        return (pixels.to(self.device, non_blocking=True) for pixels in take_ahead(self.valid, plan))

    def _samples(self, said: Tensor) -> list[Sample]:
        """Some images of all over the set, always the same: their names, classes, and what the model took them for."""
        names, wanted = self.reading.classes, min(self.recipe.training.samples, len(said))
        chosen = [i * len(said) // wanted for i in range(wanted)]
        return [Sample(self.names[i], names[int(self.valid.labels[i])], names[int(said[i])]) for i in chosen]


def _place(pictures: Pictures, device: torch.device) -> Pictures:
    """All images on the device, where they take only a part of its memory; else where they are."""
    if device.type == "cuda" and isinstance(pictures, Resident):
        free, _ = torch.cuda.mem_get_info(device)
        if pictures.pixels.nbytes < ROOM * free:
            return pictures.to(device)
    return pictures
