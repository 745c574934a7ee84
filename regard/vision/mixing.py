"""Images made from two: mixup (Zhang et al., 2017) and cutmix (Yun et al., 2019), with targets that share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.vision.geometry import to_device, within


def mix(
    images: Tensor,
    labels: Tensor,
    classes: int,
    generator: torch.Generator,
    *,
    mixup: float,
    cutmix: float,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mixes each image with its neighbour in the batch, by a weight of its own; a batch of one is left alone.

    Args:
        images: float (B, C, H, W).
        labels: (B,), on the images' device.
        classes: How many there are.
        generator: Decides about everything.
        mixup: The two images are laid over each other, with weights from Beta(mixup, mixup); 0: never.
        cutmix: A rectangle of the neighbour covers a part drawn from Beta(cutmix, cutmix); 0: never. With both, each
            image takes either, with even chances.
        share: Of the images, how many are mixed.

    Returns:
        The images, and targets (B, classes) whose rows sum to one.
    """
    count, _, height, width = images.shape
    if count < 2 or not (mixup or cutmix):
        return images, F.one_hot(labels, classes).to(images)
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
    numbers = to_device(torch.stack([kept, cutting, top, left, bottom, right], 1).to(images.dtype), images.device)
    kept, cutting, top, left, bottom, right = numbers.unbind(1)
    inside = within(top, left, bottom, right, height, width)
    weight = torch.where(cutting[:, None, None].bool(), (~inside).to(images), kept[:, None, None])[:, None]
    targets = F.one_hot(labels, classes).to(images)
    portion = kept[:, None]
    return weight * images + (1 - weight) * images.roll(1, 0), portion * targets + (1 - portion) * targets.roll(1, 0)
