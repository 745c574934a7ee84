"""Preprocessing of images, as stated in config.json of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.data.images.augmentation import EvalTransform, Normalisation
from regard.data.images.datasets import Resize
from regard.data.images.decoding import Mode, Pixels, decode_image, image_to_array
from regard.errors import UserError

AnyImage = str | Path | Image.Image | npt.NDArray[np.uint8]
"""A path, a Pillow image, or an array of bytes, (height, width) or (height, width, channels)."""
VIEWS = "views"
"""Key of config.json with the height and width of the views of a CroCo model."""


class ImagePreprocessing(Settings):
    """Preprocessing of a classifier's images, and the names of its classes."""

    classes: tuple[str, ...] = Field(description="names of the classes, in the order of the model's outputs")
    size: int = Field(gt=0, description="side of the square input in pixels")
    channels: Literal[1, 3] = Field(description="3 for colour, 1 for grey")
    fit: Literal["crop", "squash"] = Field("crop", description="how an image is made square")
    interpolation: Literal["bicubic"] = Field("bicubic", description="interpolation for resizing")
    mean: tuple[float, ...] = Field(description="mean of each channel in [0, 1], which is subtracted")
    std: tuple[float, ...] = Field(description="standard deviation of each channel, by which the result is divided")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"{self.channels} channels need as many values in mean and in std")
        if min(self.std) <= 0:
            raise ValueError("std: every value must be greater than 0")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name is repeated")
        return self

    @property
    def resize(self) -> Resize:
        """Resizing of images to the input size."""
        return Resize(self.size, self.fit)

    @property
    def mode(self) -> Mode:
        """Pillow's name of the colour mode."""
        return "L" if self.channels == 1 else "RGB"

    def open(self, image: AnyImage) -> Pixels:
        """Decode and resize an image to bytes, (size, size, channels).

        Raises:
            UserError: The image cannot be read; names it.
        """
        if isinstance(image, str | Path):
            pixels = decode_image(Path(image), self.mode, min_side=self.resize.min_side)
        elif isinstance(image, Image.Image):
            pixels = image_to_array(image, self.mode, str(getattr(image, "filename", "")) or "image")
        else:
            pixels = self._check_array(image)
        return self.resize(pixels if pixels.ndim == 3 else pixels[:, :, None])

    def normalise(self, images: Sequence[Pixels], device: torch.device | str = "cpu") -> Tensor:
        """Return a batch of opened images as the model's input, (B, channels, size, size)."""
        batch = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2)
        return EvalTransform(self.size, Normalisation(self.mean, self.std))(batch)

    def _check_array(self, image: Any) -> Pixels:
        if not isinstance(image, np.ndarray):
            raise UserError(f"expected an image as a path, a Pillow image or an array, found {type(image).__name__}")
        channels = image.shape[2] if image.ndim == 3 else 1
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or channels not in (1, 3) or not image.size:
            shape = " × ".join(map(str, image.shape))
            raise UserError(
                f"an image array must be uint8 of height × width × 3 or height × width, found {shape} {image.dtype}"
            )
        if channels == self.channels:
            return image
        converted = Image.fromarray(image.reshape(image.shape[:2]) if channels == 1 else image)
        return np.asarray(converted.convert(self.mode))


def view_size(metadata: dict[str, Any], patch: int, where: str) -> tuple[int, int]:
    """Return the height and width of the views of a CroCo model from the content of config.json.

    Raises:
        UserError: They are missing, or not multiples of the patch size.
    """
    match metadata.get(VIEWS):
        case [int(height), int(width)] if height > 0 < width and not height % patch and not width % patch:
            return height, width
    raise UserError(
        f"{where}: {VIEWS} is {metadata.get(VIEWS)!r}, but must be a height and a width that are multiples of {patch}, "
        f"such as [{12 * patch}, {12 * patch}]"
    )


def open_view(path: Path, size: tuple[int, int]) -> Tensor:
    """Return the centre of an image, resized to (height, width), with pixels in [0, 1], (1, 3, H, W).

    Raises:
        ImageError: The image cannot be read; names it.
    """
    height, width = size
    fitted = ImageOps.fit(Image.fromarray(decode_image(path)), (width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)[None].float() / 255
