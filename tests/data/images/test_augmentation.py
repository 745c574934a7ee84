"""Augmentation: reproducible, independent of the rest of the batch; mixing, presets and normalisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.images.augmentation import (
    Augmentation,
    AugmentationSettings,
    EvalTransform,
    measure_normalisation,
)
from regard.data.images.datasets import TensorImages
from regard.data.images.preprocessing import Normalisation
from regard.errors import UserError

PLAIN = Normalisation((0.0,) * 3, (1.0,) * 3)
EVERYTHING = {
    "preset": "strong",
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
}


def batch(count: int = 8, size: int = 16, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, size, size), generator=torch.Generator().manual_seed(3)).byte()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augmentation(size: int = 16, channels: int = 3, **values: object) -> Augmentation:
    normalisation = Normalisation((0.5,) * channels, (0.25,) * channels)
    return Augmentation(AugmentationSettings.parse(values, "augmentation"), size, normalisation)


def test_without_augmentation_images_are_only_normalised() -> None:
    images = batch()
    expected = (images.double() / 255 - 0.5) / 0.25
    assert torch.allclose(augmentation()(images, seeded()).double(), expected, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", [{"padding": 0.25}, {"padding": 0, "scale": (0.08, 1.0)}])
def test_the_same_seed_gives_the_same_images(crop: dict[str, object], channels: int) -> None:
    augment, images = augmentation(12, channels, **(EVERYTHING | crop)), batch(channels=channels)
    one, same, other = (augment(images, seeded(seed)) for seed in (1, 1, 2))
    assert one.shape == (8, channels, 12, 12)
    assert one.dtype == torch.float32
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@given(rows=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_the_augmentation_of_an_image_does_not_depend_on_later_images(rows: int, seed: int) -> None:
    augment, images = augmentation(**EVERYTHING), batch()
    together = augment.augment(images, seeded(seed))
    assert torch.equal(augment.augment(images[:rows], seeded(seed)), together[:rows])
    changed = images.clone()
    changed[rows:] = 0
    assert torch.equal(augment.augment(changed, seeded(seed))[:rows], together[:rows])


def test_images_are_augmented_differently() -> None:
    same = batch(1).expand(64, 3, 16, 16)
    seen = augmentation(padding=0.25, flip=0.5).augment(same, seeded())
    assert len({image.numpy().tobytes() for image in seen}) > 40


def test_padded_crops_have_all_possible_positions() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    seen = augmentation(3, 1, padding=1 / 3).augment(image.expand(500, 1, 3, 3), seeded())
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))[0, 0]
    slices = {padded[y : y + 3, x : x + 3].numpy().tobytes() for y in range(3) for x in range(3)}
    assert {image.numpy().tobytes() for image in seen} == slices


def test_larger_images_are_cropped_at_random_positions() -> None:
    images = batch(1, 20).expand(100, 3, 20, 20)
    assert len({image.numpy().tobytes() for image in augmentation(16).augment(images, seeded())}) == 25


def test_random_interpolation_changes_about_half_of_the_images() -> None:
    images = torch.randint(256, (200, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    crops = [
        augmentation(16, scale=(0.5, 0.9), interpolation=kind).augment(images, torch.Generator().manual_seed(1))
        for kind in ("bilinear", "random")
    ]
    changed = (crops[0] != crops[1]).flatten(1).any(1).float().mean()
    assert 0.35 < changed < 0.65


def test_images_smaller_than_the_crop_are_rejected() -> None:
    with pytest.raises(UserError, match=r"images of 16×16 pixels are too small for crops of 32 pixels"):
        augmentation(32)(batch(), seeded())
    assert augmentation(32, scale=[0.5, 1])(batch(), seeded()).shape == (8, 3, 32, 32)


def test_images_are_flipped_with_the_given_probability() -> None:
    images = batch(1).expand(1000, 3, 16, 16)
    flipped = (augmentation(flip=0.3).augment(images, seeded()) != images).flatten(1).any(1)
    assert 250 < int(flipped.sum()) < 350


def test_random_erasing_paints_one_rectangle_of_one_colour() -> None:
    images = torch.zeros(200, 3, 16, 16, dtype=torch.uint8)
    seen = augmentation(random_erasing=0.5).augment(images, seeded())
    painted = (seen > 0).any(1)
    assert 70 < int(painted.flatten(1).any(1).sum()) < 130
    for mask, image in zip(painted, seen, strict=True):
        if mask.any():
            rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
            assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
            assert mask.float().mean() <= 0.4
            assert len(image[:, mask].unique(dim=1).T) == 1


def test_erased_rectangles_vary_in_size_shape_place_and_colour() -> None:
    images = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8)
    seen = augmentation(32, random_erasing=1.0).augment(images, seeded())
    painted = (seen > 0).any(1)
    rows, columns = painted.any(2), painted.any(1)
    heights, widths = rows.sum(1).float(), columns.sum(1).float()
    areas, ratios = heights * widths / 32**2, heights / widths
    assert 0.01 < areas.min() < 0.03 and 0.3 < areas.max() < 0.36
    assert areas.mean() == pytest.approx((0.02 + 0.33) / 2, abs=0.02)
    assert 0.2 < ratios.min() < 0.4 and 2.5 < ratios.max() < 5
    assert ratios.log().mean() == pytest.approx(0, abs=0.1)
    for touched in (rows, columns):  # the distance to either edge has the same distribution
        first, last = touched.int().argmax(1), touched.flip(1).int().argmax(1)
        assert first.min() == last.min() == 0
        assert first.float().mean() == pytest.approx(last.float().mean(), abs=1)
    colours = seen.amax((2, 3)).float()
    assert colours.mean(0).tolist() == pytest.approx([127.5] * 3, abs=8)
    assert torch.corrcoef(colours.T).fill_diagonal_(0).abs().max() < 0.1


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_operations_are_applied_with_the_given_probability(probability: float) -> None:
    images = batch(1).expand(2000, 3, 16, 16)
    seen = augmentation(rand_augment_ops=1, rand_augment_prob=probability).augment(images, seeded())
    changed = (seen != images).flatten(1).any(1).float().mean()
    assert changed == pytest.approx(probability * 13 / 14, abs=0.04)  # one of the fourteen operations is the identity
    twice = augmentation(rand_augment_ops=2, rand_augment_prob=probability).augment(images, seeded())
    same = (twice == images).flatten(1).all(1).float().mean()
    assert same == pytest.approx((1 - probability * 13 / 14) ** 2, abs=0.04)


@given(
    count=st.integers(1, 9),
    mixup=st.sampled_from([0.0, 0.2, 1.0]),
    cutmix=st.sampled_from([0.0, 0.2, 1.0]),
    probability=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_mixed_targets_are_the_visible_shares_of_the_images(
    count: int, mixup: float, cutmix: float, probability: float, seed: int
) -> None:
    labels = torch.arange(count)
    images = labels.float().view(-1, 1, 1, 1).expand(count, 3, 10, 14)  # all pixels have the value of the label
    augment = augmentation(mixup=mixup, cutmix=cutmix, mix_prob=probability)
    mixed, targets = augment.mix(images, labels, count, seeded(seed))
    assert targets.shape == (count, count)
    assert targets.min() >= 0
    assert torch.allclose(targets.sum(1), torch.ones(count))
    assert torch.allclose(mixed.mean((1, 2, 3)), targets @ labels.float(), atol=1e-4)
    if count == 1 or probability == 0 or not (mixup or cutmix):
        assert torch.equal(mixed, images)


def test_mixup_averages_images_and_cutmix_replaces_rectangles() -> None:
    labels = torch.arange(64) % 2
    images = labels.float().view(-1, 1, 1, 1).expand(64, 3, 16, 16)
    averaged, _ = augmentation(mixup=1).mix(images, labels, 2, seeded())
    assert (averaged.amax((1, 2, 3)) - averaged.amin((1, 2, 3))).max() < 1e-6
    cut, _ = augmentation(cutmix=1).mix(images, labels, 2, seeded())
    assert set(cut.unique().tolist()) == {0, 1}
    both, _ = augmentation(mixup=1, cutmix=1).mix(images, labels, 2, seeded())
    uniform = (both.amax((1, 2, 3)) == both.amin((1, 2, 3))).sum()
    assert 16 < int(uniform) < 56


def test_mixing_is_reproducible() -> None:
    images, labels = torch.rand(8, 3, 16, 16), torch.arange(8)
    one, same = (augmentation(preset="strong").mix(images, labels, 8, seeded(5)) for _ in range(2))
    assert torch.equal(one[0], same[0])
    assert torch.equal(one[1], same[1])


def test_presets_define_the_defaults_of_other_keys() -> None:
    assert not AugmentationSettings().mixes
    light, strong = (AugmentationSettings(preset=name) for name in ("light", "strong"))
    assert (light.flip, light.rand_augment_ops, light.mixes) == (0.5, 0, False)
    assert (strong.rand_augment_ops, strong.rand_augment_prob, strong.mixes) == (2, 0.5, True)
    own = AugmentationSettings(preset="strong", flip=0, mixup=0, cutmix=0)
    assert (own.flip, own.rand_augment_ops, own.mixes) == (0, 2, False)
    assert AugmentationSettings.parse(own.model_dump(), "again") == own


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"preset": "mad"}, "preset: input should be 'none', 'light' or 'strong', found 'mad'"),
        ({"flips": 1}, "unknown key flips; did you mean flip?"),
        ({"flip": 2}, "flip: input should be less than or equal to 1"),
        ({"padding": 0.1, "scale": [0.1, 1]}, "scale and padding are two kinds of crop"),
        ({"preset": "light", "scale": [0.1, 1]}, "scale and padding are two kinds of crop"),
        ({"scale": [1, 0.5]}, "scale: must be two numbers greater than 0, the smaller one first"),
        ({"interpolation": "random"}, "interpolation is that of a random resized crop; set scale too"),
        ({"scale": [0.5, 2]}, "scale: the relative area must be at most 1"),
    ],
)
def test_invalid_settings_are_rejected(values: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match="augmentation: ") as raised:
        AugmentationSettings.parse(values, "augmentation")
    assert reason in str(raised.value)


def test_evaluation_uses_the_centre() -> None:
    images = batch(size=20)
    seen = EvalTransform(16, PLAIN)(images)
    assert torch.equal((seen * 255).round().byte(), images[:, :, 2:18, 2:18])


def test_normalisation_is_measured_over_all_pixels() -> None:
    images = batch(300, 5)
    measured = measure_normalisation(TensorImages(("a",), torch.zeros(300).long(), images))
    values = images.numpy().transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert np.allclose(measured.mean, values.mean(1), atol=1e-4)
    assert np.allclose(measured.std, values.std(1), atol=1e-4)
    black = measure_normalisation(
        TensorImages(("a",), torch.zeros(3).long(), torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    )
    assert black == Normalisation((0.0,), (0.01,))
