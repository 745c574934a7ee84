"""Overlays of attention maps on images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard import UserError, probe
from regard.inspection.image_attention import global_attention, window_attention
from regard.inspection.overlay import CAPTION_HEIGHT, MARGIN, draw_image_attention, overlay, overlays
from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig


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


def test_boxes_are_outlined_within_their_region() -> None:
    image = np.zeros((224, 224, 3), np.uint8)
    sheet = np.asarray(overlays(image, {}, boxes={"image": [(0.25, 0.5, 0.75, 1.0)]}))
    panel = sheet[MARGIN + CAPTION_HEIGHT :, MARGIN:][:224, :224]
    assert sheet.shape[:2] == (224 + CAPTION_HEIGHT + 2 * MARGIN, 224 + 2 * MARGIN)
    marked = panel.any(-1)
    rows, columns = marked.any(1).nonzero()[0], marked.any(0).nonzero()[0]
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (112, 223, 56, 167)
    assert marked[112:114, 56:168].all() and marked[222:224, 56:168].all()  # two pixels wide
    assert marked[112:224, 56:58].all() and marked[112:224, 166:168].all()
    assert not marked[114:222, 58:166].any()


@pytest.fixture(scope="module")
def vit() -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig.micro(2, image=8, patch=4, width=8, layers=2, heads=2, hidden=8)).eval()


def test_patches_heads_and_modules_that_do_not_exist_are_rejected(vit: ViT) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    with probe(vit) as records, torch.no_grad():
        vit(torch.zeros(1, 3, 8, 8))
    for patch in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(UserError, match="patch"):
            draw_image_attention(vit, records, pixels, patch)
        with pytest.raises(UserError, match="patch"):
            global_attention(vit, records, patch)
    assert draw_image_attention(vit, records, pixels, (1, 1)).size == draw_image_attention(vit, records, pixels).size
    with pytest.raises(UserError, match="head"):
        draw_image_attention(vit, records, pixels, heads=[2])
    with pytest.raises(UserError, match=r"encoder\.7"):
        draw_image_attention(vit, records, pixels, names=["encoder.7.attention"])
    with pytest.raises(UserError, match=r"for ViT and Swin only; use regard\.probe"):
        draw_image_attention(torch.nn.Linear(2, 2), records, pixels)


def test_patches_outside_the_image_are_rejected_for_windows() -> None:
    model = Swin(SwinConfig(image=8, patch=2, width=8, layers=(1, 1), heads=(1, 2), window=2)).eval()
    with probe(model) as records, torch.no_grad():
        model(torch.zeros(1, 3, 8, 8))
    assert len(window_attention(model, records, (8, 8), (3, 3))) == 2
    for patch in ((4, 0), (0, 4)):
        with pytest.raises(UserError, match="patch"):
            window_attention(model, records, (8, 8), patch)


def test_weights_are_drawn_relative_to_the_largest() -> None:
    image, weights = np.zeros((8, 8, 3), np.uint8), np.array([[0.0, 0.02], [0.01, 0.04]])
    drawn = np.asarray(overlay(image, weights, opacity=1))
    assert np.array_equal(drawn, np.asarray(overlay(image, weights * 25, opacity=1)))
    assert not np.array_equal(drawn, np.asarray(overlay(image, weights, opacity=1, largest=1.0)))
