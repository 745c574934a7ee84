"""RandAugment (Cubuk et al., 2019): each image passes through some of fourteen operations, of one magnitude.

Every image of a batch goes through the same few passes over all of them, a table, a map and a blend, each with numbers
that change nothing where another operation was chosen: on a GPU a few large passes cost far less than many small ones.
Small images there go through a kernel, in which each takes nothing but its own operation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.data.images import transforms
from regard.data.images.transforms import affine, constant

MOST_ROTATION = 30.0
MOST_SHEAR = 0.3
MOST_TRANSLATION = 0.45
MOST_BLEND = 0.9
FEWEST_BITS = 4
FILL = 128
"""What is seen where a pixel comes from outside."""
MAPS = ("rotate", "shear x", "shear y", "translate x", "translate y")
TABLES = ("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize")
BLENDS = ("saturation", "sharpness")
Change = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Images, which operations of a pass are taken of each (operations, B), how much (B,), the same with a sign (B,)."""
OPERATIONS = ("identity", *MAPS, *TABLES, *BLENDS)


def operate(images: Tensor, choice: Tensor, amount: Tensor, sign: Tensor, whole: bool | None = None) -> Tensor:
    """One operation on each image.

    Args:
        images: uint8 (B, C, H, W), on any device.
        choice: (B,), places in `OPERATIONS`, on the images' device, like what follows.
        amount: (B,), from 0 to 1; autocontrast and equalize know no amount.
        sign: (B,), 1 or -1: which way it goes, where there are two.
        whole: Whether all images go through every pass, rather than those that need it: the results are the same. A CPU
            does less then, but a GPU would have to be asked which these are, and waited for. By default what is better,
            which for small images on a GPU is a kernel.
    """
    whole = images.device.type != "cpu" if whole is None else whole
    taken = choice == constant(tuple(range(len(OPERATIONS))), images.device)[:, None]
    signed = amount * sign
    for names, change in ((MAPS, _map), (TABLES, _look_up), (BLENDS, _blend)):
        first = OPERATIONS.index(names[0])
        images = (_change_all if whole else _change_some)(
            images, taken[first : first + len(names)], change, amount, signed
        )
    return images


def _change_all(images: Tensor, taken: Tensor, change: Change, amount: Tensor, signed: Tensor) -> Tensor:
    changed = change(images, taken, amount, signed)
    return torch.where(taken.any(0)[:, None, None, None], changed, images)


def _change_some(images: Tensor, taken: Tensor, change: Change, amount: Tensor, signed: Tensor) -> Tensor:
    rows = taken.any(0).nonzero()[:, 0]
    if not len(rows):
        return images
    return images.index_copy(0, rows, change(images[rows], taken[:, rows], amount[rows], signed[rows]))


def _map(images: Tensor, taken: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    height, width = images.shape[2:]
    most = (MOST_ROTATION, MOST_SHEAR, MOST_SHEAR, MOST_TRANSLATION * width, MOST_TRANSLATION * height)
    rotation, shear_x, shear_y, right, down = taken * signed * constant(most, images.device)[:, None]
    angle = torch.deg2rad(rotation)
    cos, sin = angle.cos(), angle.sin()
    return affine(images, torch.stack((cos, shear_x - sin, right, shear_y + sin, cos, down), 1).view(-1, 2, 3), FILL)


def _look_up(images: Tensor, taken: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    brightness, contrast, posterize, solarize, autocontrast, equalize = taken
    mean = transforms.mean_grey(transforms.grey(images)) * contrast
    table = transforms.scale(transforms.values(images), mean, _factor(brightness | contrast, signed))
    table = transforms.posterize(table, (8 - (8 - FEWEST_BITS) * amount * posterize).round())
    table = transforms.solarize(table, 256 * (1 - amount * solarize))
    table = torch.where(autocontrast[:, None, None], transforms.autocontrast(images), table)
    table = torch.where(equalize[:, None, None], transforms.equalize(images), table)
    return transforms.look_up(images, table)


def _blend(images: Tensor, taken: Tensor, amount: Tensor, signed: Tensor) -> Tensor:
    saturation, _ = taken
    plain = torch.where(saturation[:, None, None, None], transforms.grey(images), transforms.smooth(images))
    return transforms.blend(plain, images, _factor(taken.any(0), signed))


def _factor(taken: Tensor, signed: Tensor) -> Tensor:
    """How strong what is blended becomes; 1, which changes nothing, where nothing is."""
    return 1 + MOST_BLEND * signed * taken
