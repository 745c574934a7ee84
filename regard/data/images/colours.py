"""What pixels look like: changes of light and colour of batches, each image with numbers of its own.

Images are uint8 (B, C, H, W) before and after. What treats every value of a channel alike is a table of 256 values for
each image and channel, (B, C, 256); such changes are made by looking values up, whichever they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.geometry import constant, to_bytes

LUMA = (0.299, 0.587, 0.114)
YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Every value replaced by what the table of its image and channel says."""
    flat = images.flatten(2)
    return tables.to(torch.uint8).gather(2, flat.long()).view_as(images)


def values(images: Tensor) -> Tensor:
    """The table that changes nothing, as floats."""
    return torch.arange(256.0, device=images.device).expand(*images.shape[:2], 256)


def scale(table: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """The table that moves all values `factor` times as far away from a mean: contrast, and from 0 brightness."""
    mean, factor = mean[:, None, None], factor[:, None, None]
    return (mean + (table - mean) * factor).round().clamp(0, 255)


def mean_grey(lightness: Tensor) -> Tensor:
    """The mean of what `grey` gave for each image, (B,), a whole number."""
    return lightness.float().mean((1, 2, 3)).round()


def posterize(table: Tensor, bits: Tensor) -> Tensor:
    """The table that keeps only the highest bits."""
    step = (2 ** (8 - bits))[:, None, None]
    return (table / step).floor() * step


def solarize(table: Tensor, threshold: Tensor) -> Tensor:
    """The table that inverts all values from a threshold on."""
    return torch.where(table < threshold[:, None, None], table, 255 - table)


def autocontrast(images: Tensor) -> Tensor:
    """The table that stretches each channel over all values, its darkest to 0 and its lightest to 255."""
    low, high = (bound[..., None].float() for bound in torch.aminmax(images.flatten(2), dim=2))
    plain = values(images)
    stretched = ((plain - low) * 255 / (high - low).clamp(min=1)).floor().clamp(0, 255)
    return torch.where(high > low, stretched, plain)


def equalize(images: Tensor) -> Tensor:
    """The table that makes all values of a channel equally frequent."""
    flat = images.flatten(2).long()
    ones = torch.ones((), dtype=torch.long, device=images.device).expand_as(flat)
    histogram = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=images.device).scatter_add_(2, flat, ones)
    highest = histogram.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - highest) // 255
    below = histogram.cumsum(2) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.float(), values(images))


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Away from grey, or towards it; grey images stay as they are."""
    return blend(grey(images), images, factor)


def smooth(images: Tensor) -> Tensor:
    """Each pixel joined with its neighbours, itself five times; the outermost pixels stay as they are."""
    if min(images.shape[2:]) < 3:
        return images
    floats, result = images.float(), images.clone()
    around = F.avg_pool2d(floats, 3, stride=1, divisor_override=1)
    result[:, :, 1:-1, 1:-1] = to_bytes((around + 4 * floats[:, :, 1:-1, 1:-1]) / 13)
    return result


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """All colours turned round the axis of greys, by parts of a full turn, in YIQ; grey images stay as they are."""
    if images.shape[1] == 1:
        return images
    to_yiq = constant(YIQ, images.device)
    cos, sin = (2 * torch.pi * turn).cos(), (2 * torch.pi * turn).sin()
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rotation = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], 1).view(-1, 3, 3)
    matrix = torch.linalg.inv(to_yiq) @ rotation @ to_yiq
    return to_bytes((matrix @ images.float().flatten(2)).view(images.shape))


def grey(images: Tensor) -> Tensor:
    """How light each pixel is: uint8 (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    weights = constant(LUMA, images.device).view(1, 3, 1, 1)
    return to_bytes((images.float() * weights).sum(1, keepdim=True))


def blend(plain: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Images `factor` times as far away from plain ones."""
    return to_bytes(plain + (images.float() - plain) * factor[:, None, None, None])
