"""Rendered shapes: a small image dataset that needs no files.

Every image shows one shape of random colour, position, size and rotation on a textured background, partly occluded by a
bar, with uneven light and noise. The signed distance functions of the shapes are sampled on a grid once and then
transformed for each image.

Shapes: B images, S side length.
"""

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
GRID_EXTENT = 2.0
"""The grid of distances covers -2 to 2; a shape covers about -1 to 1."""
MAX_ROTATION = math.pi / 6
CHUNK = 2048
Points = list[tuple[float, float]]
Distance = Callable[[Tensor, Tensor], Tensor]
"""A signed distance function of x and y, negative inside the shape."""


def render_shapes(count: int, seed: int, size: int = SIZE) -> TensorImages:
    """Render images with about equally many images of each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(CLASSES)
    labels = labels[torch.randperm(count, generator=generator)]
    pixels = torch.cat([_render(chunk, size, generator) for chunk in torch.split(labels, CHUNK)])
    return TensorImages(CLASSES, labels, pixels)


def _render(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return uint8 images (B, 3, S, S)."""
    uniform = _Uniform(len(labels), generator)
    texture = _texture(uniform, size)
    colour, background_colour = _colours(uniform)
    background = background_colour + texture * uniform(0.03, 0.1, 1, 1, 1)
    foreground = colour + texture.flip(3) * uniform(0, 0.1, 1, 1, 1)
    radius = uniform(0.6, 0.9)
    x, y = uniform(-1, 1) * (1 - radius), uniform(-1, 1) * (1 - radius)
    coverage = _coverage(_distances()[labels], x, y, radius, uniform(-MAX_ROTATION, MAX_ROTATION), size)
    image = background + coverage * (foreground - background)
    image = image + _bar_coverage(uniform, x, y, radius, size) * (uniform(0, 1, 3, 1, 1) - image)
    ramp = torch.linspace(-1, 1, size)
    light = 1 + uniform(-0.2, 0.2, 1, 1, 1) * ramp + uniform(-0.2, 0.2, 1, 1, 1) * ramp[:, None]
    noise = torch.randn(len(labels), 3, size, size, generator=generator) * uniform(0, 0.04, 1, 1, 1)
    return to_bytes((image * light + noise) * 255)


class _Uniform:
    """Uniform random numbers for each image, (B, *shape)."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator

    def __call__(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(self._count, *shape, generator=self._generator)


def _colours(uniform: _Uniform) -> tuple[Tensor, Tensor]:
    """Return the colours of a shape and of its darker background, (B, 3, 1, 1) each."""
    background = uniform(0, 0.5, 3, 1, 1)
    difference = F.normalize(uniform(0, 1, 3, 1, 1), dim=1) * uniform(0.4, 0.8, 1, 1, 1)
    return (background + difference).clamp(max=1), background


def _texture(uniform: _Uniform, size: int) -> Tensor:
    """Return clouds and stripes with values from about -1 to 1, (B, 3, S, S)."""
    clouds = sum(
        F.interpolate(uniform(-1, 1, 3, cells, cells), (size, size), mode="bilinear", align_corners=False) / 2
        for cells in (4, 9)
    )
    angle, waves, phase = uniform(0, math.pi, 1, 1), uniform(1, 5, 1, 1), uniform(0, 2 * math.pi, 1, 1)
    ramp = torch.linspace(-1, 1, size)
    stripes = torch.sin(math.pi * waves * (ramp * angle.cos() + ramp[:, None] * angle.sin()) + phase)[:, None]
    return clouds + stripes * uniform(-0.7, 0.7, 3, 1, 1)


def _coverage(distances: Tensor, x: Tensor, y: Tensor, radius: Tensor, rotation: Tensor, size: int) -> Tensor:
    """Return how much of each pixel a shape covers, (B, 1, S, S); image coordinates are from -1 to 1."""
    cos, sin = rotation.cos() / radius, rotation.sin() / radius
    rows = [torch.stack([cos, sin, -cos * x - sin * y], 1), torch.stack([-sin, cos, sin * x - cos * y], 1)]
    grid = F.affine_grid(torch.stack(rows, 1) / GRID_EXTENT, [len(x), 1, size, size], align_corners=False)
    distance = F.grid_sample(distances[:, None], grid, padding_mode="border", align_corners=False)
    return (0.5 - distance * radius.view(-1, 1, 1, 1) * size / 2).clamp(0, 1)


def _bar_coverage(uniform: _Uniform, x: Tensor, y: Tensor, radius: Tensor, size: int) -> Tensor:
    """Return how much of each pixel is occluded by a bar, (B, 1, S, S); about a third of the images have one."""
    angle = uniform(0, 2 * math.pi, 1, 1)
    ramp = torch.linspace(-1, 1, size)
    across = (ramp - x.view(-1, 1, 1)) * angle.cos() + (ramp[:, None] - y.view(-1, 1, 1)) * angle.sin()
    centre, half_width = uniform(-1, 1, 1, 1), uniform(-0.2, 0.1, 1, 1)
    distance = (across / radius.view(-1, 1, 1) - centre).abs() - half_width
    return (0.5 - distance * radius.view(-1, 1, 1) * size / 2).clamp(0, 1)[:, None] * (half_width > 0)[:, None]


@cache
def _distances() -> Tensor:
    """Return the sampled signed distances of all shapes, (classes, GRID, GRID)."""
    centres = (torch.arange(GRID) + 0.5) / GRID * 2 * GRID_EXTENT - GRID_EXTENT
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([distance(x, y) for distance in SHAPES.values()])


def _circle(x: Tensor, y: Tensor, radius: float = 0.9, centre_x: float = 0.0) -> Tensor:
    return torch.hypot(x - centre_x, y) - radius


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_circle(x, y), -_circle(x, y, 0.5))


def _crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_circle(x, y, 1), -_circle(x, y, 0.8, 0.5))


def _polygon(corners: Points) -> Distance:
    def distance(x: Tensor, y: Tensor) -> Tensor:
        nearest = torch.full_like(x, math.inf)
        inside = torch.zeros_like(x, dtype=torch.bool)
        for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
            length = (bx - ax) ** 2 + (by - ay) ** 2
            t = (((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length).clamp(0, 1)
            nearest = torch.minimum(nearest, torch.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay)))
            if ay != by:
                inside ^= ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
        return torch.where(inside, -nearest, nearest)

    return distance


def _regular_polygon(corners: int, inner_radius: float | None = None) -> Distance:
    """Return a regular polygon, or a star if there is an inner radius."""
    radii = [1.0] if inner_radius is None else [1.0, inner_radius]
    steps = corners * len(radii)
    polar = [(radii[step % len(radii)], 2 * math.pi * step / steps) for step in range(steps)]
    return _polygon([(radius * math.sin(angle), -radius * math.cos(angle)) for radius, angle in polar])


def _heart() -> Distance:
    def point(t: float) -> tuple[float, float]:
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        return math.sin(t) ** 3, -y / 16

    return _polygon([point(2 * math.pi * step / 48) for step in range(48)])


_THIN = 0.3
_HALF_CROSS: Points = [(-_THIN, -1), (_THIN, -1), (_THIN, -_THIN), (1, -_THIN), (1, _THIN), (_THIN, _THIN)]
_ARROW: Points = [(0, -1), (0.75, -0.1), (0.28, -0.1), (0.28, 1), (-0.28, 1), (-0.28, -0.1), (-0.75, -0.1)]
SHAPES: dict[str, Distance] = {
    "arrow": _polygon(_ARROW),
    "bar": _polygon([(-1, -0.35), (1, -0.35), (1, 0.35), (-1, 0.35)]),
    "circle": _circle,
    "crescent": _crescent,
    "cross": _polygon([*_HALF_CROSS, *((-x, -y) for x, y in _HALF_CROSS)]),
    "heart": _heart(),
    "ring": _ring,
    "square": _polygon([(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]),
    "star": _regular_polygon(5, 0.42),
    "triangle": _regular_polygon(3),
}
CLASSES = tuple(SHAPES)
