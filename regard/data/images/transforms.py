"""Where pixels come from: crops, flips and affine maps of batches, each image with numbers of its own.

Images are uint8 (B, C, H, W) before and after; a parameter is a tensor (B,).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def flip(images: Tensor, which: Tensor) -> Tensor:
    """Some images the other way round: left is right where `which` is true."""
    return torch.where(which[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """A square of each image, from whole pixels: images[i, :, top[i] : top[i] + size, left[i] : left[i] + size]."""
    along = torch.arange(size, device=images.device)
    row = torch.arange(len(images), device=images.device)[:, None, None]
    y, x = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
    return images.permute(0, 2, 3, 1)[row, y, x].permute(0, 3, 1, 2).contiguous()


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The middle of each image."""
    height, width = images.shape[2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def pad(images: Tensor, width: int) -> Tensor:
    """A black border round each image."""
    return F.pad(images, (width,) * 4)


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int) -> Tensor:
    """A rectangle of each image, in pixels and parts of them, stretched to a square by bilinear interpolation."""
    full_height, full_width = images.shape[2:]
    zero = torch.zeros_like(top)
    theta = torch.stack(
        [
            torch.stack([width / full_width, zero, (2 * left + width) / full_width - 1], 1),
            torch.stack([zero, height / full_height, (2 * top + height) / full_height - 1], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, [*images.shape[:2], size, size], align_corners=False)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return to_bytes(sampled)


def affine(images: Tensor, matrices: Tensor, fill: int = 128) -> Tensor:
    """Moves pixels: the one at (x, y), counted from the centre, comes from matrices[i] @ (x, y, 1) of image i.

    Args:
        images: uint8 (B, C, H, W).
        matrices: (B, 2, 3), in pixels.
        fill: What is seen where a pixel comes from outside.
    """
    height, width = images.shape[2:]
    scale = constant(((1.0, height / width, 2 / width), (width / height, 1.0, 2 / height)), images.device)
    grid = F.affine_grid(matrices * scale.to(matrices.dtype), list(images.shape), align_corners=False)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    inside = (grid.abs() <= 1).all(3)[:, None]
    return to_bytes(torch.where(inside, sampled, float(fill)))


def within(top: Tensor, left: Tensor, bottom: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """Which pixels of each image lie in a rectangle of its own: bool (B, height, width)."""
    y, x = torch.arange(height, device=top.device), torch.arange(width, device=top.device)
    rows = (top[:, None] <= y) & (y < bottom[:, None])
    columns = (left[:, None] <= x) & (x < right[:, None])
    return rows[:, :, None] & columns[:, None, :]


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Numbers from the CPU on a device, which is not waited for: from pinned memory, as only that can be copied so."""
    pinned = values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values
    return pinned.to(device, non_blocking=True)


@lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """A few numbers on a device, made once; nobody may change them."""
    with torch.inference_mode(False):  # whoever comes next may want gradients
        return torch.tensor(values, device=device)


def to_bytes(values: Tensor) -> Tensor:
    """Rounds to the nearest of 0 to 255."""
    return values.round().clamp(0, 255).to(torch.uint8)


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
