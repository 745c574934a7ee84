"""Images as views for a model of two, which are of the size that it was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from regard.data.images.decoding import decode_image
from regard.errors import UserError

VIEWS = "views"
"""The key of config.json under which the height and width of the views stand."""


def view_size(about: dict[str, Any], patch: int, where: str) -> tuple[int, int]:
    """The height and width that config.json states for views.

    Raises:
        UserError: it states none, or none of whole patches.
    """
    match about.get(VIEWS):
        case [int(height), int(width)] if height > 0 < width and not height % patch and not width % patch:
            return height, width
    raise UserError(
        f"{where}: {VIEWS} is {about.get(VIEWS)!r}, but must be the height and width of the model's views, of whole "
        f"patches of {patch} pixels, such as [{12 * patch}, {12 * patch}]"
    )


def open_view(path: Path, size: tuple[int, int]) -> Tensor:
    """The middle of an image in this height and width, pixels between 0 and 1, (1, 3, H, W).

    Raises:
        ImageError: the image is bad; it is named.
    """
    height, width = size
    fitted = ImageOps.fit(Image.fromarray(decode_image(path)), (width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)[None].float() / 255
