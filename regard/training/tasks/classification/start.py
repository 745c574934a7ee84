"""What a classifier begins with in place of random weights: the model of a folder, with a new head for new classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.models.warmstart import copy_tensors
from regard.pipelines.classifier import Classifier
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.training.task import Task
from regard.training.tasks.classification.recipe import FROM_DATA, ClassificationRecipe
from regard.training.tasks.classification.task import ClassificationTask

HEAD = "head."
RATES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
"""Keys that decide nothing about weights."""


@dataclass(frozen=True)
class ClassifierStart:
    """A folder's weights, fitted to the size of the images, and the settings that follow from it."""

    folder: Path
    preprocessing: ImagePreprocessing
    tensors: dict[str, Tensor]
    settings: ClassificationRecipe

    @classmethod
    def open(cls, recipe: ClassificationRecipe) -> ClassifierStart:
        """Reads the folder that the recipe begins with.

        Raises:
            UserError: it is no folder of such a model, or a setting of the recipe contradicts it.
        """
        folder = recipe.init.folder
        assert folder is not None
        with torch.random.fork_rng(devices=[]):  # so that a run that goes on without the folder draws the same numbers
            loaded = Classifier.load(folder)
        settled = settle(recipe, loaded.model.config.model_dump(mode="json"), loaded.preprocessing, str(folder))
        model = loaded.model.resized(settled.resize.size)
        return cls(folder, loaded.preprocessing, unique_tensors(model), settled)

    def fill(self, task: Task[Any]) -> str:
        """Gives the task's model the folder's weights, and says so; its head stays new for classes that are.

        Raises:
            UserError: a tensor does not fit; it is named.
        """
        assert isinstance(task, ClassificationTask)
        kept = task.preprocessing.classes == self.preprocessing.classes
        names = [name for name in self.tensors if kept or not name.startswith(HEAD)]
        copy_tensors(task.model, self.tensors, str(self.folder), names)
        return f"beginning with the weights of {self.folder}" + ("" if kept else ", but for a new head")


def settle(
    recipe: ClassificationRecipe, model: Mapping[str, Any], preprocessing: ImagePreprocessing, where: str
) -> ClassificationRecipe:
    """The recipe with all that follows from what the run begins with; what is given there must not contradict it.

    Raises:
        UserError: a setting contradicts it; it is named with both values.
    """
    if model["kind"] != recipe.kind:
        raise UserError(f"model.kind: {where} is of the kind {model['kind']}, not {recipe.kind}; set model.kind")
    own = {key: value for key, value in model.items() if key not in FROM_DATA}
    if recipe.data.channels not in (None, preprocessing.channels):
        raise UserError(_explain("data.channels", recipe.data.channels, preprocessing.channels, where))
    taken = {"channels": preprocessing.channels, "size": recipe.data.size or preprocessing.size}
    taken |= {key: getattr(recipe.data, key) or getattr(preprocessing, key) for key in ("mean", "std")}
    settled = recipe.changed(
        model=({} if "preset" in recipe.model else own) | recipe.model, data=recipe.data.model_dump() | taken
    )
    wanted = settled.model_config_for(2, preprocessing.channels).model_dump(mode="json")
    for key, value in own.items():
        if wanted[key] != value and key not in RATES:
            raise UserError(_explain(f"model.{key}", wanted[key], value, where))
    return settled.changed(model={key: wanted[key] for key in own})


def settle_again(recipe: ClassificationRecipe, old: ClassificationRecipe, out: Path) -> ClassificationRecipe:
    """`settle` for a run that goes on: its own recipe knows what followed from the folder, which may be gone."""
    if recipe.init.folder is None or old.init.folder is None:
        return recipe
    data = old.data
    values = {"classes": (), "size": data.size, "channels": data.channels, "mean": data.mean, "std": data.std}
    return settle(recipe, old.model, ImagePreprocessing.parse(values, str(out)), str(out))


def _explain(key: str, given: Any, own: Any, where: str) -> str:
    return f"{key}: {given} contradicts {own} of {where}, with which the run begins; leave it away"
