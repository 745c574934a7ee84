"""Image transforms on batches: geometry, brightness and colour, with separate parameters for each image.

Shapes: B images, C channels, H height, W width. Images are uint8 (B, C, H, W); a parameter is a tensor (B,). Changes
that depend only on the value of a channel are expressed as lookup tables (B, C, 256).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.preprocessing import constant

LUMA = (0.299, 0.587, 0.114)
RGB_TO_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def flip(images: Tensor, selected: Tensor) -> Tensor:
    """Flip the selected images (B,) horizontally."""
    return torch.where(selected[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Crop a square from each image: images[i, :, top[i] : top[i] + size, left[i] : left[i] + size]."""
    offsets = torch.arange(size, device=images.device)
    row = torch.arange(len(images), device=images.device)[:, None, None]
    y, x = (top[:, None] + offsets)[:, :, None], (left[:, None] + offsets)[:, None, :]
    return images.permute(0, 2, 3, 1)[row, y, x].permute(0, 3, 1, 2).contiguous()


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Crop the central square."""
    height, width = images.shape[2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def pad(images: Tensor, width: int) -> Tensor:
    """Add a black border."""
    return F.pad(images, (width,) * 4)


def resized_crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    size: int,
    use_bicubic: Tensor | None = None,
) -> Tensor:
    """Crop a rectangle, given in fractional pixels, from each image and resize it to a square.

    The interpolation is bilinear, and bicubic for the images selected by `use_bicubic`, (B,).
    """
    image_height, image_width = images.shape[2:]
    zero = torch.zeros_like(top)
    # In normalised coordinates, the image and the square extend from -1 to 1. A pixel of the square is taken from
    # x_image = width / image_width * x_square + (2 * left + width) / image_width - 1, and likewise for y.
    x_row = torch.stack([width / image_width, zero, (2 * left + width) / image_width - 1], 1)
    y_row = torch.stack([zero, height / image_height, (2 * top + height) / image_height - 1], 1)
    grid = F.affine_grid(torch.stack([x_row, y_row], 1), [*images.shape[:2], size, size], align_corners=False)
    resized = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    if use_bicubic is not None:
        bicubic = F.grid_sample(images.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
        resized = torch.where(use_bicubic[:, None, None, None], bicubic, resized)
    return to_bytes(resized)


def affine(images: Tensor, matrices: Tensor, fill: int = 128) -> Tensor:
    """Transform each image: the pixel at (x, y), relative to the centre, is taken from matrices[i] @ (x, y, 1).

    The matrices, (B, 2, 3), are in pixels. Pixels that are taken from outside the image have the value `fill`.
    """
    height, width = images.shape[2:]
    # affine_grid expects normalised coordinates, in which the image extends from -1 to 1 in both directions.
    scale = constant(((1.0, height / width, 2 / width), (width / height, 1.0, 2 / height)), images.device)
    grid = F.affine_grid(matrices * scale.to(matrices.dtype), list(images.shape), align_corners=False)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    inside = (grid.abs() <= 1).all(3)[:, None]
    return to_bytes(torch.where(inside, sampled, float(fill)))


def rectangle_mask(top: Tensor, left: Tensor, bottom: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """Return which pixels are inside a rectangle for each image, bool (B, H, W)."""
    y, x = torch.arange(height, device=top.device), torch.arange(width, device=top.device)
    rows = (top[:, None] <= y) & (y < bottom[:, None])
    columns = (left[:, None] <= x) & (x < right[:, None])
    return rows[:, :, None] & columns[:, None, :]


def apply_table(images: Tensor, table: Tensor) -> Tensor:
    """Replace every value by its entry in the table of its image and channel."""
    return table.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


def identity_table(images: Tensor) -> Tensor:
    """Return the table that changes nothing, as floats."""
    return torch.arange(256.0, device=images.device).expand(*images.shape[:2], 256)


def scale_table(table: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Multiply the distance of values from `mean` by `factor`: contrast, or brightness if the mean is 0."""
    mean, factor = mean[:, None, None], factor[:, None, None]
    return (mean + (table - mean) * factor).round().clamp(0, 255)


def posterize_table(table: Tensor, bits: Tensor) -> Tensor:
    """Keep only the highest bits."""
    step = (2 ** (8 - bits))[:, None, None]
    return (table / step).floor() * step


def solarize_table(table: Tensor, threshold: Tensor) -> Tensor:
    """Invert all values from a threshold on."""
    return torch.where(table < threshold[:, None, None], table, 255 - table)


def autocontrast_table(images: Tensor) -> Tensor:
    """Return the table that stretches the values of each channel to 0 ... 255."""
    low, high = (bound[..., None].float() for bound in torch.aminmax(images.flatten(2), dim=2))
    identity = identity_table(images)
    stretched = ((identity - low) * 255 / (high - low).clamp(min=1)).floor().clamp(0, 255)
    return torch.where(high > low, stretched, identity)


def equalize_table(images: Tensor) -> Tensor:
    """Return the table that equalises the histogram of each channel."""
    flat = images.flatten(2).long()
    ones = torch.ones((), dtype=torch.long, device=images.device).expand_as(flat)
    histogram = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=images.device).scatter_add_(2, flat, ones)
    highest = histogram.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - highest) // 255
    below = histogram.cumsum(2) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.float(), identity_table(images))


def grey(images: Tensor) -> Tensor:
    """Return the luma of each pixel, uint8 (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    weights = constant(LUMA, images.device).view(1, 3, 1, 1)
    return to_bytes((images.float() * weights).sum(1, keepdim=True))


def mean_grey(images: Tensor) -> Tensor:
    """Return the mean luma of each image, rounded to an integer, (B,)."""
    return grey(images).float().mean((1, 2, 3)).round()


def smooth(images: Tensor) -> Tensor:
    """Average each pixel, with weight 5, and its eight neighbours; the pixels at the border are not changed."""
    if min(images.shape[2:]) < 3:
        return images
    floats, result = images.float(), images.clone()
    neighbourhood_sum = F.avg_pool2d(floats, 3, stride=1, divisor_override=1)
    result[:, :, 1:-1, 1:-1] = to_bytes((neighbourhood_sum + 4 * floats[:, :, 1:-1, 1:-1]) / 13)
    return result


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Multiply the distance of images from base images by a factor."""
    return to_bytes(base + (images.float() - base) * factor[:, None, None, None])


def rotate_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue in YIQ by a fraction of a full turn; grey images are not changed."""
    if images.shape[1] == 1:
        return images
    to_yiq = constant(RGB_TO_YIQ, images.device)
    cos, sin = (2 * torch.pi * turns).cos(), (2 * torch.pi * turns).sin()
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rotation = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], 1).view(-1, 3, 3)
    matrix = torch.linalg.inv(to_yiq) @ rotation @ to_yiq
    return to_bytes((matrix @ images.float().flatten(2)).view(images.shape))


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without synchronisation, through pinned memory if necessary."""
    pinned = values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values
    return pinned.to(device, non_blocking=True)


def to_bytes(values: Tensor) -> Tensor:
    """Round to the nearest uint8 value."""
    return values.round().clamp(0, 255).to(torch.uint8)
