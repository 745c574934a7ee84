"""Settings of rendered scenes."""

from typing import Self

from pydantic import Field, model_validator

from regard.config import Settings


class SceneSettings(Settings):
    """Properties of rendered scenes. A room is about eight units of length across."""

    size: tuple[int, int] = Field((64, 64), description="height and width of the views in pixels")
    objects: int = Field(6, ge=0, le=64, description="number of boxes and panels in the room")
    wavelength: tuple[float, float] = Field((0.5, 2.0), description="shortest and longest wavelength of the textures")
    sharpness: float = Field(2.0, gt=0, description="sharpness of the edges of stripes, checks and blobs")
    shading: bool = Field(True, description="whether the brightness of a face depends on its direction")
    fov: float = Field(60.0, gt=1, lt=170, description="horizontal field of view in degrees")
    max_baseline: float = Field(1.0, ge=0, le=1.2, description="maximum distance between the two cameras")
    max_turn: float = Field(10.0, ge=0, le=60, description="maximum yaw and pitch of the second camera in degrees")
    max_roll: float = Field(5.0, ge=0, le=180, description="maximum roll of the second camera in degrees")
    gradual: bool = Field(False, description="whether the distance of the views varies from none to the maximum")
    disjoint: float = Field(0.05, ge=0, le=1, description="fraction of pairs whose views do not overlap")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.size) < 1:
            raise ValueError(f"size: a view must have at least one pixel, not {self.size[0]} × {self.size[1]}")
        if not 0 < self.wavelength[0] <= self.wavelength[1]:
            raise ValueError(f"wavelength: must be two numbers above 0, smaller first, not {list(self.wavelength)}")
        return self
