"""What a training run of a two-view model is told."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from regard.config import unknown_key_message
from regard.errors import UserError
from regard.layers import check_image_size
from regard.models.croco import CroCoConfig
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings
from regard.training.tasks.croco.config import CompletionSettings, PairBatchSettings, PairDataSettings

PRESETS = ("micro", "mini", "small", "base", "large")


class CroCoRecipe(Recipe):
    """A whole training run of a two-view model: completion, or disparity where model.head is dense."""

    data: PairDataSettings = PairDataSettings()
    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field(
        {}, description="kind, preset (micro, mini, small, base or large) and any key of the model to change"
    )
    optim: OptimSettings = OptimSettings()
    batch: PairBatchSettings = PairBatchSettings()
    completion: CompletionSettings = CompletionSettings()
    training: TrainingSettings = TrainingSettings()

    def check_model(self) -> None:
        """Refuses keys that the model does not have, and views that it cannot read.

        Raises:
            UserError: the first that is wrong.
        """
        config = self.model_settings()
        try:
            check_image_size(self.data.scenes.size, (config.patch, config.patch))
        except UserError as error:
            raise UserError(f"data.scenes.size: {error}") from None
        if config.head == "dense" and self.data.images is not None:
            raise UserError("data.images: photographs come without disparities; give data.scenes instead")

    def model_settings(self) -> CroCoConfig:
        """The model's configuration.

        Raises:
            UserError: a key is unknown or a value wrong.
        """
        changes = dict(self.model)
        preset = changes.pop("preset", "mini")
        if preset not in PRESETS:
            raise UserError(f"model.preset: {preset!r} is not one of {', '.join(PRESETS)}")
        known = ["preset", *CroCoConfig.model_fields]
        for key in changes:
            if key not in known:
                raise UserError(unknown_key_message(f"model.{key}", [f"model.{name}" for name in known]))
        try:
            config: CroCoConfig = getattr(CroCoConfig, preset)(**changes)
        except UserError as error:
            raise UserError(str(error).replace("CroCoConfig: ", "model: ", 1)) from None
        return config
