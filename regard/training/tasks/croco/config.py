"""What the training of a two-view model is told, beside what every run is."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from regard.config import Settings
from regard.data.two_view import SceneSettings


class PairDataSettings(Settings):
    """Where the pairs of views come from: rendered scenes, or a folder of photographs."""

    scenes: SceneSettings = Field(SceneSettings(), description="what rendered scenes are like")
    images: Path | None = Field(
        None, description="in place of scenes: a folder whose folders hold two images each, crops of which are a pair"
    )
    hold_out: int = Field(256, ge=2, description="how many pairs, never trained on, a validation looks at")


class PairBatchSettings(Settings):
    """How pairs share a step."""

    pairs: int = Field(64, gt=0, description="pairs of a batch")


class CompletionSettings(Settings):
    """How the first view is hidden."""

    mask_ratio: float = Field(
        0.9, gt=0, lt=1, description="share of the first view's patches that the model must fill in"
    )
    initial_mask_ratio: float | None = Field(
        None, gt=0, lt=1, description="the same share at the first step, where it is easier to find out what is asked"
    )
    ramp_steps: int = Field(1000, gt=0, description="batches in which the one becomes the other")
    ramp_levels: int = Field(
        6,
        ge=2,
        le=100,
        description="how many shares there are from the one to the other, both among them: each is another shape of "
        "batches, for which a recorded step is recorded anew",
    )
    drop_second_view: float = Field(
        0.1, ge=0, lt=1, description="share of the pairs with a blank second view: what one view can do by itself"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.initial_mask_ratio is not None and self.initial_mask_ratio > self.mask_ratio:
            raise ValueError(f"initial_mask_ratio {self.initial_mask_ratio} is more than mask_ratio {self.mask_ratio}")
        return self

    def mask_ratio_at(self, batch: int) -> float:
        """The share that is masked in a batch, by its number: it rises in as many equal steps as plateaus ask for."""
        if self.initial_mask_ratio is None or batch >= self.ramp_steps:
            return self.mask_ratio
        steps = self.ramp_levels - 1
        return (
            self.initial_mask_ratio
            + (self.mask_ratio - self.initial_mask_ratio) * (batch * steps // self.ramp_steps) / steps
        )
