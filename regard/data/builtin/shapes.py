"""Rendered shapes: a small image set that needs no file, drawn from a seed.

Each image shows one shape of any colour, place, size and turn on a textured background, partly hidden by a bar, in
uneven light and with noise. A shape is a signed distance on a grid, computed once; an image looks it up through its own
affine map, so that thousands are drawn in a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.images.datasets import TensorImages
from regard.data.images.transforms import to_bytes

SIZE = 32
GRID = 128
REACH = 2.0
"""The grid of distances goes from -REACH to REACH; a shape fills about -1 to 1."""
MOST_TURN = math.pi / 6
CHUNK = 2048
Points = list[tuple[float, float]]


def render_shapes(count: int, seed: int, size: int = SIZE) -> TensorImages:
    """Draws images with about equally many of each class, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(CLASSES)
    labels = labels[torch.randperm(count, generator=generator)]
    pixels = torch.cat([_render(part, size, generator) for part in torch.split(labels, CHUNK)])
    return TensorImages(CLASSES, labels, pixels)


def _render(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """uint8 (B, 3, size, size)."""
    roll = _Roll(len(labels), generator)
    texture = _texture(roll, size)
    colour, back_colour = _two_colours(roll)
    back = back_colour + texture * roll(0.03, 0.1, 1, 1, 1)
    front = colour + texture.flip(3) * roll(0, 0.1, 1, 1, 1)
    radius = roll(0.6, 0.9)
    x, y = roll(-1, 1) * (1 - radius), roll(-1, 1) * (1 - radius)
    image = back + _cover(_distances()[labels], x, y, radius, roll(-MOST_TURN, MOST_TURN), size) * (front - back)
    image = image + _bar(roll, x, y, radius, size) * (roll(0, 1, 3, 1, 1) - image)
    along = torch.linspace(-1, 1, size)
    light = 1 + roll(-0.2, 0.2, 1, 1, 1) * along + roll(-0.2, 0.2, 1, 1, 1) * along[:, None]
    noise = roll.normal(3, size, size) * roll(0, 0.04, 1, 1, 1)
    return to_bytes((image * light + noise) * 255)


class _Roll:
    """Random numbers for each image."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator

    def __call__(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(self._count, *shape, generator=self._generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self._count, *shape, generator=self._generator)


def _two_colours(roll: _Roll) -> tuple[Tensor, Tensor]:
    """The colours of a shape and of what is behind it, which is darker: (B, 3, 1, 1) each."""
    back = roll(0, 0.5, 3, 1, 1)
    lighter = F.normalize(roll(0, 1, 3, 1, 1), dim=1) * roll(0.4, 0.8, 1, 1, 1)
    return (back + lighter).clamp(max=1), back


def _texture(roll: _Roll, size: int) -> Tensor:
    """Clouds and stripes from about -1 to 1, (B, 3, size, size)."""
    clouds = sum(
        F.interpolate(roll(-1, 1, 3, cells, cells), (size, size), mode="bilinear", align_corners=False) / 2
        for cells in (4, 9)
    )
    angle, waves, phase = roll(0, math.pi, 1, 1), roll(1, 5, 1, 1), roll(0, 2 * math.pi, 1, 1)
    along = torch.linspace(-1, 1, size)
    stripes = torch.sin(math.pi * waves * (along * angle.cos() + along[:, None] * angle.sin()) + phase)[:, None]
    return clouds + stripes * roll(-0.7, 0.7, 3, 1, 1)


def _cover(distances: Tensor, x: Tensor, y: Tensor, radius: Tensor, turn: Tensor, size: int) -> Tensor:
    """How much of each pixel a shape covers, (B, 1, size, size); the image goes from -1 to 1."""
    cos, sin = turn.cos() / radius, turn.sin() / radius
    rows = [torch.stack([cos, sin, -cos * x - sin * y], 1), torch.stack([-sin, cos, sin * x - cos * y], 1)]
    grid = F.affine_grid(torch.stack(rows, 1) / REACH, [len(x), 1, size, size], align_corners=False)
    distance = F.grid_sample(distances[:, None], grid, padding_mode="border", align_corners=False)
    return (0.5 - distance * radius.view(-1, 1, 1, 1) * size / 2).clamp(0, 1)


def _bar(roll: _Roll, x: Tensor, y: Tensor, radius: Tensor, size: int) -> Tensor:
    """How much of each pixel is hidden by a bar across the shape; about a third of the images have one."""
    angle = roll(0, 2 * math.pi, 1, 1)
    along = torch.linspace(-1, 1, size)
    across = (along - x.view(-1, 1, 1)) * angle.cos() + (along[:, None] - y.view(-1, 1, 1)) * angle.sin()
    middle, half = roll(-1, 1, 1, 1), roll(-0.2, 0.1, 1, 1)
    outside = (across / radius.view(-1, 1, 1) - middle).abs() - half
    return (0.5 - outside * radius.view(-1, 1, 1) * size / 2).clamp(0, 1)[:, None] * (half > 0)[:, None]


@cache
def _distances() -> Tensor:
    """The signed distance to the edge of every shape, negative inside: (classes, GRID, GRID)."""
    along = (torch.arange(GRID) + 0.5) / GRID * 2 * REACH - REACH
    y, x = torch.meshgrid(along, along, indexing="ij")
    return torch.stack([distance(x, y) for distance in SHAPES.values()])


def _circle(x: Tensor, y: Tensor, radius: float = 0.9, at: float = 0.0) -> Tensor:
    return torch.hypot(x - at, y) - radius


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_circle(x, y), -_circle(x, y, 0.5))


def _crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_circle(x, y, 1), -_circle(x, y, 0.8, 0.5))


def _heart(x: Tensor, y: Tensor) -> Tensor:
    turns = [2 * math.pi * step / 48 for step in range(48)]
    return _polygon(
        x,
        y,
        [
            (
                math.sin(t) ** 3,
                -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16,
            )
            for t in turns
        ],
    )


def _regular(corners: int, inner: float | None = None) -> Points:
    """A polygon with equal sides, or a star whose inner corners lie at a radius."""
    radii = [1.0] if inner is None else [1.0, inner]
    steps = corners * len(radii)
    return [
        (radii[step % len(radii)] * math.sin(angle), -radii[step % len(radii)] * math.cos(angle))
        for step in range(steps)
        for angle in (2 * math.pi * step / steps,)
    ]


def _polygon(x: Tensor, y: Tensor, corners: Points) -> Tensor:
    nearest = torch.full_like(x, math.inf)
    inside = torch.zeros_like(x, dtype=torch.bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        length = (bx - ax) ** 2 + (by - ay) ** 2
        t = (((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length).clamp(0, 1)
        nearest = torch.minimum(nearest, torch.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)))
        if ay != by:
            crossed = ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
            inside ^= crossed
    return torch.where(inside, -nearest, nearest)


def _of(corners: Points) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: _polygon(x, y, corners)


_THIN = 0.3
_CROSS: Points = [(-_THIN, -1), (_THIN, -1), (_THIN, -_THIN), (1, -_THIN), (1, _THIN), (_THIN, _THIN)]
_ARROW: Points = [(0, -1), (0.75, -0.1), (0.28, -0.1), (0.28, 1), (-0.28, 1), (-0.28, -0.1), (-0.75, -0.1)]
SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arrow": _of(_ARROW),
    "bar": _of([(-1, -0.35), (1, -0.35), (1, 0.35), (-1, 0.35)]),
    "circle": _circle,
    "crescent": _crescent,
    "cross": _of([*_CROSS, *((-x, -y) for x, y in _CROSS)]),
    "heart": _heart,
    "ring": _ring,
    "square": _of([(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]),
    "star": _of(_regular(5, 0.42)),
    "triangle": _of(_regular(3)),
}
CLASSES = tuple(SHAPES)
