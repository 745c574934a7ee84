"""Overlays of attention maps on images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.inspection.overlay import MARGIN, overlay, overlays


def brightness(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L"), float)


def test_largest_weight_is_brightest() -> None:
    weights = np.zeros((7, 7))
    weights[5, 1] = 0.3
    picture = overlay(np.full((224, 224, 3), 128, np.uint8), weights)
    assert picture.size == (224, 224)
    y, x = np.unravel_index(brightness(picture).argmax(), (224, 224))
    assert (y // 32, x // 32) == (5, 1)


def test_opacity_blends_from_the_image_to_the_map() -> None:
    image = np.random.default_rng(0).integers(0, 256, (224, 300, 3), np.uint8)
    weights = np.random.default_rng(1).random((4, 5))
    np.testing.assert_array_equal(np.asarray(overlay(image, weights, 0)), image)
    other = overlay(255 - image, weights, 1)
    np.testing.assert_array_equal(np.asarray(overlay(image, weights, 1)), np.asarray(other))


def test_small_grey_images_are_magnified_without_smoothing() -> None:
    image = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)
    picture = np.asarray(overlay(image, np.zeros((7, 7)), 0))
    assert picture.shape == (224, 224, 3)
    np.testing.assert_array_equal(picture[::8, ::8, 0], image)


def test_maps_can_share_a_scale() -> None:
    image = np.zeros((224, 224, 3), np.uint8)
    faint, strong = np.full((2, 2), 0.1), np.full((2, 2), 1.0)
    assert brightness(overlay(image, faint, largest=1.0)).max() < brightness(overlay(image, strong, largest=1.0)).min()


@pytest.mark.parametrize("weights", [np.full((2, 2), np.nan), np.full((2, 2), -1.0), np.zeros(4)])
def test_invalid_maps_are_rejected(weights: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a map must be"):
        overlay(np.zeros((8, 8), np.uint8), weights)


def test_sheet_contains_the_image_and_every_map(tmp_path: Path) -> None:
    maps = {f"head {n}": np.eye(3) * (n + 1) / 5 for n in range(5)}
    sheet = overlays(np.zeros((224, 224, 3), np.uint8), maps, columns=3)
    assert sheet.width == 3 * (224 + MARGIN) + MARGIN
    last = brightness(sheet)[-MARGIN - 224 :, -MARGIN - 224 :]
    assert last[:224, :224].max() > 120
    sheet.save(tmp_path / "maps.png")
    assert Image.open(tmp_path / "maps.png").format == "PNG"
