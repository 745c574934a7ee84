"""How a recipe of a classifier is carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.data.images.store import SKIPPED
from regard.training.building import build_model, describe_model
from regard.training.parallelism import initial_device
from regard.training.progress import Progress, counted
from regard.training.tasks.classification.data import ImageRunData, check_images, gather_data, open_data
from regard.training.tasks.classification.recipe import FROM_DATA, ClassificationRecipe
from regard.training.tasks.classification.start import ClassifierStart, settle_again
from regard.training.tasks.classification.task import ClassificationTask

PATHS = ("images", "valid", "store")


class Classification:
    """Images with classes, whatever model tells them apart."""

    recipe = ClassificationRecipe
    unit = "images"

    def open_start(self, recipe: ClassificationRecipe) -> ClassifierStart:
        return ClassifierStart.open(recipe)

    def settle(self, recipe: ClassificationRecipe, device: torch.device) -> ClassificationRecipe:
        return recipe

    def settle_again(self, recipe: ClassificationRecipe, old: ClassificationRecipe, out: Path) -> ClassificationRecipe:
        return settle_again(recipe, old, out)

    def flatten(self, recipe: ClassificationRecipe) -> dict[str, Any]:
        """The model's settings with its preset filled in, paths only as given or not."""
        values = recipe.model_dump(mode="json")
        config = recipe.model_config_for(2, recipe.data.channels or 3).model_dump(mode="json")
        values["model"] = {key: value for key, value in config.items() if key not in FROM_DATA}
        values["data"] |= {key: "a path" for key in PATHS if values["data"][key] is not None}
        values["data"]["size"] = recipe.resize.size
        values["init"] |= {"from": "a path"} if recipe.init.folder is not None else {}
        return {f"{group}.{key}": value for group, part in values.items() for key, value in part.items()}

    def check(self, folder: Path, recipe: ClassificationRecipe, owner: str) -> None:
        check_images(folder, recipe, owner)

    def gather(
        self, folder: Path, recipe: ClassificationRecipe, progress: Progress, start: ClassifierStart | None
    ) -> None:
        gather_data(folder, recipe, progress, () if start is None else start.preprocessing.classes)

    def open(self, folder: Path, recipe: ClassificationRecipe, progress: Progress) -> ImageRunData:
        return open_data(folder, recipe, progress)

    def prepare(
        self, recipe: ClassificationRecipe, device: torch.device, progress: Progress, data: ImageRunData
    ) -> ClassificationTask:
        preprocessing = data.preprocessing
        config = recipe.model_config_for(len(preprocessing.classes), preprocessing.channels)
        model = build_model(config, initial_device(device, recipe.training.sharding))
        colour = "grey" if preprocessing.channels == 1 else "colour"
        progress.print(
            f"{len(preprocessing.classes):,} classes: {counted(len(data.train), 'training image')}, "
            f"{len(data.valid):,} for validation; {preprocessing.size}×{preprocessing.size} pixels in {colour}"
        )
        for name, number in data.left_out.items():
            if number:
                where = (recipe.data.store or data.folder) / name / SKIPPED
                progress.print(f"left out: {counted(number, 'image')} that cannot be read; see {where}")
        progress.print(describe_model(model, device))
        return ClassificationTask(model, data, recipe, device)

    def suggest(self, out: Path) -> str:
        return f"regard classify {out} IMAGE..."
