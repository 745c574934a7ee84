"""Images made from two: mixup (Zhang et al., 2017) and cutmix (Yun et al., 2019), with targets that share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.geometry import to_device, within


def mix(
    images: Tensor,
    labels: Tensor,
    classes: int,
    *generators: torch.Generator,
    mixup: float,
    cutmix: float,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mixes each image with its neighbour in the batch, by a weight of its own; a batch of one is left alone.

    Args:
        images: float (B, C, H, W), of one batch, or of several of one size, one behind the other.
        labels: (B,), on the images' device.
        classes: How many there are.
        generators: One for each batch decides about everything in it.
        mixup: The two images are laid over each other, with weights from Beta(mixup, mixup); 0: never.
        cutmix: A rectangle of the neighbour covers a part drawn from Beta(cutmix, cutmix); 0: never. With both, each
            image takes either, with even chances.
        share: Of the images, how many are mixed.

    Returns:
        The images, and targets (B, classes) whose rows sum to one.
    """
    targets, (height, width) = F.one_hot(labels, classes).to(images), images.shape[2:]
    count = len(images) // len(generators)
    if count < 2 or not (mixup or cutmix):
        return images, targets
    drawn = [_draw(count, height, width, one, mixup, cutmix, share) for one in generators]
    numbers = to_device(torch.cat(drawn).to(images.dtype), images.device)
    kept, cutting, top, left, bottom, right = numbers.unbind(1)
    inside = within(top, left, bottom, right, height, width)
    weight = torch.where(cutting[:, None, None].bool(), (~inside).to(images), kept[:, None, None])[:, None]
    mixed = weight * images + (1 - weight) * _neighbours(images, count)
    return mixed, kept[:, None] * targets + (1 - kept[:, None]) * _neighbours(targets, count)


def _draw(
    count: int, height: int, width: int, generator: torch.Generator, mixup: float, cutmix: float, share: float
) -> Tensor:
    """How each image of a batch is mixed, (count, 6): how much of it stays, whether by cutting, and the rectangle."""
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    rng = np.random.default_rng(seed)  # torch has no Beta distribution that takes a generator
    mixed, cuts, y, x = torch.from_numpy(rng.random((4, count)))
    cutting = (cuts < (0.5 if mixup else 1.0)) & (cutmix > 0)
    weights = [torch.from_numpy(rng.beta(alpha or 1, alpha or 1, count)) for alpha in (mixup, cutmix)]
    kept = torch.where(mixed < share, torch.where(cutting, weights[1], weights[0]), 1.0)
    cut_height, cut_width = (((1 - kept).sqrt() * side).round() for side in (height, width))
    top, left = (y * height - cut_height / 2).round(), (x * width - cut_width / 2).round()
    bottom, right = (top + cut_height).clamp(max=height), (left + cut_width).clamp(max=width)
    top, left = top.clamp(min=0), left.clamp(min=0)
    kept = torch.where(cutting, 1 - (bottom - top) * (right - left) / (height * width), kept)
    return torch.stack([kept, cutting, top, left, bottom, right], 1)


def _neighbours(rows: Tensor, count: int) -> Tensor:
    """For each row that before it, and for the first of every `count` the last of them."""
    return rows.view(-1, count, *rows.shape[1:]).roll(1, 1).view(rows.shape)
