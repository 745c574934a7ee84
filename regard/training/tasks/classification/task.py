"""Classification as a task: batches of augmented images in, a classifier out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.images.augmentation import EvalTransform, Normalisation
from regard.data.images.datasets import ImageDataset, TensorImages, prefetch_batches
from regard.pipelines.classifier import Classifier
from regard.training.skip import ADVICE
from regard.training.state import DataShard, Position, Positioned
from regard.training.task import DivergedError, LossSum, Sample, Step, Validation
from regard.training.tasks.classification.batches import ImageBatch, ImageBatches
from regard.training.tasks.classification.data import ImageRunData
from regard.training.tasks.classification.recipe import ClassificationRecipe

TOP = 5
ROOM = 0.4
"""Share of a GPU's free memory that images may take."""


class ClassificationTask:
    """The model says the class of images that are changed and mixed as the recipe has it."""

    def __init__(self, model: Any, data: ImageRunData, recipe: ClassificationRecipe, device: torch.device) -> None:
        self.model, self.recipe, self.device, self.preprocessing, self.names = (
            model,
            recipe,
            device,
            data.preprocessing,
            data.names,
        )
        if recipe.training.compile:
            model.compile()
        self.width: int = model.head.in_features
        self.made = ImageBatches(_place(data.train, device), data.preprocessing, recipe, device)
        self.valid = _place(data.valid, device)
        self.evaluation = EvalTransform(
            data.preprocessing.size, Normalisation(data.preprocessing.mean, data.preprocessing.std)
        )
        self.classes = len(data.preprocessing.classes)

    def batches(self, position: Position, share: DataShard) -> Iterator[Positioned[ImageBatch]]:
        return self.made.begin(position, share)

    def largest(self) -> ImageBatch:
        return self.made.first()

    def count(self, batch: ImageBatch) -> int:
        return len(batch)

    def size(self, batch: ImageBatch) -> int:
        return len(batch)

    def split(self, batch: ImageBatch) -> tuple[ImageBatch, ImageBatch] | None:
        half = len(batch) // 2
        if not half:
            return None
        first, second = batch.split(half, len(batch) - half)
        return first, second

    def describe(self, batch: ImageBatch) -> str:
        size = self.preprocessing.size
        return (
            f"an image of {size}×{size} pixels" if len(batch) == 1 else f"{len(batch)} images of {size}×{size} pixels"
        )

    def advise(self, batch: ImageBatch) -> str:
        if len(batch) == 1:
            return f"data.size={self.preprocessing.size // 2}, or a smaller model"
        return f"batch.images={len(batch) // 2}"

    def loss(self, batch: ImageBatch, step: Step) -> LossSum:
        logits = self.model(batch.images).float()
        return LossSum(F.cross_entropy(logits, batch.targets, reduction="sum"), len(batch))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """The loss without smoothing; how many images get the right class, first or among the first five, in percent.

        Raises:
            DivergedError: the loss is no number.
        """
        model.eval()
        plan = list(torch.split(torch.arange(len(self.valid)), self.made.size))
        logits = torch.cat([model(self.evaluation(images)).float() for images in self._taken(plan)]).cpu()
        labels = self.valid.labels
        loss = float(F.cross_entropy(logits, labels))
        if not math.isfinite(loss):
            raise DivergedError(f"the validation loss is {loss}, so the model has diverged; {ADVICE}, and begin anew")
        ranked = logits.topk(min(TOP, self.classes), 1).indices == labels[:, None]
        scores = {"loss": loss, "accuracy": 100 * float(ranked[:, 0].float().mean())}
        if self.classes > TOP:
            scores["top5"] = 100 * float(ranked.any(1).float().mean())
        scores["score"] = -loss if self.recipe.training.monitor == "loss" else scores["accuracy"]
        return Validation(scores, self._samples(logits.argmax(1)))

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        Classifier(model, self.preprocessing).save(folder)
        (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")

    def _taken(self, plan: list[Tensor]) -> Iterator[Tensor]:
        """The validation images of a plan, on the device."""
        return (pixels.to(self.device, non_blocking=True) for pixels in prefetch_batches(self.valid, plan))

    def _samples(self, said: Tensor) -> list[Sample]:
        """Some images of all over the set, always the same: their names, classes, and what the model took them for."""
        names, wanted = self.preprocessing.classes, min(self.recipe.training.samples, len(said))
        chosen = [i * len(said) // wanted for i in range(wanted)]
        return [Sample(self.names[i], names[int(self.valid.labels[i])], names[int(said[i])]) for i in chosen]


def _place(pictures: ImageDataset, device: torch.device) -> ImageDataset:
    """All images on the device, where they take only a part of its memory; else where they are."""
    if device.type == "cuda" and isinstance(pictures, TensorImages):
        free, _ = torch.cuda.mem_get_info(device)
        if pictures.pixels.nbytes < ROOM * free:
            return pictures.to(device)
    return pictures
