"""Cross-view attention of a two-view model (CroCo), as numbers and as images.

Shapes: B pairs, N patches of the first view, K visible patches.
"""

import colorsys
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from regard.errors import UserError
from regard.inspection.image_attention import Grid, check_patch
from regard.inspection.probe import probe
from regard.models.croco import CroCo

SCALE = 4
"""Magnification of the views in `draw_matches`."""


@dataclass(frozen=True)
class AttentionPeaks:
    """The second-view patch with the highest attention of each first-view patch, averaged over heads.

    Attributes:
        patch: Row and column of that patch, (B, N, 2).
        weight: Its attention weight, (B, N).
    """

    patch: Tensor
    weight: Tensor


def cross_attention_names(model: CroCo) -> list[str]:
    """Return the names of the attention modules to the other view, first layer first."""
    return [f"decoder.{layer}.cross" for layer in range(len(model.decoder))]


@torch.no_grad()
def find_peaks(
    model: CroCo, view1: Tensor, view2: Tensor, visible: Tensor | None = None, names: list[str] | None = None
) -> dict[str, AttentionPeaks]:
    """Return the peak of the cross-attention of each first-view patch, by attention module.

    Args:
        model: Used in its current mode (training or evaluation).
        view1, view2: Pixels between 0 and 1, (B, 3, H, W).
        visible: Indices of the visible patches of the first view, (B, K). Defaults to all.
        names: Attention modules, such as "decoder.2.cross". Defaults to all cross-attention modules.
    """
    _, columns = model.patch_embedding.grid(view2)
    with probe(model, names or cross_attention_names(model)) as records:
        model.decode_views(view1, view2, visible)
    peaks = {}
    for name, record in records.items():
        weight, patch = record.weights.mean(1).max(-1)  # of the second view
        peaks[name] = AttentionPeaks(torch.stack((patch // columns, patch % columns), -1), weight)
    return peaks


def draw_peaks(
    model: CroCo, view1: Tensor, view2: Tensor, names: list[str] | None = None, patch: Grid | None = None
) -> tuple[Image.Image, str]:
    """Draw the matches of the cross-attention module with the highest mean peak, and return its name.

    Args:
        view1, view2: Pixels between 0 and 1, (1, 3, H, W).
        names: Cross-attention modules to choose from. Defaults to all.
        patch: Row and column of the only patch whose match is drawn. Defaults to those with the highest weights.
    """
    rows, columns = model.patch_embedding.grid(view1)
    check_patch(patch, (rows, columns))
    known = cross_attention_names(model)
    for name in names or ():
        if name not in known:
            raise UserError(f"{name!r} is not a cross-attention module of this model; it has {', '.join(known)}")
    peaks_by_name = find_peaks(model, view1, view2, names=names)
    best = max(peaks_by_name, key=lambda name: float(peaks_by_name[name].weight.mean()))
    peaks = peaks_by_name[best]
    if patch is not None:
        weight = torch.full_like(peaks.weight, -1.0)
        weight[0, patch[0] * columns + patch[1]] = 1.0
        peaks = AttentionPeaks(peaks.patch, weight)
    return draw_matches(view1, view2, peaks, model.config.patch, most=16 if patch is None else 1), best


def draw_matches(
    view1: Tensor, view2: Tensor, peaks: AttentionPeaks, patch: int, row: int = 0, most: int = 16
) -> Image.Image:
    """Draw two views side by side, with lines from first-view patches to their attention peaks.

    Args:
        view1, view2: Pixels between 0 and 1, (B, 3, H, W).
        patch: Patch size in pixels.
        row: Index of the pair in the batch.
        most: Maximum number of lines; those with the highest weights are drawn.
    """
    views = [to_image(view[row]) for view in (view1, view2)]
    gap = 2 * SCALE
    canvas = Image.new("RGB", (views[0].width + gap + views[1].width, max(view.height for view in views)), "white")
    offsets = (0, views[0].width + gap)
    for view, offset in zip(views, offsets, strict=True):
        canvas.paste(view, (offset, 0))
    draw = ImageDraw.Draw(canvas)
    columns = view1.shape[-1] // patch
    strongest = peaks.weight[row].topk(min(most, peaks.weight.shape[1])).indices.tolist()
    for rank, index in enumerate(strongest):
        cells = divmod(index, columns), peaks.patch[row, index].tolist()
        ends = [
            (offset + (x + 0.5) * patch * SCALE, (y + 0.5) * patch * SCALE)
            for offset, (y, x) in zip(offsets, cells, strict=True)
        ]
        colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(rank / len(strongest), 0.9, 1.0))
        draw.line(ends, fill=colour, width=2)
        for x, y in ends:
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline="white")
    return canvas


def to_image(pixels: Tensor, scale: int = SCALE) -> Image.Image:
    """Convert pixels between 0 and 1, (3, H, W), to an image magnified without smoothing."""
    array = (pixels.detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.ascontiguousarray(array)).resize(
        (array.shape[1] * scale, array.shape[0] * scale), Image.Resampling.NEAREST
    )
