"""Training of image classifiers."""

import math
from collections.abc import Generator, Hashable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.images.augmentation import EvalTransform
from regard.data.images.datasets import ImageDataset, TensorImages, prefetch_batches
from regard.data.images.image_store import SKIPPED
from regard.data.images.preprocessing import Normalisation
from regard.layers import ImageModel
from regard.models.folder import unique_tensors
from regard.pipelines.classifier import Classifier
from regard.training.memory import build_model, describe_size
from regard.training.objectives.registry import Objective
from regard.training.prepared_data import require_paths
from regard.training.progress import Progress, Sample, counted
from regard.training.state import DataPosition, DataShard, Positioned
from regard.training.task import (
    DivergedError,
    InitialModel,
    LossSum,
    Step,
    Task,
    Validation,
    copy_weights,
    sample_indices,
)
from regard.training.tasks.classification.batches import ImageBatch, ImageBatches
from regard.training.tasks.classification.data import ClassificationData, check_images, open_data, prepare_data
from regard.training.tasks.classification.recipe import ClassificationRecipe

TOP = 5
MAX_MEMORY_SHARE = 0.4
"""Fraction of a GPU's free memory that the images may take."""


class ClassificationTask(Task[ImageBatch]):
    """Trains a model to predict the classes of augmented images."""

    name = "classification"
    model_type = ImageModel
    recipe_type = ClassificationRecipe
    unit = "images"

    def __init__(
        self, model: Any, data: ClassificationData, recipe: ClassificationRecipe, device: torch.device
    ) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        self.preprocessing, self.names = data.preprocessing, data.names
        self.objective: Objective = recipe.objective.build(recipe, model.config)
        if recipe.training.compile:
            model.compile()
        self.width: int = model.head.in_features
        self.train_batches = ImageBatches(_place(data.train, device), data.preprocessing, recipe, device)
        self.valid_images = _place(data.valid, device)
        normalisation = Normalisation(data.preprocessing.mean, data.preprocessing.std)
        self.eval_transform = EvalTransform(data.preprocessing.size, normalisation)
        self.classes = len(data.preprocessing.classes)

    # Preparation

    @classmethod
    def load_initial_model(cls, recipe: ClassificationRecipe) -> InitialModel:
        folder = recipe.init.folder
        assert folder is not None
        loaded = Classifier.load(folder)
        completed = recipe.complete(recipe.keys_of(loaded.model.config), loaded.preprocessing, str(folder))
        model = loaded.model.resized(completed.resize.size)
        return InitialModel(folder, completed, unique_tensors(model), loaded.preprocessing)

    @classmethod
    def complete_recipe(cls, recipe: ClassificationRecipe, progress: Progress) -> ClassificationRecipe:
        require_paths({"--data": recipe.data.images, "--valid": recipe.data.valid})
        return recipe

    @classmethod
    def prepare_data(
        cls, folder: Path, recipe: ClassificationRecipe, progress: Progress, initial: InitialModel | None
    ) -> None:
        prepare_data(folder, recipe, progress, () if initial is None else initial.extras.classes)

    @classmethod
    def check_data(cls, folder: Path, recipe: ClassificationRecipe, owner: str) -> None:
        check_images(folder, recipe, owner)

    @classmethod
    def open(
        cls, folder: Path, recipe: ClassificationRecipe, device: torch.device, progress: Progress
    ) -> "ClassificationTask":
        data = open_data(folder, recipe, progress)
        preprocessing = data.preprocessing
        config = recipe.model_settings(len(preprocessing.classes), preprocessing.channels)
        model = build_model(config, device, recipe.training.sharding)
        colour = "greyscale" if preprocessing.channels == 1 else "colour"
        progress.print(
            f"{len(preprocessing.classes):,} classes: {counted(len(data.train), 'training image')}, "
            f"{len(data.valid):,} for validation; {preprocessing.size}×{preprocessing.size} pixels in {colour}"
        )
        for name, number in data.skipped.items():
            if number:
                path = (recipe.data.store or data.folder) / name / SKIPPED
                progress.print(f"skipped: {counted(number, 'image')} that cannot be read; see {path}")
        progress.print(describe_size(model, device))
        return cls(model, data, recipe, device)

    def initialise(self, initial: InitialModel) -> str:
        return copy_weights(self.model, initial, new_head=self.preprocessing.classes != initial.extras.classes)

    @classmethod
    def next_command(cls, out: Path) -> str:
        return f"regard classify {out} IMAGE..."

    # Training

    def batches(self, position: DataPosition, shard: DataShard) -> Generator[Positioned[ImageBatch], None, None]:
        return self.train_batches.iterate(position, shard)

    def largest_batch(self) -> ImageBatch:
        return self.train_batches.first()

    def split(self, batch: ImageBatch) -> tuple[ImageBatch, ImageBatch] | None:
        return batch.halves()

    def describe(self, batch: ImageBatch) -> str:
        pixels = f"{self.preprocessing.size}×{self.preprocessing.size} pixels"
        return f"an image of {pixels}" if len(batch) == 1 else f"{len(batch)} images of {pixels}"

    def advise(self, batch: ImageBatch) -> str:
        if len(batch) == 1:
            return f"data.size={self.preprocessing.size // 2}, or a smaller model"
        return f"batch.images={len(batch) // 2}"

    def begin_step(self, step: int) -> None:
        self.objective.begin_step(step)

    def operations_key(self) -> Hashable:
        return self.objective.operations_key()

    def loss(self, batch: ImageBatch, step: Step) -> LossSum:
        return self.objective.loss(self.model, batch, step)

    # Validation

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Compute the loss without label smoothing, and top-1 and top-5 accuracy in percent."""
        model.eval()
        plan = list(torch.split(torch.arange(len(self.valid_images)), self.train_batches.size))
        batches = (pixels.to(self.device, non_blocking=True) for pixels in prefetch_batches(self.valid_images, plan))
        logits = torch.cat([model(self.eval_transform(pixels)).float() for pixels in batches]).cpu()
        labels = self.valid_images.labels
        loss = float(F.cross_entropy(logits, labels))
        if not math.isfinite(loss):
            raise DivergedError(loss)
        correct = logits.topk(min(TOP, self.classes), 1).indices == labels[:, None]
        scores = {"loss": loss, "accuracy": 100 * float(correct[:, 0].float().mean())}
        if self.classes > TOP:
            scores["top5"] = 100 * float(correct.any(1).float().mean())
        scores["score"] = -loss if self.recipe.training.monitor == "loss" else scores["accuracy"]
        return Validation(scores, self._samples(logits.argmax(1)))

    def _samples(self, predicted: Tensor) -> list[Sample]:
        """Return the names, classes and predicted classes of some images."""
        classes, labels = self.preprocessing.classes, self.valid_images.labels
        rows = sample_indices(self.recipe.training.samples, len(predicted))
        return [Sample(self.names[i], classes[int(labels[i])], classes[int(predicted[i])]) for i in rows]

    def save(self, folder: Path, model: nn.Module) -> None:
        Classifier(model, self.preprocessing).save(folder)


def _place(images: ImageDataset, device: torch.device) -> ImageDataset:
    """Move images to a GPU if they take only a part of its free memory."""
    if device.type == "cuda" and isinstance(images, TensorImages):
        free, _ = torch.cuda.mem_get_info(device)
        if images.pixels.nbytes < MAX_MEMORY_SHARE * free:
            return images.to(device)
    return images
