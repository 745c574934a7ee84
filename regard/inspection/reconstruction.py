"""What a two-view model makes of what it does not see, as a picture."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from regard.inspection.matching import to_image
from regard.layers import cut_patches, join_patches
from regard.models.croco import CroCo

GAP = 4


@torch.no_grad()
def draw_reconstructions(model: CroCo, view1: Tensor, seen: Tensor, seconds: list[Tensor]) -> Image.Image:
    """A row for each pair: what is seen, what is made of it beside each of several second views, and what is there.

    Each completed patch is drawn in the mean and deviation of the true one, which the model is not asked for.

    Args:
        model: with a pixel head.
        view1: pixels between 0 and 1, (B, 3, H, W).
        seen: which patches of it the model sees, (B, K).
        seconds: second views, each as view1.

    Returns:
        The first view as it is seen; then each second view followed by the completion; then the first view.
    """
    N = cut_patches(view1, model.patch_embedding.patch).shape[1]
    known = torch.zeros(len(view1), N, dtype=torch.bool, device=view1.device).scatter(1, seen, True)
    masked = _where(model, known, view1, torch.full_like(view1, 0.85))
    columns = [masked]
    for view2 in seconds:
        completed = model.paint(model(view1, view2, seen).float(), view1)
        columns += [view2, _where(model, known, view1, completed)]
    columns.append(view1)
    pictures = [[to_image(column[row], 2) for column in columns] for row in range(len(view1))]
    width, height = pictures[0][0].size
    sheet = Image.new("RGB", ((width + GAP) * len(columns) - GAP, (height + GAP) * len(view1) - GAP), "white")
    for row, line in enumerate(pictures):
        for column, picture in enumerate(line):
            sheet.paste(picture, (column * (width + GAP), row * (height + GAP)))
    return sheet


def _where(model: CroCo, known: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The patches of one image where they are known, else those of the other."""
    size = model.patch_embedding.patch
    mixed = torch.where(known[..., None], cut_patches(one, size), cut_patches(other, size))
    return join_patches(mixed, model.patch_embedding.grid(one), size)
