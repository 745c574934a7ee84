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
