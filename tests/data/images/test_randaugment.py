"""RandAugment: every operation agrees with Pillow."""

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from regard.data.images import transforms
from regard.data.images.randaugment import OPERATIONS, rand_augment
from tests.data.images.helpers import random_pixels

SIZE = 24
Reference = Callable[[Image.Image, float, int], Image.Image]


def smooth(seed: int, channels: int = 3) -> np.ndarray:
    """Return an image similar to a photograph: smooth, and without some of the values."""
    small = Image.fromarray(random_pixels(seed, 5, 5, channels))
    return np.asarray(small.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) // 2 + 40


def batch(count: int = 6, channels: int = 3) -> torch.Tensor:
    return torch.stack(
        [torch.from_numpy(smooth(seed, channels)).view(SIZE, SIZE, -1) for seed in range(count)]
    ).permute(0, 3, 1, 2)


def apply(images: torch.Tensor, name: str, amount: float, sign: int) -> torch.Tensor:
    count = len(images)
    choice = torch.full((count,), OPERATIONS.index(name))
    return rand_augment(images, choice, torch.full((count,), amount), torch.full((count,), float(sign)))


def transform(image: Image.Image, a: float, b: float, tx: float, c: float, d: float, ty: float) -> Image.Image:
    m = SIZE / 2
    data = (a, b, tx + m - a * m - b * m, c, d, ty + m - c * m - d * m)
    return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)


def rotated(image: Image.Image, amount: float, sign: int) -> Image.Image:
    return image.rotate(30 * amount * sign, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)


REFERENCES: dict[str, Reference] = {
    "identity": lambda image, amount, sign: image,
    "rotate": rotated,
    "shear x": lambda image, amount, sign: transform(image, 1, 0.3 * amount * sign, 0, 0, 1, 0),
    "shear y": lambda image, amount, sign: transform(image, 1, 0, 0, 0.3 * amount * sign, 1, 0),
    "translate x": lambda image, amount, sign: transform(image, 1, 0, 0.45 * SIZE * amount * sign, 0, 1, 0),
    "translate y": lambda image, amount, sign: transform(image, 1, 0, 0, 0, 1, 0.45 * SIZE * amount * sign),
    "brightness": lambda image, amount, sign: ImageEnhance.Brightness(image).enhance(1 + 0.9 * amount * sign),
    "contrast": lambda image, amount, sign: ImageEnhance.Contrast(image).enhance(1 + 0.9 * amount * sign),
    "posterize": lambda image, amount, sign: ImageOps.posterize(image, round(8 - 4 * amount)),
    "solarize": lambda image, amount, sign: ImageOps.solarize(image, 256 * (1 - amount)),
    "autocontrast": lambda image, amount, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, amount, sign: ImageOps.equalize(image),
    "saturation": lambda image, amount, sign: ImageEnhance.Color(image).enhance(1 + 0.9 * amount * sign),
    "sharpness": lambda image, amount, sign: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * amount * sign),
}


def test_every_operation_has_a_reference() -> None:
    assert tuple(REFERENCES) == OPERATIONS


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("amount", [0.5, 0.9])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_agree_with_pillow(name: str, amount: float, sign: int) -> None:
    images = batch()
    for image, seen in zip(images, apply(images, name, amount, sign), strict=True):
        pixels = image.permute(1, 2, 0).numpy()
        expected = np.asarray(REFERENCES[name](Image.fromarray(pixels), amount, sign)).astype(int)
        error = np.abs(seen.permute(1, 2, 0).numpy().astype(int) - expected)
        assert error.max() <= 2
        if name != "identity":
            assert not np.array_equal(expected, pixels)  # the reference has an effect


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("autocontrast", "equalize")])
def test_magnitude_zero_changes_nothing(name: str, channels: int) -> None:
    images = torch.cat([batch(4, channels), torch.randint(0, 256, (4, channels, SIZE, SIZE)).byte()])
    for sign in (1, -1):
        assert torch.equal(apply(images, name, 0, sign), images)


def test_the_result_does_not_depend_on_the_rest_of_the_batch() -> None:
    images = batch(len(OPERATIONS))
    choice, amount = torch.arange(len(OPERATIONS)), torch.full((len(OPERATIONS),), 0.8)
    together = rand_augment(images, choice, amount, torch.ones_like(amount))
    for row in range(len(OPERATIONS)):
        part = slice(row, row + 1)
        assert torch.equal(rand_augment(images[part], choice[part], amount[part], torch.ones(1)), together[part])


@pytest.mark.parametrize("channels", [1, 3])
def test_processing_all_images_or_only_the_selected_ones_is_equivalent(channels: int) -> None:
    count = 4 * len(OPERATIONS)
    images, choice = batch(count, channels), torch.arange(count) % len(OPERATIONS)
    amount, sign = torch.linspace(0, 1, count), torch.tensor([1.0, -1.0]).repeat(count // 2)
    selected, complete = (rand_augment(images, choice, amount, sign, all_images) for all_images in (False, True))
    assert torch.equal(selected, complete)
    assert not torch.equal(selected, images)


def test_images_of_one_colour_are_not_changed() -> None:
    flat = torch.full((2, 3, SIZE, SIZE), 77, dtype=torch.uint8)
    for name in ("autocontrast", "equalize"):
        assert torch.equal(apply(flat, name, 1, 1), flat)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_pixel_and_grey_images_keep_their_shape(name: str) -> None:
    for channels in (1, 3):
        tiny = torch.full((2, channels, 1, 1), 200, dtype=torch.uint8)
        assert apply(tiny, name, 0.9, 1).shape == tiny.shape
        grey = batch(2, channels)
        assert apply(grey, name, 0.9, -1).shape == grey.shape


def test_hue_is_rotated_in_yiq() -> None:
    colour = (180, 60, 90)
    images = torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1).repeat(2, 1, 1, 1)
    seen = transforms.rotate_hue(images, torch.tensor([0.0, 0.1]))
    y, i, q = colorsys.rgb_to_yiq(*(value / 255 for value in colour))
    cos, sin = np.cos(0.2 * np.pi), np.sin(0.2 * np.pi)
    expected = colorsys.yiq_to_rgb(y, cos * i - sin * q, sin * i + cos * q)
    assert torch.equal(seen[0], images[0])
    assert np.abs(seen[1].flatten().numpy() - np.array(expected) * 255).max() < 2
