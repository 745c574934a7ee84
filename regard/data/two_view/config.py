"""What rendered scenes are like."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from regard.config import Settings


class SceneSettings(Settings):
    """What rendered scenes are like. Lengths are in the unit of the room, which is about eight across."""

    size: tuple[int, int] = Field((64, 64), description="height and width of the views in pixels")
    objects: int = Field(6, ge=0, le=64, description="boxes and panels in the room")
    wavelength: tuple[float, float] = Field((0.5, 2.0), description="of the textures, shortest and longest")
    sharpness: float = Field(2.0, gt=0, description="how hard the edges of stripes, checks and blobs are")
    shading: bool = Field(True, description="whether a light makes faces of other directions brighter or darker")
    fov: float = Field(60.0, gt=1, lt=170, description="degrees that the width of a view covers")
    max_baseline: float = Field(1.0, ge=0, le=1.2, description="the largest distance between the two cameras")
    max_turn: float = Field(10.0, ge=0, le=60, description="degrees that the second camera looks aside at the most")
    max_roll: float = Field(5.0, ge=0, le=180, description="degrees that the second camera is tilted at the most")
    gradual: bool = Field(
        False, description="whether pairs of all degrees are mixed, from the same view twice to as far as is allowed"
    )
    disjoint: float = Field(0.05, ge=0, le=1, description="share of the pairs whose views have nothing in common")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.size) < 1:
            raise ValueError(f"size: a view has at least one pixel, not {self.size[0]} × {self.size[1]}")
        if not 0 < self.wavelength[0] <= self.wavelength[1]:
            raise ValueError(f"wavelength: the shortest comes first and is above 0, not {list(self.wavelength)}")
        return self
