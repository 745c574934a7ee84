"""A map over the image that it belongs to, as a picture that Pillow can save as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

COLOURS = "cividis"
"""From dark blue to yellow: brightness rises evenly, and it looks nearly the same with and without colour blindness."""
SIDE = 224
"""Smaller pictures are enlarged, in whole steps, to about so many pixels."""
MARGIN, CAPTION = 8, 18
FRAME = "#ff7a1a"
Box = tuple[float, float, float, float]
"""A part of an image: left, top, right and bottom, as shares of its width and height."""


def overlay(
    image: npt.NDArray[np.uint8], weights: npt.NDArray[np.floating], opacity: float = 0.6, largest: float | None = None
) -> Image.Image:
    """The image with a map laid over it: the larger a weight, the brighter and yellower.

    Args:
        image: (height, width) grey or (height, width, 3) colour.
        weights: (rows, columns), of any size; none negative.
        opacity: of the map; 0 shows the image alone, 1 the map alone.
        largest: the weight that is brightest; the largest of this map unless given, so that maps can share a scale.
    """
    if weights.ndim != 2 or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"a map is (rows, columns) of finite weights, none negative, not {weights.shape}")
    picture = enlarge(image)
    top = float(weights.max()) if largest is None else largest
    share = np.clip(weights / top, 0, 1) if top > 0 else np.zeros_like(weights)
    smooth = Image.fromarray(share.astype(np.float32)).resize(picture.size, Image.Resampling.BILINEAR)
    coloured = matplotlib.colormaps[COLOURS](np.asarray(smooth), bytes=True)[..., :3]
    return Image.blend(picture, Image.fromarray(coloured), opacity)


def overlays(
    image: npt.NDArray[np.uint8],
    maps: Mapping[str, npt.NDArray[np.floating]],
    columns: int = 4,
    boxes: Mapping[str, Sequence[Box]] | None = None,
) -> Image.Image:
    """The image, then each map over it with its name above, row after row, all on one scale.

    Args:
        image: (height, width) grey or (height, width, 3) colour.
        maps: by their names, (rows, columns) each.
        columns: how many stand beside each other.
        boxes: parts to frame, by the name of the map, or of "image".
    """
    largest = max((float(weights.max()) for weights in maps.values()), default=0.0)
    panels = {"image": enlarge(image)} | {name: overlay(image, one, largest=largest) for name, one in maps.items()}
    for name, some in (boxes or {}).items():
        for box in some:
            _frame(panels[name], box)
    width, height = panels["image"].size
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    sheet = Image.new(
        "RGB", (columns * (width + MARGIN) + MARGIN, rows * (height + CAPTION + MARGIN) + MARGIN), "white"
    )
    pen = ImageDraw.Draw(sheet)
    for number, (name, panel) in enumerate(panels.items()):
        x = MARGIN + number % columns * (width + MARGIN)
        y = MARGIN + number // columns * (height + CAPTION + MARGIN)
        pen.text((x, y), name, fill="black")
        sheet.paste(panel, (x, y + CAPTION))
    return sheet


def _frame(picture: Image.Image, box: Box) -> None:
    left, top, right, bottom = box
    place = (left * picture.width, top * picture.height, right * picture.width - 1, bottom * picture.height - 1)
    ImageDraw.Draw(picture).rectangle(place, outline=FRAME, width=2)


def enlarge(image: npt.NDArray[np.uint8]) -> Image.Image:
    """The image in colour, its pixels repeated where it would be too small to look at."""
    picture = Image.fromarray(image).convert("RGB")
    times = max(1, round(SIDE / max(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
