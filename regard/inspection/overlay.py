"""Draw attention maps over the image they belong to, as Pillow images.

Shapes: H heads, N tokens of a grid.
"""

from collections.abc import Collection, Mapping, Sequence

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from torch import nn

from regard.errors import UserError
from regard.inspection.image_attention import GlobalAttention, Grid, WindowAttention, global_attention, window_attention
from regard.inspection.probe import AttentionRecord, check_heads, find_attentions
from regard.models.swin import Swin
from regard.models.vit import ViT

COLOUR_MAP = "cividis"
"""Dark blue to yellow with evenly increasing brightness; readable with colour blindness."""
MIN_SIDE = 224
"""Smaller images are magnified by an integer factor to about this many pixels."""
MARGIN, CAPTION_HEIGHT = 8, 18
BOX_COLOUR = "#ff7a1a"
Floats = npt.NDArray[np.floating]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a region, as fractions of the image's width and height."""


def draw_image_attention(
    model: nn.Module,
    records: Mapping[str, AttentionRecord],
    pixels: npt.NDArray[np.uint8],
    patch: Grid | None = None,
    names: Collection[str] | None = None,
    heads: Collection[int] | None = None,
) -> Image.Image:
    """Draw an image, the attention of every layer over it, and each head of the last layer.

    For a ViT, layers are shown by the rollout of the class token (or mean) or of the given patch. A Swin attends within
    windows, so a rollout over the whole image does not apply: each layer is shown by the attention that each token
    received, or by that of the given patch. Each map is scaled to its own maximum.

    Args:
        records: What `probe` recorded of all attention modules for this image.
        pixels: The image as the model received it, (height, width, channels).
        patch: Row and column of the patch whose attention is drawn.
        names: Attention modules to draw instead, such as "encoder.3.attention": the mean of their heads, and each head.
    """
    if not isinstance(model, ViT | Swin):
        raise UserError("attention can be drawn over images for ViT and Swin only; use regard.probe for other models")
    all_names = list(records)
    attentions = find_attentions(model, names or all_names[-1:])
    for name, attention in attentions.items():
        check_heads(name, attention, heads or ())
    selected = [all_names.index(name) for name in names] if names else None
    boxes: dict[str, list[Box]] = {}
    if isinstance(model, ViT):
        attention_maps = _vit_maps(global_attention(model, records, patch), selected, heads)
        maps = {title: values.reshape(model.config.grid) for title, values in attention_maps.items()}
        if patch is not None:
            boxes = {title: [_cell_box(patch, patch, model.config.grid)] for title in ("image", *maps)}
    else:
        layers = window_attention(model, records, pixels.shape[:2], patch)
        maps, boxes = _swin_maps(layers, selected, heads, model.config.patch, pixels.shape[:2])
    scaled = {title: values / max(float(values.max()), 1e-12) for title, values in maps.items()}
    return overlays(pixels if pixels.shape[2] == 3 else pixels[..., 0], scaled, boxes=boxes)


def overlay(
    image: npt.NDArray[np.uint8], weights: Floats, opacity: float = 0.6, largest: float | None = None
) -> Image.Image:
    """Blend an image with a map; larger weights are brighter and yellower.

    Args:
        image: (height, width) grey or (height, width, 3) colour.
        weights: (rows, columns) of any size, not negative.
        opacity: Opacity of the map: 0 shows only the image, 1 only the map.
        largest: Weight drawn with full brightness. Defaults to the largest of this map.
    """
    if weights.ndim != 2 or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"a map must be (rows, columns) of finite, non-negative weights, not {weights.shape}")
    picture = enlarge(image)
    maximum = float(weights.max()) if largest is None else largest
    shares = np.clip(weights / maximum, 0, 1) if maximum > 0 else np.zeros_like(weights)
    smooth = Image.fromarray(shares.astype(np.float32)).resize(picture.size, Image.Resampling.BILINEAR)
    coloured = matplotlib.colormaps[COLOUR_MAP](np.asarray(smooth), bytes=True)[..., :3]
    return Image.blend(picture, Image.fromarray(coloured), opacity)


def overlays(
    image: npt.NDArray[np.uint8],
    maps: Mapping[str, Floats],
    columns: int = 4,
    boxes: Mapping[str, Sequence[Box]] | None = None,
) -> Image.Image:
    """Draw a sheet with the image and each map over it under its title, all on one scale.

    Args:
        image: (height, width) grey or (height, width, 3) colour.
        maps: Maps by title, (rows, columns) each.
        columns: Number of panels per row.
        boxes: Regions to outline, by title of the map, or "image".
    """
    largest = max((float(weights.max()) for weights in maps.values()), default=0.0)
    panels = {"image": enlarge(image)}
    panels |= {title: overlay(image, weights, largest=largest) for title, weights in maps.items()}
    for title, regions in (boxes or {}).items():
        for box in regions:
            _outline(panels[title], box)
    width, height = panels["image"].size
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    cell_width, cell_height = width + MARGIN, height + CAPTION_HEIGHT + MARGIN
    sheet = Image.new("RGB", (columns * cell_width + MARGIN, rows * cell_height + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (title, panel) in enumerate(panels.items()):
        x = MARGIN + index % columns * cell_width
        y = MARGIN + index // columns * cell_height
        draw.text((x, y), title, fill="black")
        sheet.paste(panel, (x, y + CAPTION_HEIGHT))
    return sheet


def enlarge(image: npt.NDArray[np.uint8]) -> Image.Image:
    """Convert an array to an RGB image, repeating the pixels of small images."""
    picture = Image.fromarray(image).convert("RGB")
    factor = max(1, round(MIN_SIDE / max(picture.size)))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def _vit_maps(
    attention: GlobalAttention, layers: Sequence[int] | None, heads: Collection[int] | None
) -> dict[str, Floats]:
    """Return maps (N,) by title: the selected layers, or the rollout up to every layer and the last layer's heads."""
    if layers is None:
        last = len(attention.heads) - 1
        maps = {f"up to layer {layer}": values for layer, values in enumerate(attention.rollout)}
        return maps | _head_maps(f"layer {last}", attention.heads[last], heads)
    maps = {}
    for layer in layers:
        maps[f"layer {layer}"] = attention.heads[layer].mean(0)
        maps |= _head_maps(f"layer {layer}", attention.heads[layer], heads)
    return maps


def _swin_maps(
    layers: Sequence[WindowAttention],
    selected: Sequence[int] | None,
    heads: Collection[int] | None,
    patch_size: Grid,
    image: Grid,
) -> tuple[dict[str, Floats], dict[str, list[Box]]]:
    """Return maps in pixels, because the grids of stages differ and may exceed the image, and boxes, by title."""
    maps: dict[str, Floats] = {}
    boxes: dict[str, list[Box]] = {}
    for layer in layers if selected is None else [layers[index] for index in selected]:
        title = f"stage {layer.stage}, layer {layer.layer}"
        token_maps = {title: layer.heads.mean(0)}
        if selected is not None or layer is layers[-1]:
            token_maps |= _head_maps(title, layer.heads, heads)
        height, width = (size << layer.stage for size in patch_size)
        for name, weights in token_maps.items():
            maps[name] = np.kron(weights.reshape(layer.grid), np.ones((height, width)))[: image[0], : image[1]]
            if layer.patch is not None and layer.reach is not None:
                cells = (image[0] / height, image[1] / width)
                window = _cell_box(layer.reach[:2], layer.reach[2:], cells)
                token = _cell_box(layer.patch, layer.patch, cells)
                boxes[name] = [window, token]
                boxes.setdefault("image", [token])  # that of the first stage, the finest
    return maps, boxes


def _head_maps(title: str, weights: Floats, heads: Collection[int] | None) -> dict[str, Floats]:
    return {f"{title}, head {head}": weights[head] for head in range(len(weights)) if not heads or head in heads}


def _cell_box(first: Grid, last: Grid, cells: tuple[float, float]) -> Box:
    """Return the box of the cells from first to last, of an image of this many rows and columns of cells."""
    (top, left), (bottom, right), (rows, columns) = first, last, cells
    return left / columns, top / rows, min(1.0, (right + 1) / columns), min(1.0, (bottom + 1) / rows)


def _outline(picture: Image.Image, box: Box) -> None:
    left, top, right, bottom = box
    corners = (left * picture.width, top * picture.height, right * picture.width - 1, bottom * picture.height - 1)
    ImageDraw.Draw(picture).rectangle(corners, outline=BOX_COLOUR, width=2)
