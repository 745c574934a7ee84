"""Rendered shapes: reproducible, balanced and distinguishable."""

import math

import pytest
import torch

from regard.data.builtin.rendered_shapes import CLASSES, SHAPES, _distances, render_shapes


def test_images_depend_on_the_seed_only() -> None:
    one, same, other = (render_shapes(100, seed) for seed in (1, 1, 2))
    assert torch.equal(one.pixels, same.pixels)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.pixels, other.pixels)


def test_classes_are_balanced_and_shuffled() -> None:
    shapes = render_shapes(1000, 0)
    assert len(shapes.classes) == 10
    assert shapes.labels.bincount().tolist() == [100] * 10
    assert len(shapes.labels[:50].unique()) > 5
    assert shapes.shape == (3, 32, 32)
    assert shapes.pixels.dtype == torch.uint8


def test_shapes_are_within_the_unit_circle_and_differ_from_each_other() -> None:
    distances = _distances()
    areas = (distances < 0).float().mean((1, 2)) * 16
    assert dict(zip(CLASSES, areas.gt(0.5).tolist(), strict=True)) == dict.fromkeys(CLASSES, True)
    centres = (torch.arange(128) + 0.5) / 32 - 2
    outside = torch.hypot(centres, centres[:, None]) > 1.2
    assert (distances[:, outside] > 0).all()
    difference = torch.triu((distances[:, None] < 0).ne(distances[None] < 0).float().mean((2, 3)) * 16, 1)
    assert difference[difference > 0].min() > 0.3
    assert int((difference > 0).sum()) == 45


def test_the_size_can_be_chosen() -> None:
    assert render_shapes(3, 0, 48).pixels.shape == (3, 3, 48, 48)


@pytest.mark.parametrize(("name", "corners"), [("triangle", 3), ("star", 5)])
def test_regular_shapes_look_the_same_after_a_turn_from_corner_to_corner(name: str, corners: int) -> None:
    x, y = torch.rand(2, 200, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2
    cos, sin = math.cos(2 * math.pi / corners), math.sin(2 * math.pi / corners)
    turned = SHAPES[name](cos * x - sin * y, sin * x + cos * y)
    torch.testing.assert_close(turned, SHAPES[name](x, y), atol=1e-5, rtol=0)
    top = SHAPES[name](torch.tensor([0.0, 0.0]), torch.tensor([-0.99, -1.01]))
    assert top[0] < 0 < top[1]
