"""How a model reads images, as config.json says it: nothing else is needed to read them in the same way anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.data.images.augmentation import EvalTransform, Normalisation
from regard.data.images.datasets import Resize
from regard.data.images.decoding import Mode, Pixels, decode_image, image_to_array
from regard.errors import UserError

AnyImage = str | Path | Image.Image | npt.NDArray[np.uint8]
"""A path, an image of Pillow, or an array of bytes: (height, width) or (height, width, channels)."""


class ImagePreprocessing(Settings):
    """What an image goes through before a model sees it, and what the model's classes are called."""

    classes: tuple[str, ...] = Field(description="names of the classes, in the order of the model's outputs")
    size: int = Field(gt=0, description="pixels of each side of the square that the model sees")
    channels: Literal[1, 3] = Field(description="3 for colour, 1 for grey")
    fit: Literal["crop", "squash"] = Field("crop", description="how an image becomes a square")
    interpolation: Literal["bicubic"] = Field("bicubic", description="how it is resized")
    mean: tuple[float, ...] = Field(description="of each channel, on a scale from 0 to 1, which is taken away")
    std: tuple[float, ...] = Field(description="of each channel, by which the rest is divided")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"{self.channels} channels need as many numbers in mean and in std")
        if min(self.std) <= 0:
            raise ValueError("std: every number must be more than 0")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name stands twice")
        return self

    @property
    def resize(self) -> Resize:
        """The size that every image is resized to."""
        return Resize(self.size, self.fit)

    @property
    def mode(self) -> Mode:
        """Colour or grey, as Pillow calls it."""
        return "L" if self.channels == 1 else "RGB"

    def open(self, image: AnyImage) -> Pixels:
        """An image as the bytes that the model sees: (size, size, channels).

        Raises:
            UserError: it is bad, or not what an image can be given as; it is named where it has a name.
        """
        if isinstance(image, str | Path):
            pixels = decode_image(Path(image), self.mode, min_side=self.resize.min_side)
        elif isinstance(image, Image.Image):
            pixels = image_to_array(image, self.mode, str(getattr(image, "filename", "")) or "image")
        else:
            pixels = self._check_array(image)
        return self.resize(pixels if pixels.ndim == 3 else pixels[:, :, None])

    def normalise(self, images: Sequence[Pixels], device: torch.device | str = "cpu") -> Tensor:
        """A batch as the model takes it, (B, channels, size, size)."""
        together = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2)
        return EvalTransform(self.size, Normalisation(self.mean, self.std))(together)

    def _check_array(self, image: Any) -> Pixels:
        if not isinstance(image, np.ndarray):
            raise UserError(f"an image is a path, an image of Pillow or an array, not {type(image).__name__}")
        channels = image.shape[2] if image.ndim == 3 else 1
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or channels not in (1, 3) or not image.size:
            shape = " × ".join(map(str, image.shape))
            raise UserError(
                f"an array of {shape} {image.dtype}: an image is bytes (uint8), height × width × 3, or height × width"
            )
        if channels == self.channels:
            return image
        plain = Image.fromarray(image.reshape(image.shape[:2]) if channels == 1 else image)
        return np.asarray(plain.convert(self.mode))
