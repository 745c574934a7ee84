"""Recipes of image classifiers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, SerializeAsAny, model_validator

from regard.attention.kinds import FullSettings
from regard.config import Settings
from regard.data.images.augmentation import AugmentationSettings
from regard.data.images.image_sets import ImageSettings
from regard.data.images.preprocessing import ImagePreprocessing, Resize
from regard.errors import UserError
from regard.registry import register
from regard.training.objectives.registry import Objective, ObjectiveSettings, select_objective
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings, contradiction
from regard.training.task import LossSum, Step

PRESETS = ("micro", "mini", "tiny", "small", "base", "large", "huge")


class ImageDataSettings(ImageSettings):
    """Training and validation images, and their preprocessing."""

    images: Path = Field(description="folder of class folders, folder of splits with class folders, or file of images")
    valid: Path | None = Field(None, description="validation images in the same form; default: a split, or held out")
    size: int | None = Field(None, gt=0, description="width and height in pixels; default: that of the preset")
    fit: Literal["crop", "squash"] = Field("crop", description="how an image becomes square: centre crop, or squashed")
    mean: tuple[float, ...] | None = Field(None, description="mean of each channel from 0 to 1; default: measured")
    std: tuple[float, ...] | None = Field(None, description="standard deviation of each channel; default: measured")
    store: Path | None = Field(
        None, description="folder of decoded images, shared by several runs; default: in the run"
    )


class ImageOptimSettings(OptimSettings):
    """Optimizer settings with the usual defaults of Vision Transformers."""

    schedule: Literal["noam", "inverse-sqrt", "cosine", "constant"] = Field(
        "cosine", description="learning rate schedule after the warm-up"
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="betas of AdamW")
    eps: float = Field(1e-8, gt=0, description="epsilon of AdamW")
    weight_decay: float = Field(0.05, ge=0, description="decay of matrices; vectors and embeddings are not decayed")


class ImageBatchSettings(Settings):
    """Size of batches."""

    images: int = Field(256, gt=0, description="images per batch")


class ClassifierTrainingSettings(TrainingSettings):
    """Duration, device, precision, validation and checkpoints."""

    monitor: Literal["auto", "accuracy", "loss", "last"] = Field(
        "auto", description="score that selects the best model; auto: accuracy; last: the newest model"
    )

    @model_validator(mode="after")
    def _check_monitor(self) -> Self:
        if self.monitor == "last" and self.patience is not None:
            raise ValueError(
                "patience has no effect with monitor=last, for which every validation is the best; omit it"
            )
        return self

    @property
    def keeps_newest(self) -> bool:
        return self.monitor == "last"


@register
class CrossEntropySettings(ObjectiveSettings):
    """Cross-entropy with the target probabilities, which include label smoothing and mixed images."""

    task = "classification"

    kind: Literal["cross-entropy"] = "cross-entropy"

    def build(self, recipe: Any, config: Any) -> Objective:
        return CrossEntropy()


class CrossEntropy(Objective):
    """Computes the cross-entropy of a batch."""

    def loss(self, model: Any, batch: Any, step: Step) -> LossSum:
        logits = model(batch.images).float()
        return LossSum(F.cross_entropy(logits, batch.targets, reduction="sum"), len(batch))


class ClassificationRecipe(Recipe):
    """Settings of a training run of a classifier."""

    presets, default_preset = PRESETS, "mini"
    derived: ClassVar[Mapping[str, str]] = {
        "classes": "the images",
        "channels": "the images and data.channels",
        "image": "data.size",
    }
    captured_by_default = True

    data: ImageDataSettings = Field(description="the images: a folder of class folders")
    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field({}, description=f"kind, preset ({', '.join(PRESETS)}) and any key of the model")
    optim: ImageOptimSettings = ImageOptimSettings()
    batch: ImageBatchSettings = ImageBatchSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    objective: Annotated[SerializeAsAny[CrossEntropySettings], select_objective(CrossEntropySettings)] = (
        CrossEntropySettings()
    )
    training: ClassifierTrainingSettings = ClassifierTrainingSettings()

    def check_model(self) -> None:
        self.objective.check_model(self.model_settings())

    def capture_obstacle(self, device: torch.device) -> str | None:
        if obstacle := super().capture_obstacle(device):
            return obstacle
        attention = getattr(self.model_settings(), "attention", FullSettings())
        return None if attention.kind == "full" else f"{attention.kind} attention"

    def model_settings(self, classes: int = 2, channels: int | None = None) -> Any:
        """Return the configuration of the model; `classes` is arbitrary before the data is known."""
        size = {} if self.data.size is None else {"image": self.data.size}
        return self._build_config(classes=classes, channels=channels or self.data.channels or 3, **size)

    @property
    def preset(self) -> str:
        """Name of the preset that defines the defaults of the model."""
        return str(self.model.get("preset", self.default_preset))

    @property
    def resize(self) -> Resize:
        """How images are resized."""
        return Resize(self.model_settings().image[0], self.data.fit)

    def complete(self, model: Mapping[str, Any], preprocessing: ImagePreprocessing, where: str) -> Self:
        """Return the recipe with the settings of the model that the run is initialised from, in the folder `where`."""
        if model["kind"] != self.kind:
            raise UserError(f"model.kind: {where} has kind {model['kind']}, not {self.kind}; set model.kind")
        if self.data.channels not in (None, preprocessing.channels):
            raise contradiction("data.channels", self.data.channels, preprocessing.channels, where)
        taken = {"channels": preprocessing.channels, "size": self.data.size or preprocessing.size}
        taken |= {key: getattr(self.data, key) or getattr(preprocessing, key) for key in ("mean", "std")}
        return self.with_group("data", **taken).with_model(model, where)

    def resolve_resumed(self, old: Self, out: Path) -> Self:
        if self.init.folder is None or old.init.folder is None:
            return self
        data = old.data
        values = {"classes": (), "size": data.size, "channels": data.channels, "mean": data.mean, "std": data.std}
        return self.complete(old.model, ImagePreprocessing.parse(values, str(out)), str(out))

    def fixed_settings(self) -> dict[str, Any]:
        return super().fixed_settings() | {"data.size": self.resize.size}
