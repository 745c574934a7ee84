"""An image's classification as a picture: over the image, what the answer or a patch looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.errors import UserError
from regard.inspection.overlay import Box, overlays
from regard.inspection.probe import probe
from regard.looking.patches import Grid, Windowed, span, within_windows
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.recognition.classifier import Classifier

Floats = npt.NDArray[np.floating]


def draw_image(classifier: Classifier, path: Path, patch: Grid | None = None) -> Image.Image:
    """The image, and over it what every layer looked at, then each head of the last layer.

    Of a ViT, layers are shown by what the answer, or the patch of this row and column, owes to each patch up to them
    (rollout). A Swin looks within windows, so that nothing adds up over the whole image: shown is how much each token
    of a layer got from its window, or what that of the patch gave. Each map has its own scale, from 0 to its largest.

    Raises:
        UserError: the image is bad, has no such patch, or the model is neither.
    """
    model = classifier.model
    if not isinstance(model, ViT | Swin):
        raise UserError("only what a ViT or a Swin looks at is drawn over an image; see others with regard.probe")
    pixels = classifier.reading.open(path)
    with probe(model) as seen:
        classifier.judge([pixels])
    boxes: dict[str, list[Box]] = {}
    if isinstance(model, ViT):
        spanning, grid = span(model, seen, patch), model.config.grid
        maps = {f"up to layer {layer}": owed.reshape(grid) for layer, owed in enumerate(spanning.owed)}
        last = len(maps) - 1
        maps |= {f"layer {last}, head {head}": one.reshape(grid) for head, one in enumerate(spanning.heads[-1])}
        if patch is not None:
            boxes = {name: [_box(patch, patch, grid)] for name in ("image", *maps)}
    else:
        layers = within_windows(model, seen, pixels.shape[:2], patch)
        maps, boxes = _draw_windows(layers, model, pixels.shape[:2])
    shown = {name: one / max(float(one.max()), 1e-12) for name, one in maps.items()}
    return overlays(pixels if pixels.shape[2] == 3 else pixels[..., 0], shown, boxes=boxes)


def _draw_windows(layers: list[Windowed], model: Swin, image: Grid) -> tuple[dict[str, Floats], dict[str, list[Box]]]:
    """Maps in pixels, since stages differ in their grids and may go beyond the image; and what to frame on them."""
    maps: dict[str, Floats] = {}
    boxes: dict[str, list[Box]] = {}
    shown = [(f"stage {one.stage}, layer {one.layer}", one, one.heads.mean(0)) for one in layers]
    shown += [(f"{shown[-1][0]}, head {head}", layers[-1], map_) for head, map_ in enumerate(layers[-1].heads)]
    for name, one, weights in shown:
        height, width = (size << one.stage for size in model.config.patch)
        maps[name] = np.kron(weights.reshape(one.grid), np.ones((height, width)))[: image[0], : image[1]]
        if one.patch is not None and one.reach is not None:
            cells = (image[0] / height, image[1] / width)
            boxes[name] = [_box(one.reach[:2], one.reach[2:], cells), _box(one.patch, one.patch, cells)]
            boxes.setdefault("image", boxes[name][1:])  # as the first stage has it, the finest
    return maps, boxes


def _box(first: tuple[int, int], last: tuple[int, int], cells: tuple[float, float]) -> Box:
    """Where cells of an image of so many rows and columns lie, from the first to the last, as shares of it."""
    (top, left), (bottom, right), (rows, columns) = first, last, cells
    return left / columns, top / rows, min(1.0, (right + 1) / columns), min(1.0, (bottom + 1) / rows)
