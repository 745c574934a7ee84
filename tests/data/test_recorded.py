"""Random data stays the same from version to version, so that scores on it can be compared.

The expected values were recorded once. Each row describes an image: its mean, its weighted means from top to bottom and
from left to right, and its standard deviation.
"""

import pytest
import torch
from torch import Tensor

from regard.data.builtin.rendered_shapes import CLASSES, render_shapes
from regard.data.images.augmentation import Augmentation, AugmentationSettings
from regard.data.images.preprocessing import Normalisation
from regard.data.two_view.pairs import render_pairs, render_stereo
from regard.data.two_view.scene import SceneSettings

Rows = list[tuple[float, ...]]


def describe(images: Tensor) -> Rows:
    """Describe images of (B, C, H, W)."""
    x = images.double()
    down, right = (torch.linspace(-1, 1, size).double() for size in x.shape[2:])
    means = [weighted.mean((2, 3)) for weighted in (x, x * down[:, None], x * right)]
    deviation = (x - means[0][:, :, None, None]).square().mean((2, 3)).sqrt()
    return [tuple(row) for row in torch.stack([*means, deviation], -1).mean(1).tolist()]


def assert_close(images: Tensor, expected: Rows, tolerance: float = 0.2) -> None:
    found = describe(images)
    assert len(found) == len(expected)
    for row, values in zip(found, expected, strict=True):
        assert row == pytest.approx(values, abs=tolerance)


def test_shapes_are_the_same_in_every_version() -> None:
    shapes = render_shapes(10, 7)
    assert [CLASSES[label] for label in shapes.labels.tolist()] == LABELS
    assert_close(shapes.pixels, SHAPES)


def test_scenes_are_the_same_in_every_version() -> None:
    settings, scenes = SceneSettings(size=(24, 32)), torch.arange(4, 7)
    pairs, stereo = render_pairs(settings, 3, scenes), render_stereo(settings, 3, scenes)
    assert torch.equal(pairs.views[0].image, stereo.views[0].image)
    views = [pairs.views[0], pairs.views[1], stereo.views[1]]
    assert_close(torch.cat([255 * view.image for view in views]), VIEWS)
    assert_close(torch.cat([view.depth[:, None] for view in views]), DEPTHS, 0.01)
    assert_close(stereo.disparity()[:, None], DISPARITIES, 0.01)


SETTINGS: dict[str, dict[str, object]] = {
    "light": {"preset": "light"},
    "strong": {"preset": "strong"},
    "everything": {
        "preset": "strong",
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
        "scale": (0.3, 1.0),
        "padding": 0,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_augmented_images_are_the_same_in_every_version(name: str) -> None:
    settings = AugmentationSettings.parse(SETTINGS[name], name)
    augmentation = Augmentation(settings, 16, Normalisation((0.5,) * 3, (0.25,) * 3))
    images = render_shapes(6, 1, 24).pixels
    assert_close(augmentation.augment(images, torch.Generator().manual_seed(5)), AUGMENTED[name])


@pytest.mark.parametrize("name", MIXED_SETTINGS := {"both": {}, "mixup": {"cutmix": 0}, "cutmix": {"mixup": 0}})
def test_mixed_images_are_the_same_in_every_version(name: str) -> None:
    settings = AugmentationSettings.parse({"preset": "strong", "mix_prob": 0.8} | MIXED_SETTINGS[name], name)
    augmentation = Augmentation(settings, 24, Normalisation((0.0,) * 3, (1.0,) * 3))
    images, labels = render_shapes(6, 1, 24).pixels.float(), torch.arange(6)
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    mixed, targets = augmentation.mix(images, labels, 6, *generators)
    assert_close(mixed, MIXED[name])
    assert targets.diagonal().tolist() == pytest.approx(KEPT[name], abs=1e-3)


LABELS = ["heart", "arrow", "crescent", "cross", "bar", "square", "triangle", "ring", "star", "circle"]
SHAPES: Rows = [
    (75.55, -0.56, 0.24, 30.62),
    (58.88, -8.59, 5.89, 44.58),
    (70.09, -7.56, -10.59, 47.75),
    (123.25, 8.02, 3.09, 37.90),
    (81.57, -1.62, -3.33, 26.81),
    (102.85, 11.08, 12.18, 58.33),
    (62.18, -3.33, -0.52, 36.81),
    (105.62, -2.40, -2.96, 46.81),
    (103.53, -1.34, 0.74, 36.41),
    (93.91, 2.08, 6.76, 52.69),
]
VIEWS: Rows = [
    (104.36, 7.21, 4.23, 45.41),
    (127.07, 2.85, 0.80, 62.14),
    (103.33, 0.63, 7.79, 52.03),
    (98.78, 3.51, -15.75, 54.75),
    (125.72, -1.69, 5.94, 59.12),
    (139.09, 3.39, 6.62, 61.76),
    (105.18, 8.93, -0.25, 43.69),
    (125.16, 4.02, 2.17, 59.08),
    (101.57, 0.80, 2.80, 54.14),
]
DEPTHS: Rows = [
    (2.950, -0.468, -0.507, 1.838),
    (3.358, 0.219, -0.639, 1.768),
    (5.186, 0.541, -0.065, 1.580),
    (2.586, 0.103, 0.163, 0.326),
    (2.995, 0.486, -0.695, 1.815),
    (3.458, 0.043, 0.338, 0.578),
    (2.664, -0.507, -0.398, 1.702),
    (2.989, 0.283, -0.242, 1.565),
    (5.042, 0.568, -0.234, 1.750),
]
DISPARITIES: Rows = [
    (4.233, 0.861, 0.813, 2.414),
    (3.379, -0.253, 0.462, 1.563),
    (3.497, -0.433, 0.157, 1.305),
]
AUGMENTED: dict[str, Rows] = {
    "light": [
        (91.72, -2.64, 11.74, 47.21),
        (103.28, -23.36, -5.16, 46.22),
        (131.37, 3.96, -21.29, 44.59),
        (109.44, 1.07, -2.88, 23.51),
        (113.56, 7.14, 17.58, 44.06),
        (60.49, 8.92, -13.97, 40.03),
    ],
    "strong": [
        (127.59, -3.72, 16.33, 65.53),
        (20.21, -2.56, 2.88, 9.13),
        (128.02, 6.58, 22.43, 56.25),
        (20.32, 0.34, -0.01, 4.79),
        (118.57, 9.46, 16.78, 46.62),
        (66.78, 12.86, -7.53, 43.06),
    ],
    "everything": [
        (191.82, -2.65, 0.81, 15.20),
        (86.35, -4.97, 2.99, 21.48),
        (113.77, 1.96, 4.50, 23.76),
        (127.69, -3.90, -3.28, 40.91),
        (101.86, -9.94, -13.51, 47.48),
        (130.86, 7.88, 0.77, 41.75),
    ],
}
MIXED: dict[str, Rows] = {
    "both": [
        (85.38, 5.05, 0.09, 32.66),
        (75.11, 0.12, -1.70, 38.82),
        (116.93, 5.53, 11.16, 41.27),
        (81.86, 2.31, -1.06, 25.11),
        (110.18, 5.23, -6.47, 42.04),
        (90.30, 19.33, -8.08, 55.12),
    ],
    "mixup": [
        (100.64, 5.33, 5.50, 30.59),
        (86.51, -8.67, -3.11, 40.52),
        (116.93, 5.53, 11.16, 41.27),
        (81.86, 2.31, -1.06, 25.11),
        (114.98, 7.19, -9.63, 44.04),
        (107.98, 7.27, -8.06, 38.38),
    ],
    "cutmix": [
        (85.38, 5.05, 0.09, 32.66),
        (75.11, 0.12, -1.70, 38.82),
        (116.93, 5.53, 11.16, 41.27),
        (87.82, -4.78, 1.09, 45.69),
        (110.18, 5.23, -6.47, 42.04),
        (90.30, 19.33, -8.08, 55.12),
    ],
}
KEPT = {
    "both": [0.9931, 0.4688, 1.0, 0.4594, 0.9375, 0.5035],
    "mixup": [0.5147, 0.9207, 1.0, 0.4594, 0.9948, 0.1536],
    "cutmix": [0.9931, 0.4688, 1.0, 0.3889, 0.9375, 0.5035],
}
