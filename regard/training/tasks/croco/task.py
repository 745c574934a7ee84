"""Training of CroCo models: cross-view completion, and disparity of stereo pairs.

Shapes: B pairs, H height, W width, K visible patches.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.images.preprocessing import VIEWS
from regard.data.two_view.pairs import render_stereo
from regard.data.two_view.random import SceneRandom
from regard.evaluation.croco import BLANK, choose_visible, masked_loss, second_views
from regard.models.croco import CroCo
from regard.models.folder import find_model_folder, read_config, save_model, unique_tensors
from regard.models.warmstart import copy_tensors
from regard.training.memory import build_model, describe_model
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.task import InitialModel, LossSum, Step, Validation
from regard.training.tasks.croco.data import (
    HELD_OUT,
    PairSource,
    PhotoPairs,
    ScenePairs,
    chunks,
    find_pairs,
    list_photographs,
    rendering_chunks,
)
from regard.training.tasks.croco.recipe import FREE_KEYS, HEAD_KEYS, CroCoRecipe
from regard.training.tasks.simple import P, SimpleTask, TensorBatch, load_model_of

HEAD = "head."


@dataclass(frozen=True)
class MaskedPairs(TensorBatch):
    """Pairs with a masked first view."""

    view1: Tensor  # (B, 3, H, W)
    view2: Tensor  # (B, 3, H, W)
    visible: Tensor  # indices of the visible patches of view 1, (B, K)


@dataclass(frozen=True)
class StereoPairs(TensorBatch):
    """Rectified stereo pairs with the disparity of the left view."""

    left: Tensor  # (B, 3, H, W)
    right: Tensor  # (B, 3, H, W)
    disparity: Tensor  # pixels, (B, H, W)


class CroCoTask(SimpleTask[P]):
    """Base of the tasks on pairs of views: batch n contains the pairs from n times its size on."""

    name = "croco"
    model_type = CroCo
    recipe_type: ClassVar[type[Recipe]] = CroCoRecipe
    unit = "pairs"
    model: CroCo

    def make(self, number: int) -> P:
        size = self.recipe.batch.pairs
        return self.make_pairs(torch.arange(size, device=self.device) + number * size, number)

    @abstractmethod
    def make_pairs(self, numbers: Tensor, batch: int) -> P:
        """Make the pairs with these numbers, which are those of training batch `batch`."""

    # Preparation

    @classmethod
    def load_initial_model(cls, recipe: CroCoRecipe) -> InitialModel:
        folder, model = load_model_of(cls, recipe)
        own = {key: value for key, value in recipe.keys_of(model.config).items() if key not in FREE_KEYS}
        completed = recipe.with_model(own, str(folder))
        config = completed.model_settings()
        same_head = all(getattr(config, key) == getattr(model.config, key) for key in HEAD_KEYS)
        return InitialModel(folder, completed, unique_tensors(model), same_head)

    @classmethod
    def files(cls, recipe: CroCoRecipe) -> Mapping[str, Path]:
        return list_photographs(recipe.data.images)

    @classmethod
    def open(cls, folder: Path, recipe: CroCoRecipe, device: torch.device, progress: Progress) -> "CroCoTask[Any]":
        source = open_pairs(recipe)
        model = build_model(recipe.model_settings(), device, recipe.training.sharding)
        height, width = recipe.data.scenes.size
        origin = "rendered scenes" if recipe.data.images is None else f"the photographs in {recipe.data.images}"
        progress.print(f"pairs of {height}×{width} pixels from {origin}; {describe_model(model, device)}")
        if model.config.head == "dense":
            return DisparityTask(model, recipe, device)
        return CompletionTask(model, source, recipe, device)

    def initialise(self, initial: InitialModel) -> str:
        """Copy the weights; the head remains new if it differs."""
        same_head = initial.extras
        names = [name for name in unique_tensors(self.model) if same_head or not name.startswith(HEAD)]
        tensors = {name: tensor for name, tensor in initial.tensors.items() if same_head or not name.startswith(HEAD)}
        copy_tensors(self.model, tensors, str(initial.folder), names)
        return f"initialised with the weights of {initial.folder}" + ("" if same_head else " and a new head")

    @classmethod
    def next_command(cls, out: Path) -> str:
        if read_config(find_model_folder(out))["model"]["head"] == "dense":
            return f"regard look {out} LEFT.png RIGHT.png --out matches.png"
        return f"regard train disparity-scenes --init-from {out} --out {out}-disparity"

    # Training

    def describe(self, batch: P) -> str:
        height, width = self.recipe.data.scenes.size
        pixels = f"{height}×{width} pixels"
        return f"{len(batch)} pairs of {pixels}" if len(batch) > 1 else f"a pair of {pixels}"

    def advise(self, batch: P) -> str:
        return f"batch.pairs={len(batch) // 2}" if len(batch) > 1 else "a smaller data.scenes.size, or a smaller model"

    def save(self, folder: Path, model: nn.Module) -> None:
        assert isinstance(model, CroCo)
        save_model(folder, model, {VIEWS: list(self.recipe.data.scenes.size)})

    def held_out(self) -> list[Tensor]:
        """Return the numbers of the validation pairs, in chunks of the batch size."""
        numbers = torch.arange(self.recipe.data.hold_out, device=self.device) + HELD_OUT
        return [part for part in chunks(numbers, max(2, self.recipe.batch.pairs)) if len(part) > 1]


class CompletionTask(CroCoTask[MaskedPairs]):
    """Reconstructs the masked patches of the first view from its visible patches and the second view."""

    def __init__(self, model: CroCo, source: PairSource, recipe: CroCoRecipe, device: torch.device) -> None:
        super().__init__(model, recipe, device)
        self.source = source

    def make_pairs(self, numbers: Tensor, batch: int) -> MaskedPairs:
        view1, view2 = self.source.take(numbers)
        draws = SceneRandom(self.recipe.training.seed + 1, numbers)  # independent of the random numbers of the scenes
        visible = choose_visible(self.model, view1, self.recipe.completion.mask_ratio_at(batch), draws)
        dropped = draws.bernoulli(self.recipe.completion.drop_second_view)
        return MaskedPairs(view1, torch.where(dropped[:, None, None, None], BLANK, view2), visible)

    def loss(self, batch: MaskedPairs, step: Step) -> LossSum:
        loss = masked_loss(self.model, batch.view1, batch.view2, batch.visible)
        return LossSum(loss.mean(1).sum(), len(batch))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Compute the loss with the true second view, with that of another pair, and with a blank one."""
        assert isinstance(model, CroCo)
        model.eval()
        sums: dict[str, Tensor] = {}
        for numbers in self.held_out():
            view1, true = self.source.take(numbers)
            visible = choose_visible(model, view1, self.recipe.completion.mask_ratio, SceneRandom(0, numbers))
            for name, view2 in second_views(true).items():
                sums[name] = sums.get(name, 0) + masked_loss(model, view1, view2, visible).mean(1).sum()
        pairs = sum(map(len, self.held_out()))
        loss, shuffled, none = (float(sums[name]) / pairs for name in ("true", "shuffled", "none"))
        return Validation({"loss": loss, "shuffled": shuffled, "none": none, "score": -loss})


class DisparityTask(CroCoTask[StereoPairs]):
    """Predicts the disparity of rendered stereo pairs from both complete views."""

    def make_pairs(self, numbers: Tensor, batch: int = 0) -> StereoPairs:
        settings, seed = self.recipe.data.scenes, self.recipe.training.seed
        rendered = [render_stereo(settings, seed, part) for part in rendering_chunks(numbers, settings)]
        left, right = (torch.cat([pairs.views[i].image for pairs in rendered]) for i in (0, 1))
        return StereoPairs(left, right, torch.cat([pairs.disparity() for pairs in rendered]))

    def loss(self, batch: StereoPairs, step: Step) -> LossSum:
        predicted = predict_disparity(self.model, batch.left, batch.right)
        losses = F.smooth_l1_loss(predicted, batch.disparity, reduction="none").mean((1, 2))
        errors = (predicted.detach() - batch.disparity).abs().mean((1, 2))
        return LossSum(losses.sum(), len(batch), {"pixels_off": errors.sum()})

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Compute the mean error in pixels and the fraction of pixels with an error above one.

        `pixels_off_flat` is the error of the best constant disparity of each view.
        """
        assert isinstance(model, CroCo)
        model.eval()
        errors: dict[str, list[Tensor]] = {"pixels_off": [], "share_off_by_one": [], "pixels_off_flat": []}
        for numbers in self.held_out():
            batch = self.make_pairs(numbers)
            error = (predict_disparity(model, batch.left, batch.right) - batch.disparity).abs()
            errors["pixels_off"].append(error.mean((1, 2)))
            errors["share_off_by_one"].append((error > 1).float().mean((1, 2)))
            median = batch.disparity.flatten(1).median(1).values[:, None, None]
            errors["pixels_off_flat"].append((median - batch.disparity).abs().mean((1, 2)))
        scores = {name: float(torch.cat(parts).mean()) for name, parts in errors.items()}
        return Validation(scores | {"score": -scores["pixels_off"]})


def open_pairs(recipe: CroCoRecipe) -> PairSource:
    """Open the pairs that the recipe names; a tenth of the photographs is held out."""
    data, seed = recipe.data, recipe.training.seed
    if data.images is None:
        return ScenePairs(data.scenes, seed)
    folders = find_pairs(data.images)
    return PhotoPairs(folders, data.scenes.size, seed, max(1, len(folders) // 10))


def predict_disparity(model: CroCo, left: Tensor, right: Tensor) -> Tensor:
    """Return the disparity in pixels, (B, H, W); the model predicts it in units of a patch."""
    disparity: Tensor = model(left, right)[:, 0].float() * model.config.patch
    return disparity
