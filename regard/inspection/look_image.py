"""An image's classification as a picture: over the image, what the answer or a patch looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.errors import UserError
from regard.inspection.overlay import Box, overlays
from regard.inspection.patches import GlobalAttention, Grid, WindowAttention, global_attention, window_attention
from regard.inspection.probe import probe
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier

Floats = npt.NDArray[np.floating]


def draw_image_attention(
    classifier: Classifier,
    path: Path,
    patch: Grid | None = None,
    names: Collection[str] | None = None,
    heads: Collection[int] | None = None,
) -> Image.Image:
    """The image, and over it what every layer looked at, then each head of the last layer.

    Of a ViT, layers are shown by what the answer, or the patch of this row and column, owes to each patch up to them
    (rollout). A Swin looks within windows, so that nothing adds up over the whole image: shown is how much each token
    of a layer got from its window, or what that of the patch gave. Each map has its own scale, from 0 to its largest.

    Args:
        classifier: of a ViT or a Swin.
        path: the image.
        patch: row and column of the patch that is asked about, in place of the answer.
        names: of the attentions to show instead, such as "encoder.3.attention", each as the mean of its heads and head
            by head.
        heads: which of them; all unless given.

    Raises:
        UserError: the image is bad, has no such patch, or the model is neither or has no such attention or head.
    """
    model = classifier.model
    if not isinstance(model, ViT | Swin):
        raise UserError("only what a ViT or a Swin looks at is drawn over an image; see others with regard.probe")
    pixels = classifier.preprocessing.open(path)
    with probe(model) as seen:
        classifier.predict([pixels])
    chosen = _choose(names, list(seen))
    boxes: dict[str, list[Box]] = {}
    if isinstance(model, ViT):
        attention, grid = global_attention(model, seen, patch), model.config.grid
        maps = {name: one.reshape(grid) for name, one in _draw_spanning(attention, chosen, heads)}
        if patch is not None:
            boxes = {name: [_box(patch, patch, grid)] for name in ("image", *maps)}
    else:
        layers = window_attention(model, seen, pixels.shape[:2], patch)
        maps, boxes = _draw_windows(layers, chosen, heads, model, pixels.shape[:2])
    shown = {name: one / max(float(one.max()), 1e-12) for name, one in maps.items()}
    return overlays(pixels if pixels.shape[2] == 3 else pixels[..., 0], shown, boxes=boxes)


def _choose(names: Collection[str] | None, known: list[str]) -> list[int] | None:
    """The numbers of the layers that are named; none where nothing is.

    Raises:
        UserError: there is no such one.
    """
    for name in names or ():
        if name not in known:
            raise UserError(f"--only {name}: this model's attentions are {', '.join(known)}")
    return [known.index(name) for name in names] if names else None


def _each_head(title: str, weights: Floats, heads: Collection[int] | None) -> Iterator[tuple[str, Floats]]:
    """The maps of a layer's heads, (H, N), or of some of them.

    Raises:
        UserError: there is no such head.
    """
    for head in heads or ():
        if head >= len(weights):
            raise UserError(f"--head {head}: {title} has heads 0 to {len(weights) - 1}")
    for head, one in enumerate(weights):
        if not heads or head in heads:
            yield f"{title}, head {head}", one


def _draw_spanning(
    attention: GlobalAttention, chosen: list[int] | None, heads: Collection[int] | None
) -> Iterator[tuple[str, Floats]]:
    """Maps of whole layers and of heads, with their titles."""
    if chosen is None:
        yield from ((f"up to layer {layer}", values) for layer, values in enumerate(attention.rollout))
        yield from _each_head(f"layer {len(attention.heads) - 1}", attention.heads[-1], heads)
    for layer in chosen or ():
        yield f"layer {layer}", attention.heads[layer].mean(0)
        yield from _each_head(f"layer {layer}", attention.heads[layer], heads)


def _draw_windows(
    layers: list[WindowAttention], chosen: list[int] | None, heads: Collection[int] | None, model: Swin, image: Grid
) -> tuple[dict[str, Floats], dict[str, list[Box]]]:
    """Maps in pixels, since stages differ in their grids and may go beyond the image; and what to frame on them."""
    maps: dict[str, Floats] = {}
    boxes: dict[str, list[Box]] = {}
    shown: list[tuple[str, WindowAttention, Floats]] = []
    for one in layers if chosen is None else [layers[number] for number in chosen]:
        title = f"stage {one.stage}, layer {one.layer}"
        shown.append((title, one, one.heads.mean(0)))
        if chosen is not None or one is layers[-1]:
            shown += [(name, one, weights) for name, weights in _each_head(title, one.heads, heads)]
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
