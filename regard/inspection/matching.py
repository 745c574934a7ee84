"""Which patch of the other view a two-view model looks at: as numbers, and as a picture.

Shapes: B pairs, N patches of the first view, S patches of the second.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from regard.inspection.probe import probe
from regard.models.croco import CroCo

SCALE = 4
"""How much larger than its pixels a view is drawn."""


@dataclass(frozen=True)
class Attended:
    """Where in the second view the attention of each patch of the first is highest, as the mean over heads.

    Args:
        patch: row and column of that patch, (B, N, 2).
        weight: how much of the attention it gets, (B, N).
    """

    patch: Tensor
    weight: Tensor


def cross_attentions(model: CroCo) -> list[str]:
    """The names of the attentions to the other view, from the first layer to the last."""
    return [f"decoder.{layer}.cross" for layer in range(len(model.decoder))]


@torch.no_grad()
def find_attended(
    model: CroCo, view1: Tensor, view2: Tensor, seen: Tensor | None = None, names: list[str] | None = None
) -> dict[str, Attended]:
    """What each patch of the first view attends to in the second, by the name of the attention.

    Args:
        model: as it is, in training or in evaluation.
        view1: pixels between 0 and 1, (B, 3, H, W).
        view2: the same of the other view.
        seen: which patches of the first view the model sees, (B, K); all unless given.
        names: of the attentions, such as "decoder.2.cross"; all unless given.
    """
    _, columns = model.patch_embedding.grid(view2)
    with probe(model, names or cross_attentions(model)) as records:
        model.both(view1, view2, seen)
    found = {}
    for name, record in records.items():
        weight, place = record.weights.mean(1).max(-1)
        found[name] = Attended(torch.stack((place // columns, place % columns), -1), weight)
    return found


def draw_matches(
    view1: Tensor, view2: Tensor, attended: Attended, patch: int, row: int = 0, most: int = 16
) -> Image.Image:
    """Both views of a pair side by side, with lines from patches of the first to where they look in the second.

    Args:
        view1: pixels between 0 and 1, (B, 3, H, W).
        view2: the same of the other view.
        attended: what was found for them.
        patch: pixels along the edge of a patch.
        row: which pair of the batch.
        most: how many lines there are at most; those with the highest weights are drawn.
    """
    views = [to_image(view[row]) for view in (view1, view2)]
    gap = 2 * SCALE
    width = sum(view.width for view in views) + gap
    picture = Image.new("RGB", (width, max(view.height for view in views)), "white")
    offsets = (0, views[0].width + gap)
    for view, offset in zip(views, offsets, strict=True):
        picture.paste(view, (offset, 0))
    draw = ImageDraw.Draw(picture)
    columns = view1.shape[-1] // patch
    chosen = attended.weight[row].topk(min(most, attended.weight.shape[1])).indices.tolist()
    for number, index in enumerate(chosen):
        here, there = divmod(index, columns), attended.patch[row, index].tolist()
        ends = [
            (offset + (x + 0.5) * patch * SCALE, (y + 0.5) * patch * SCALE)
            for offset, (y, x) in zip(offsets, (here, there), strict=True)
        ]
        colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number / len(chosen), 0.9, 1.0))
        draw.line(ends, fill=colour, width=2)
        for x, y in ends:
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline="white")
    return picture


def to_image(pixels: Tensor, scale: int = SCALE) -> Image.Image:
    """Pixels between 0 and 1, (3, H, W), as a picture in which each is a square."""
    array = (pixels.detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.ascontiguousarray(array)).resize(
        (array.shape[1] * scale, array.shape[0] * scale), Image.Resampling.NEAREST
    )
