"""Training of CroCo models: cross-view completion, and disparity of stereo pairs.

A pair depends only on its number, so that a position in the data is a number. Pairs from `HELD_OUT` on are reserved for
validation.

Shapes: B pairs, H height, W width, K visible patches.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import Settings
from regard.data.images.preprocessing import IMAGE_SUFFIXES, VIEWS, decode_image
from regard.data.two_view.pairs import ViewPairs, render_pairs, render_stereo
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.errors import UserError, prefix_errors
from regard.evaluation.croco import BLANK, choose_visible, masked_loss, second_views
from regard.layers import check_image_size
from regard.models.croco import CroCo
from regard.models.folder import find_model_folder, read_config, save_model, unique_tensors
from regard.training.memory import build_model, describe_size
from regard.training.progress import Progress
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings
from regard.training.task import InitialModel, LossSum, Step, Validation, copy_weights
from regard.training.tasks.simple_task import P, SimpleTask, TensorBatch, load_model_of

PRESETS = ("micro", "mini", "small", "base", "large")
HEAD_KEYS = ("head", "outputs", "head_width")
FREE_KEYS = (*HEAD_KEYS, "drop_path")
"""Keys of the model that may differ from those of the model that a run is initialised from."""
HELD_OUT = 2**40
MAX_RENDERED_PIXELS = 256 * 96 * 96
"""Number of pixels that are rendered at once, which limits the memory of the renderer."""


# Recipe


class PairDataSettings(Settings):
    """Pairs of views: rendered scenes or photographs."""

    scenes: SceneSettings = Field(SceneSettings(), description="properties of rendered scenes")
    images: Path | None = Field(
        None, description="instead of scenes: folder of folders with two photographs each, from which crops are taken"
    )
    hold_out: int = Field(256, ge=2, description="validation pairs, never used for training")


class PairBatchSettings(Settings):
    """Size of batches."""

    pairs: int = Field(64, gt=0, description="pairs per batch")


class CompletionSettings(Settings):
    """Masking of the first view."""

    mask_ratio: float = Field(0.9, gt=0, lt=1, description="fraction of the first view's patches that are masked")
    initial_mask_ratio: float | None = Field(
        None, gt=0, lt=1, description="mask ratio at the first step, which makes the task easier to learn"
    )
    ramp_steps: int = Field(1000, gt=0, description="batches over which the mask ratio rises to its final value")
    ramp_levels: int = Field(
        6,
        ge=2,
        le=100,
        description="number of different mask ratios from the initial to the final one; each is another batch shape, "
        "for which a CUDA graph is captured",
    )
    drop_second_view: float = Field(0.1, ge=0, lt=1, description="fraction of the pairs with a blank second view")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.initial_mask_ratio is not None and self.initial_mask_ratio > self.mask_ratio:
            raise ValueError(f"initial_mask_ratio {self.initial_mask_ratio} is more than mask_ratio {self.mask_ratio}")
        return self

    def mask_ratio_at(self, batch: int) -> float:
        """Return the mask ratio of a batch, which rises in equal steps."""
        if self.initial_mask_ratio is None or batch >= self.ramp_steps:
            return self.mask_ratio
        rises = self.ramp_levels - 1
        difference = self.mask_ratio - self.initial_mask_ratio
        return self.initial_mask_ratio + difference * (batch * rises // self.ramp_steps) / rises


class CroCoRecipe(Recipe):
    """Settings of a training run of a CroCo model."""

    presets, default_preset = PRESETS, "mini"
    captured_by_default = True

    data: PairDataSettings = PairDataSettings()
    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field({}, description=f"kind, preset ({', '.join(PRESETS)}) and any key of the model")
    optim: OptimSettings = OptimSettings()
    batch: PairBatchSettings = PairBatchSettings()
    completion: CompletionSettings = CompletionSettings()
    training: TrainingSettings = TrainingSettings()

    def check_model(self) -> None:
        config = self.model_settings()
        with prefix_errors("data.scenes.size"):
            check_image_size(self.data.scenes.size, (config.patch, config.patch))
        if config.head == "dense" and self.data.images is not None:
            raise UserError("data.images: photographs have no disparities; give data.scenes instead")

    def resolve_resumed(self, old: Self, out: Path) -> Self:
        return self if self.init.folder is None else self.changed(model=old.model | self.model)


# Pairs of views


PairSource = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns both views of the pairs with these numbers (B,), each (B, 3, H, W), on the device of the numbers."""


def render_in_chunks(
    render: Callable[[SceneSettings, int, Tensor], ViewPairs], settings: SceneSettings, seed: int, numbers: Tensor
) -> tuple[Tensor, Tensor, list[ViewPairs]]:
    """Render scenes in chunks of limited size; return both views, each (B, 3, H, W), and the chunks."""
    parts = torch.split(numbers, max(1, MAX_RENDERED_PIXELS // math.prod(settings.size)))
    chunks = [render(settings, seed, part) for part in parts]
    first, second = (torch.cat([chunk.views[i].image for chunk in chunks]) for i in (0, 1))
    return first, second, chunks


def take_scenes(settings: SceneSettings, seed: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return both views of rendered scenes; see `PairSource`."""
    first, second, _ = render_in_chunks(render_pairs, settings, seed, numbers)
    return first, second


class PhotoPairs:
    """Crops of photographs, at the same position in both; the last `held_out` folders are reserved for validation."""

    def __init__(self, folders: list[Path], size: tuple[int, int], seed: int, held_out: int) -> None:
        self.size, self.seed, self.training_folders = size, seed, len(folders) - held_out
        self.images = [_read_pair(folder) for folder in folders]
        for folder, images in zip(folders, self.images, strict=True):
            if images.shape[-2] < size[0] or images.shape[-1] < size[1]:
                raise UserError(
                    f"{folder}: images of {images.shape[-2]}×{images.shape[-1]} pixels are smaller than "
                    f"data.scenes.size {size[0]}×{size[1]}"
                )

    def take(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        draws = SceneRandom(self.seed, numbers)
        which, down, across = draws.uniform(0, 1, 3).T.tolist()
        height, width = self.size
        crops = []
        for number, share, y, x in zip(numbers.tolist(), which, down, across, strict=True):
            held_out = number >= HELD_OUT
            start, end = (self.training_folders, len(self.images)) if held_out else (0, self.training_folders)
            images = self.images[min(end - 1, start + int(share * (end - start)))]
            top, left = int(y * (images.shape[-2] - height + 1)), int(x * (images.shape[-1] - width + 1))
            crops.append(images[:, :, top : top + height, left : left + width])
        both = torch.stack(crops, 1).to(numbers.device).float() / 255
        return both[0], both[1]


def find_pairs(folder: Path) -> list[Path]:
    """Return the folders with two images in a folder, sorted."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; data.images contains one folder with two images per pair")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in found:
        find_images(path)
    if len(found) < 2:
        raise UserError(
            f"{folder}: {len(found)} folders with two images; training and validation need at least one each"
        )
    return found


def find_images(folder: Path) -> list[Path]:
    """Return the two images of a pair."""
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if len(images) != 2:
        raise UserError(f"{folder}: {len(images)} images; a pair is a folder with two images in alphabetical order")
    return images


def list_photographs(folder: Path | None) -> dict[str, Path]:
    """Return every photograph of a folder of pairs, by the names of its folder and file."""
    if folder is None:
        return {}
    return {f"{pair.name}/{image.name}": image for pair in find_pairs(folder) for image in find_images(pair)}


def _read_pair(folder: Path) -> Tensor:
    """Read both images of a pair, (2, 3, H, W), uint8."""
    one, other = (torch.tensor(decode_image(path)).permute(2, 0, 1) for path in find_images(folder))
    if one.shape != other.shape:
        sizes = " and ".join(f"{image.shape[1]}×{image.shape[2]}" for image in (one, other))
        raise UserError(f"{folder}: images of {sizes} pixels; both images of a pair must have the same size")
    return torch.stack((one, other))


# Task


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
        progress.print(f"pairs of {height}×{width} pixels from {origin}; {describe_size(model, device)}")
        if model.config.head == "dense":
            return DisparityTask(model, recipe, device)
        return CompletionTask(model, source, recipe, device)

    def initialise(self, initial: InitialModel) -> str:
        same_head = initial.extras
        return copy_weights(self.model, initial, new_head=not same_head)

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
        return [part for part in torch.split(numbers, max(2, self.recipe.batch.pairs)) if len(part) > 1]


class CompletionTask(CroCoTask[MaskedPairs]):
    """Reconstructs the masked patches of the first view from its visible patches and the second view."""

    def __init__(self, model: CroCo, source: PairSource, recipe: CroCoRecipe, device: torch.device) -> None:
        super().__init__(model, recipe, device)
        self.take = source

    def make_pairs(self, numbers: Tensor, batch: int) -> MaskedPairs:
        view1, view2 = self.take(numbers)
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
            view1, true = self.take(numbers)
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
        left, right, chunks = render_in_chunks(render_stereo, settings, seed, numbers)
        return StereoPairs(left, right, torch.cat([chunk.disparity() for chunk in chunks]))

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
        return partial(take_scenes, data.scenes, seed)
    folders = find_pairs(data.images)
    return PhotoPairs(folders, data.scenes.size, seed, max(1, len(folders) // 10)).take


def predict_disparity(model: CroCo, left: Tensor, right: Tensor) -> Tensor:
    """Return the disparity in pixels, (B, H, W); the model predicts it in units of a patch."""
    disparity: Tensor = model(left, right)[:, 0].float() * model.config.patch
    return disparity
