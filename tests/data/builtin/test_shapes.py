import torch

from regard.data.builtin.shapes import CLASSES, _distances, render_shapes


def test_a_seed_is_a_set() -> None:
    one, same, other = (render_shapes(100, seed) for seed in (1, 1, 2))
    assert torch.equal(one.pixels, same.pixels)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.pixels, other.pixels)


def test_classes_are_equally_many_and_mixed() -> None:
    shapes = render_shapes(1000, 0)
    assert len(shapes.classes) == 10
    assert shapes.labels.bincount().tolist() == [100] * 10
    assert len(shapes.labels[:50].unique()) > 5
    assert shapes.shape == (3, 32, 32)
    assert shapes.pixels.dtype == torch.uint8


def test_every_shape_is_inside_its_circle_and_like_no_other() -> None:
    distances = _distances()
    areas = (distances < 0).float().mean((1, 2)) * 16
    assert dict(zip(CLASSES, areas.gt(0.5).tolist(), strict=True)) == dict.fromkeys(CLASSES, True)
    along = (torch.arange(128) + 0.5) / 32 - 2
    far = torch.hypot(along, along[:, None]) > 1.2
    assert (distances[:, far] > 0).all()
    overlap = torch.triu((distances[:, None] < 0).ne(distances[None] < 0).float().mean((2, 3)) * 16, 1)
    assert overlap[overlap > 0].min() > 0.3
    assert int((overlap > 0).sum()) == 45


def test_other_sizes_can_be_asked_for() -> None:
    assert render_shapes(3, 0, 48).pixels.shape == (3, 3, 48, 48)
