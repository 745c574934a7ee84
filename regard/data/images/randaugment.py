"""RandAugment (Cubuk et al., 2019): fourteen random operations on images.

A batch needs only three steps: an affine transform, a lookup table and a blend, with parameters that have no effect on
images for which an operation of another step was drawn. On a GPU, few large steps are much faster than many small ones.

Shapes: B images, N operations of a step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.data.images import transforms
from regard.data.images.preprocessing import constant

MAX_ROTATION = 30.0
MAX_SHEAR = 0.3
MAX_TRANSLATION = 0.45
MAX_BLEND = 0.9
MIN_BITS = 4
FILL = 128
"""Value of pixels that are taken from outside the image."""
AFFINE = ("rotate", "shear x", "shear y", "translate x", "translate y")
TABLE = ("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize")
BLEND = ("saturation", "sharpness")
OPERATIONS = ("identity", *AFFINE, *TABLE, *BLEND)
Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Takes images, the selected operations (N, B), the amount (B,) and the signed amount (B,)."""


def rand_augment(
    images: Tensor, operations: Tensor, amount: Tensor, sign: Tensor, all_images: bool | None = None
) -> Tensor:
    """Apply one operation to each image.

    Args:
        operations: Indices in `OPERATIONS`, (B,). All tensors are on the same device.
        amount: Strength from 0 to 1, (B,); autocontrast and equalize ignore it.
        sign: 1 or -1, (B,): direction of operations that have one.
        all_images: Whether every step processes all images instead of the selected ones, by default on a GPU, where a
            selection would need a synchronisation. The results are equal.
    """
    all_images = images.device.type != "cpu" if all_images is None else all_images
    selected_NB = operations == constant(tuple(range(len(OPERATIONS))), images.device)[:, None]
    steps: tuple[tuple[tuple[str, ...], Step], ...] = ((AFFINE, _affine), (TABLE, _table), (BLEND, _blend))
    for names, step in steps:
        first = OPERATIONS.index(names[0])
        selected = selected_NB[first : first + len(names)]
        if all_images:
            changed = step(images, selected, amount, amount * sign)
            images = torch.where(selected.any(0)[:, None, None, None], changed, images)
        elif len(rows := selected.any(0).nonzero()[:, 0]):
            changed = step(images[rows], selected[:, rows], amount[rows], (amount * sign)[rows])
            images = images.index_copy(0, rows, changed)
    return images


def _affine(images: Tensor, selected: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    height, width = images.shape[2:]
    maximum = (MAX_ROTATION, MAX_SHEAR, MAX_SHEAR, MAX_TRANSLATION * width, MAX_TRANSLATION * height)
    rotation, shear_x, shear_y, right, down = selected * signed * constant(maximum, images.device)[:, None]
    angle = torch.deg2rad(rotation)
    cos, sin = angle.cos(), angle.sin()
    matrices = torch.stack((cos, shear_x - sin, right, shear_y + sin, cos, down), 1).view(-1, 2, 3)
    return transforms.affine(images, matrices, FILL)


def _table(images: Tensor, selected: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    brightness, contrast, posterize, solarize, autocontrast, equalize = selected
    mean = transforms.mean_grey(images) * contrast
    table = transforms.scale_table(transforms.identity_table(images), mean, _factor(brightness | contrast, signed))
    table = transforms.posterize_table(table, (8 - (8 - MIN_BITS) * amount * posterize).round())
    table = transforms.solarize_table(table, 256 * (1 - amount * solarize))
    table = torch.where(autocontrast[:, None, None], transforms.autocontrast_table(images), table)
    table = torch.where(equalize[:, None, None], transforms.equalize_table(images), table)
    return transforms.apply_table(images, table)


def _blend(images: Tensor, selected: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    saturation, _ = selected
    base = torch.where(saturation[:, None, None, None], transforms.grey(images), transforms.smooth(images))
    return transforms.blend(base, images, _factor(selected.any(0), signed))


def _factor(selected: Tensor, signed: Tensor) -> Tensor:
    """Return the enhancement factor, which is 1 (no effect) for images that are not selected."""
    return 1 + MAX_BLEND * signed * selected
