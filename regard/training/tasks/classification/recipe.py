"""What a recipe says about training a classifier of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from regard.config import Settings, unknown_key_message
from regard.data.images.augmentation import AugmentationSettings
from regard.data.images.datasets import Resize
from regard.data.images.image_sets import ImageSettings
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings

PRESETS = ("micro", "mini", "tiny", "small", "base", "large", "huge")
DEFAULT_PRESET = "mini"
FROM_DATA = {"classes": "the images", "channels": "the images and data.channels", "image": "data.size"}


class ImageDataSettings(ImageSettings):
    """Where the images come from, and what they are brought to."""

    images: Path = Field(description="a folder of class folders, or of splits with class folders, or a file of images")
    valid: Path | None = Field(None, description="images to validate with, in the same form; else a split, or held out")
    size: int | None = Field(None, gt=0, description="pixels of a side; the preset's unless given, such as 32 or 224")
    fit: Literal["crop", "squash"] = Field(
        "crop", description="how an image becomes a square: its middle, or all of it"
    )
    mean: tuple[float, ...] | None = Field(None, description="of each channel, from 0 to 1; measured unless given")
    std: tuple[float, ...] | None = Field(None, description="of each channel; measured unless given")
    store: Path | None = Field(None, description="a folder for decoded images that several runs share; else the run's")


class ImageOptimSettings(OptimSettings):
    """How weights move; the defaults are those of Vision Transformers."""

    schedule: Literal["noam", "inverse-sqrt", "cosine", "constant"] = "cosine"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.05, ge=0)


class ImageBatchSettings(Settings):
    """How images share a step."""

    images: int = Field(256, gt=0, description="images of a batch")


class ClassifierTrainingSettings(TrainingSettings):
    """How long, where, and how often to look at how much is told apart."""

    monitor: Literal["auto", "accuracy", "loss", "last"] = Field(
        "auto", description="which score tells the best model; auto: the accuracy; last: none, the newest is the best"
    )

    @model_validator(mode="after")
    def _check_monitor(self) -> Self:
        if self.monitor == "last" and self.patience is not None:
            raise ValueError("patience waits for a better validation, and with monitor=last every one is; omit it")
        return self

    @property
    def keeps_newest(self) -> bool:
        return self.monitor == "last"


class ClassificationRecipe(Recipe):
    """A whole training run of a classifier."""

    data: ImageDataSettings = Field(description="the images: a folder of class folders")
    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field(
        {}, description=f"kind, preset ({', '.join(PRESETS)}) and any key of the model to change"
    )
    optim: ImageOptimSettings = ImageOptimSettings()
    batch: ImageBatchSettings = ImageBatchSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    training: ClassifierTrainingSettings = ClassifierTrainingSettings()

    def check_model(self) -> None:
        """Refuses keys that the model does not have.

        Raises:
            UserError: the first that is wrong.
        """
        self.model_config_for(2, self.data.channels or 3)

    def model_config_for(self, classes: int, channels: int) -> Any:
        """The model's configuration, once it is known what there is to tell apart.

        Raises:
            UserError: the model has no such key or preset, or a value is wrong.
        """
        configs = MODELS[self.kind].config
        changes = {key: value for key, value in self.model.items() if key != "preset"}
        preset = self.model.get("preset", DEFAULT_PRESET)
        presets = [name for name in PRESETS if hasattr(configs, name)]
        if preset not in presets:
            raise UserError(f"model.preset: {preset!r} is not one of {', '.join(presets)}")
        known = ["preset", *(key for key in configs.model_fields if key not in FROM_DATA)]
        for key in changes:
            if key in FROM_DATA:
                raise UserError(f"model.{key}: follows from {FROM_DATA[key]}, so a recipe cannot set it here")
            if key not in known:
                raise UserError(unknown_key_message(f"model.{key}", [f"model.{name}" for name in known]))
        size = {} if self.data.size is None else {"image": self.data.size}
        try:
            return getattr(configs, preset)(classes, channels=channels, **size, **changes)
        except UserError as error:
            raise UserError(str(error).replace(f"{configs.__name__}: ", "model: ", 1)) from None

    @property
    def resize(self) -> Resize:
        """What every image is brought to."""
        return Resize(self.model_config_for(2, self.data.channels or 3).image[0], self.data.fit)
