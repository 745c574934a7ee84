"""How a recipe of a two-view model is carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.models.croco import CroCo
from regard.models.folder import find_model_folder, read_config
from regard.training.building import build_model, describe_model
from regard.training.fingerprints import check_files, describe_files, read_fingerprints, write_fingerprints
from regard.training.parallelism import initial_device
from regard.training.progress import Progress
from regard.training.task import Task
from regard.training.tasks.croco.disparity import DisparityTask
from regard.training.tasks.croco.pairs import PairSource, PhotoPairs, ScenePairs, find_pairs, images_of
from regard.training.tasks.croco.recipe import CroCoRecipe
from regard.training.tasks.croco.start import TwoViewStart
from regard.training.tasks.croco.task import CompletionTask


class TwoViews:
    """Pairs of views, and a task for each head of the model."""

    recipe = CroCoRecipe
    unit = "pairs"

    def open_start(self, recipe: CroCoRecipe) -> TwoViewStart:
        return TwoViewStart.open(recipe)

    def settle(self, recipe: CroCoRecipe, device: torch.device) -> CroCoRecipe:
        return recipe

    def settle_again(self, recipe: CroCoRecipe, old: CroCoRecipe, out: Path) -> CroCoRecipe:
        """The model's keys are those of the folder that the run began with, which need not be there any more."""
        return recipe if recipe.init.folder is None else recipe.changed(model=old.model | recipe.model)

    def flatten(self, recipe: CroCoRecipe) -> dict[str, Any]:
        """The model's settings with its preset filled in, a folder's only as given or not."""
        values = recipe.model_dump(mode="json")
        values["model"] = recipe.model_settings().model_dump(mode="json")
        values["data"]["images"] = None if recipe.data.images is None else "a folder"
        values["init"]["from"] = None if recipe.init.folder is None else "a path"
        return {f"{group}.{key}": value for group, part in values.items() for key, value in part.items()}

    def gather(self, folder: Path, recipe: CroCoRecipe, progress: Progress, start: TwoViewStart | None) -> None:
        """Pairs are made when they are needed; what is kept is which files there were."""
        write_fingerprints(folder, {"files": describe_files(list_files(recipe)), "settings": {}, "left_out": {}})

    def check(self, folder: Path, recipe: CroCoRecipe, owner: str) -> None:
        check_files(list_files(recipe), read_fingerprints(folder)["files"], owner)

    def open(self, folder: Path, recipe: CroCoRecipe, progress: Progress) -> PairSource:
        data, seed = recipe.data, recipe.training.seed
        if data.images is None:
            return ScenePairs(data.scenes, seed)
        folders = find_pairs(data.images)
        return PhotoPairs(folders, data.scenes.size, seed, max(1, len(folders) // 10))

    def prepare(self, recipe: CroCoRecipe, device: torch.device, progress: Progress, data: PairSource) -> Task[Any]:
        model = build_model(recipe.model_settings(), initial_device(device, recipe.training.sharding))
        assert isinstance(model, CroCo)
        height, width = recipe.data.scenes.size
        what = "rendered scenes" if recipe.data.images is None else f"the photographs in {recipe.data.images}"
        progress.print(f"pairs of {height}×{width} pixels from {what}; {describe_model(model, device)}")
        if model.config.head == "dense":
            return DisparityTask(model, recipe, device)
        return CompletionTask(model, data, recipe, device)

    def suggest(self, out: Path) -> str:
        if read_config(find_model_folder(out))["model"]["head"] == "dense":
            return f"regard look {out} LEFT.png RIGHT.png --out matches.png"
        return f"regard train disparity-scenes --init-from {out} --out {out}-disparity"


def list_files(recipe: CroCoRecipe) -> dict[str, Path]:
    """Every photograph, by the names of its folder and itself."""
    if recipe.data.images is None:
        return {}
    return {f"{path.name}/{image.name}": image for path in find_pairs(recipe.data.images) for image in images_of(path)}
