"""What the layers of an image model looked at, patch by patch: a ViT's over the whole image, a Swin's within windows.

Shapes: L layers, H heads, N tokens of a grid, row after row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.inspection.maps import given_by, layers_of, received, rollout, seen_from
from regard.inspection.probe import Seen
from regard.models.swin import Swin
from regard.models.vit import ViT

Floats = npt.NDArray[np.floating]
Grid = tuple[int, int]


@dataclass(frozen=True)
class Spanning:
    """What the answer, or one patch, looked at over the whole image.

    Attributes:
        owed: what it owes to each patch up to every layer, by rollout, (L, N).
        heads: what each head of every layer looked at, (L, H, N).
    """

    owed: Floats
    heads: Floats


@dataclass(frozen=True)
class Windowed:
    """What a layer of windows looked at.

    Attributes:
        stage: in which the layer stands, from 0; from one to the next, four tokens become one.
        layer: its number within the stage.
        grid: rows and columns of the stage's tokens.
        heads: how much each token got from its window by each head, or what one token gave to the others, (H, N).
        patch: the row and column of that one, if it is one.
        reach: the first row and column that it may look at, and the last.
    """

    stage: int
    layer: int
    grid: Grid
    heads: Floats
    patch: Grid | None = None
    reach: tuple[int, int, int, int] | None = None


def span(model: ViT, seen: Mapping[str, Seen], patch: Grid | None = None) -> Spanning:
    """What one patch of an image, or the answer, looked at.

    Raises:
        UserError: there is no such patch.
    """
    layers = layers_of(seen)
    leading, columns = model.config.leading, model.config.grid[1]
    check_patch(patch, model.config.grid)

    def pick(weights: Floats) -> Floats:
        """Of (…, T, T), the row that is asked about, over the patches alone."""
        if patch is not None:
            row = weights[..., leading + patch[0] * columns + patch[1], :]
        elif model.config.pooling == "class":
            row = weights[..., 0, :]
        else:
            row = weights[..., leading:, :].mean(-2)
        return row[..., leading:]

    owed = np.stack([pick(rollout(layers[: last + 1]))[0] for last in range(len(layers))])
    return Spanning(owed, np.stack([pick(layer)[0] for layer in layers]))


def within_windows(model: Swin, seen: Mapping[str, Seen], image: Grid, patch: Grid | None = None) -> list[Windowed]:
    """What every layer looked at in an image of this height and width, first layer first.

    Args:
        model: what saw the image.
        seen: what `probe` saw of all of its attentions.
        image: height and width in pixels.
        patch: row and column of the first stage, whose token is asked about in every layer; else how much each got.

    Raises:
        UserError: there is no such patch.
    """
    check_patch(patch, patches_of(model, image))
    cuts = model.windows(image)
    shown = []
    rows, columns = patches_of(model, image)
    for stage, layers in enumerate(model.config.layers):
        if stage:
            rows, columns = -(-rows // 2), -(-columns // 2)
        for layer in range(layers):
            name = f"stages.{stage}.blocks.{layer}.attention"
            weights, cut = seen[name].weights.float().cpu().numpy(), cuts[name]
            if patch is None:
                shown.append(Windowed(stage, layer, (rows, columns), received(weights, cut)))
                continue
            row, column = patch[0] >> stage, patch[1] >> stage
            token = row * columns + column
            given = given_by(token, weights, cut)
            reach = seen_from(token, cut, columns)
            shown.append(Windowed(stage, layer, (rows, columns), given, (row, column), reach))
    return shown


def patches_of(model: ViT | Swin, image: Grid) -> Grid:
    """Rows and columns of the patches that an image of this height and width is cut into."""
    rows, columns = (-(-size // part) for size, part in zip(image, model.config.patch, strict=True))
    return rows, columns


def check_patch(patch: Grid | None, grid: Grid) -> None:
    """Does nothing where the grid has such a patch.

    Raises:
        UserError: it has none.
    """
    if patch is not None and not all(0 <= place < size for place, size in zip(patch, grid, strict=True)):
        raise UserError(
            f"patch {patch[0]},{patch[1]} is not in this image; its rows are 0 to {grid[0] - 1}, "
            f"its columns 0 to {grid[1] - 1}"
        )
