"""RandAugment (Cubuk et al., 2019): each image passes through some of fourteen operations, of one magnitude."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.vision import colours
from regard.vision.geometry import affine

Strength = tuple[Tensor, Tensor]
"""For each image: how much, from 0 to 1, and a sign."""

MOST_ROTATION = 30.0
MOST_SHEAR = 0.3
MOST_TRANSLATION = 0.45
MOST_BLEND = 0.9
FEWEST_BITS = 4


def _matrix(shift: Tensor, places: dict[tuple[int, int], Tensor]) -> Tensor:
    """The matrix that moves nothing, but for some places."""
    matrix = torch.eye(2, 3, device=shift.device).repeat(len(shift), 1, 1)
    for (row, column), value in places.items():
        matrix[:, row, column] = value
    return matrix


def _rotate(images: Tensor, strength: Strength) -> Tensor:
    angle = torch.deg2rad(strength[0] * strength[1] * MOST_ROTATION)
    cos, sin = angle.cos(), angle.sin()
    return _matrix(angle, {(0, 0): cos, (0, 1): -sin, (1, 0): sin, (1, 1): cos})


def _shear(row: int, column: int) -> Callable[[Tensor, Strength], Tensor]:
    def matrix(images: Tensor, strength: Strength) -> Tensor:
        shift = strength[0] * strength[1] * MOST_SHEAR
        return _matrix(shift, {(row, column): shift})

    return matrix


def _translate(row: int) -> Callable[[Tensor, Strength], Tensor]:
    def matrix(images: Tensor, strength: Strength) -> Tensor:
        shift = strength[0] * strength[1] * MOST_TRANSLATION * images.shape[3 - row]
        return _matrix(shift, {(row, 2): shift})

    return matrix


def _factor(strength: Strength) -> Tensor:
    return 1 + strength[0] * strength[1] * MOST_BLEND


MATRICES: dict[str, Callable[[Tensor, Strength], Tensor]] = {
    "rotate": _rotate,
    "shear x": _shear(0, 1),
    "shear y": _shear(1, 0),
    "translate x": _translate(0),
    "translate y": _translate(1),
}
TABLES: dict[str, Callable[[Tensor, Strength], Tensor]] = {
    "brightness": lambda images, strength: colours.brightness(images, _factor(strength)),
    "contrast": lambda images, strength: colours.contrast(images, _factor(strength)),
    "posterize": lambda images, strength: colours.posterize(images, (8 - (8 - FEWEST_BITS) * strength[0]).round()),
    "solarize": lambda images, strength: colours.solarize(images, 256 * (1 - strength[0])),
    "autocontrast": lambda images, strength: colours.autocontrast(images),
    "equalize": lambda images, strength: colours.equalize(images),
}
BLENDS: dict[str, Callable[[Tensor, Strength], Tensor]] = {
    "saturation": lambda images, strength: colours.saturation(images, _factor(strength)),
    "sharpness": lambda images, strength: colours.sharpness(images, _factor(strength)),
}
OPERATIONS = ("identity", *MATRICES, *TABLES, *BLENDS)


def operate(images: Tensor, choice: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """One operation on each image.

    Args:
        images: uint8 (B, C, H, W), on any device.
        choice: (B,), places in `OPERATIONS`; on the CPU, so that nobody waits for a GPU to know the rows of each.
        amount: (B,), from 0 to 1, on the images' device; autocontrast and equalize know no amount.
        sign: (B,), 1 or -1: which way it goes, where there are two.
    """
    result = images.clone()
    names = [OPERATIONS[number] for number in choice.tolist()]

    def part(name: str) -> tuple[Tensor, Tensor, Strength] | None:
        """The rows that pass through an operation, their images and strengths."""
        rows = [row for row, other in enumerate(names) if other == name]
        if not rows:
            return None
        index = torch.tensor(rows).to(images.device, non_blocking=True)
        return index, images[index], (amount[index], sign[index])

    moved = [(found[0], make(*found[1:])) for name, make in MATRICES.items() if (found := part(name))]
    if moved:
        index = torch.cat([rows for rows, _ in moved])
        result[index] = affine(images[index], torch.cat([matrix for _, matrix in moved]))
    looked = [(found[0], make(*found[1:])) for name, make in TABLES.items() if (found := part(name))]
    if looked:
        index = torch.cat([rows for rows, _ in looked])
        result[index] = colours.look_up(images[index], torch.cat([table for _, table in looked]))
    for name, change in BLENDS.items():
        if found := part(name):
            result[found[0]] = change(*found[1:])
    return result
