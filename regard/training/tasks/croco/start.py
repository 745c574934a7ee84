"""What a two-view model begins with in place of random weights: those of a model folder, but for another head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import find_model_folder, load_model, unique_tensors
from regard.models.warmstart import copy_tensors
from regard.training.task import Task
from regard.training.tasks.croco.recipe import CroCoRecipe

OF_HEAD = ("head", "outputs", "head_width")
FREE = (*OF_HEAD, "drop_path")
"""Keys of the model that need not be those of the folder."""


@dataclass(frozen=True)
class TwoViewStart:
    """A folder's weights, and the settings that follow from it."""

    folder: Path
    tensors: dict[str, Tensor]
    same_head: bool
    settings: CroCoRecipe

    @classmethod
    def open(cls, recipe: CroCoRecipe) -> TwoViewStart:
        """Reads the folder that the recipe begins with.

        Raises:
            UserError: it holds no such model, or a setting of the recipe contradicts it.
        """
        assert recipe.init.folder is not None
        folder = find_model_folder(recipe.init.folder)
        with torch.random.fork_rng(devices=[]):  # so that a run that goes on without the folder draws the same numbers
            model, _ = load_model(folder)
        if not isinstance(model, CroCo):
            raise UserError(f"init.from: {folder} holds a model of the kind {model.config.kind}, not croco")
        settled = settle(recipe, model.config, str(folder))
        config = settled.model_settings()
        same_head = all(getattr(config, key) == getattr(model.config, key) for key in OF_HEAD)
        return cls(folder, unique_tensors(model), same_head, settled)

    def fill(self, task: Task[Any]) -> str:
        """Gives the task's model the folder's weights, and says so; a head that the folder does not have stays new."""
        model = task.model
        names = [name for name in unique_tensors(model) if self.same_head or not name.startswith("head.")]
        given = {
            name: tensor for name, tensor in self.tensors.items() if self.same_head or not name.startswith("head.")
        }
        copy_tensors(model, given, str(self.folder), names)
        return f"beginning with the weights of {self.folder}" + ("" if self.same_head else " and a new head")


def settle(recipe: CroCoRecipe, config: CroCoConfig, where: str) -> CroCoRecipe:
    """The recipe with the model's keys of what it begins with; those that it gives must not contradict them.

    Raises:
        UserError: one does; it is named with both values.
    """
    known = {key: value for key, value in config.model_dump().items() if key not in FREE}
    wanted = recipe.model_settings().model_dump()
    for key in recipe.model.keys() & known.keys():
        if wanted[key] != known[key]:
            raise UserError(f"model.{key}: {wanted[key]!r}, but {where} has {known[key]!r}; leave it out")
    model = {key: value for key, value in recipe.model.items() if key in FREE} | known
    settled = recipe.changed(model=model)
    settled.check_model()
    return settled
