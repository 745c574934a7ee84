"""Image transforms agree with slices and with Pillow."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from regard.data.images.transforms import affine, centre_crop, crop, flip, pad, rectangle_mask, resized_crop
from tests.data.images.helpers import random_pixels


def batch(count: int = 4, size: int = 12, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, size, size), generator=torch.Generator().manual_seed(3)).byte()


def test_only_selected_images_are_flipped() -> None:
    images, selected = batch(), torch.tensor([True, False, True, False])
    once = flip(images, selected)
    assert torch.equal(flip(once, selected), images)
    assert torch.equal(once[1::2], images[1::2])
    assert torch.equal(once[0], images[0].flip(2))


@given(positions=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=5))
@settings(max_examples=20)
def test_a_crop_is_a_slice(positions: list[tuple[int, int]]) -> None:
    images = batch(len(positions))
    top, left = torch.tensor(positions).unbind(1)
    for image, (y, x), cut in zip(images, positions, crop(images, top, left, 5), strict=True):
        assert torch.equal(cut, image[:, y : y + 5, x : x + 5])


def test_centre_crop() -> None:
    images = batch()
    assert torch.equal(centre_crop(pad(images, 3), 12), images)
    assert torch.equal(centre_crop(images, 4), images[:, :, 4:8, 4:8])


def test_padding_is_black() -> None:
    padded = pad(batch(), 2)
    assert padded.shape == (4, 3, 16, 16)
    assert padded[:, :, :2].max() == 0


def test_a_resized_crop_of_integer_pixels_is_a_slice() -> None:
    images = batch()
    top, left, side = torch.tensor([0.0, 3, 5, 7]), torch.tensor([1.0, 2, 0, 7]), torch.full((4,), 5.0)
    assert torch.equal(resized_crop(images, top, left, side, side, 5), crop(images, top.long(), left.long(), 5))
    zero, full = torch.zeros(4), torch.full((4,), 12.0)
    assert torch.equal(resized_crop(images, zero, zero, full, full, 12), images)


def test_selected_images_are_resized_bicubically() -> None:
    images = torch.randint(256, (3, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    top, side = torch.full((3,), 1.5), torch.full((3,), 8.0)
    bicubic = torch.tensor([True, False, True])
    mixed = resized_crop(images, top, top, side, side, 12, bicubic)
    linear = resized_crop(images, top, top, side, side, 12)
    cubic = resized_crop(images, top, top, side, side, 12, torch.ones(3, dtype=torch.bool))
    assert torch.equal(mixed[bicubic], cubic[bicubic])
    assert torch.equal(mixed[~bicubic], linear[~bicubic])
    assert not torch.equal(linear, cubic)
    step = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    step[..., 4:] = 200  # a cubic kernel overshoots beside a step, which a linear one does not
    zero, full = torch.zeros(1), torch.full((1,), 8.0)
    assert resized_crop(step, zero, zero, full, full, 16, torch.ones(1, dtype=torch.bool)).max() > 200
    assert resized_crop(step, zero, zero, full, full, 16).max() == 200


def test_resized_crop_agrees_with_pillow() -> None:
    smooth = np.asarray(Image.fromarray(random_pixels(0, 6, 6)).resize((40, 40), Image.Resampling.BICUBIC))
    box = (3.25, 7.5, 23.25, 19.5)  # left, top, right, bottom; enlarged, so that Pillow does not antialias
    expected = np.asarray(Image.fromarray(smooth).resize((24, 24), Image.Resampling.BILINEAR, box)).astype(int)
    numbers = (torch.tensor([value]) for value in (7.5, 3.25, 12.0, 20.0))
    seen = resized_crop(torch.from_numpy(smooth.copy()).permute(2, 0, 1)[None], *numbers, 24)[0].permute(1, 2, 0)
    assert np.abs(seen.numpy().astype(int) - expected)[1:-1, 1:-1].max() <= 2


def test_affine_agrees_with_pillow() -> None:
    pixels = random_pixels(1, 20, 14)
    a, b, tx, c, d, ty = 0.91, 0.32, 2.47, -0.23, 1.12, -1.31
    images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    seen = affine(images, torch.tensor([[[a, b, tx], [c, d, ty]]]), fill=7)[0].permute(1, 2, 0).numpy()
    x, y = 10, 7  # Pillow has its origin at the corner
    data = (a, b, x + tx - a * x - b * y, c, d, y + ty - c * x - d * y)
    expected = Image.fromarray(pixels).transform(
        (20, 14), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(7, 7, 7)
    )
    assert np.abs(seen.astype(int) - np.asarray(expected).astype(int)).max() <= 1


def test_the_identity_transform_changes_nothing() -> None:
    images = batch(size=33)
    assert torch.equal(affine(images, torch.eye(2, 3).expand(4, 2, 3)), images)


def test_rectangle_mask() -> None:
    inside = rectangle_mask(*(torch.tensor([float(n)]) for n in (1, 2, 3, 5)), 4, 6)
    assert inside[0].nonzero().tolist() == [[1, 2], [1, 3], [1, 4], [2, 2], [2, 3], [2, 4]]
