"""Recipes of CroCo models: cross-view completion, or disparity if model.head is dense."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from regard.config import Settings
from regard.data.two_view.config import SceneSettings
from regard.errors import UserError
from regard.layers import check_image_size
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings

PRESETS = ("micro", "mini", "small", "base", "large")
HEAD_KEYS = ("head", "outputs", "head_width")
FREE_KEYS = (*HEAD_KEYS, "drop_path")
"""Keys of the model that may differ from those of the model that a run is initialised from."""


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

    data: PairDataSettings = PairDataSettings()
    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field({}, description=f"kind, preset ({', '.join(PRESETS)}) and any key of the model")
    optim: OptimSettings = OptimSettings()
    batch: PairBatchSettings = PairBatchSettings()
    completion: CompletionSettings = CompletionSettings()
    training: TrainingSettings = TrainingSettings()

    def check_model(self) -> None:
        config = self.model_settings()
        try:
            check_image_size(self.data.scenes.size, (config.patch, config.patch))
        except UserError as error:
            raise UserError(f"data.scenes.size: {error}") from None
        if config.head == "dense" and self.data.images is not None:
            raise UserError("data.images: photographs have no disparities; give data.scenes instead")

    def resolve_resumed(self, old: Self, out: Path) -> Self:
        return self if self.init.folder is None else self.changed(model=old.model | self.model)
