"""Augmentation and normalisation of image batches on any device: uint8 in, normalised floats out.

All random numbers come from an explicit generator, one row of numbers per image, so that a resumed run repeats them and
the augmentation of an image does not depend on the rest of the batch. Only mixup and cutmix combine images. Several
batches, each with its own generator, can be augmented in one call.

Shapes: B images, C channels, H height, W width.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.data.images import transforms
from regard.data.images.datasets import ImageDataset
from regard.data.images.preprocessing import Normalisation
from regard.data.images.randaugment import OPERATIONS, rand_augment
from regard.errors import UserError

PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "light": {"padding": 0.125, "flip": 0.5},
    "strong": {"padding": 0.125, "flip": 0.5, "random_erasing": 0.25, "mixup": 0.8, "cutmix": 1.0}
    | {"rand_augment_ops": 2, "rand_augment_magnitude": 9, "rand_augment_prob": 0.5},
}
ERASED_AREA, ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)
IMAGES_AT_ONCE = 256
"""Number of images that are read at a time to measure the normalisation."""
MIN_STD = 1e-2
"""Lower bound of measured standard deviations, which are 0 if all pixels of a channel are equal."""


class AugmentationSettings(Settings):
    """Augmentation of training images; the preset defines the defaults of the other keys."""

    preset: Literal["none", "light", "strong"] = Field("none", description="defines the defaults of the other keys")
    padding: float = Field(0, ge=0, le=1, description="black border, relative to the side, before a random crop")
    scale: tuple[float, float] | None = Field(None, description="random resized crop: range of the relative area")
    ratio: tuple[float, float] = Field((0.75, 1.3333), description="random resized crop: range of the aspect ratio")
    interpolation: Literal["bilinear", "random"] = Field(
        "bilinear", description="random resized crop: random chooses bilinear or bicubic for each image"
    )
    flip: float = Field(0, ge=0, le=1, description="probability of a horizontal flip")
    brightness: float = Field(0, ge=0, le=1, description="colour jitter: maximum relative change of the brightness")
    contrast: float = Field(0, ge=0, le=1, description="colour jitter: maximum relative change of the contrast")
    saturation: float = Field(0, ge=0, le=1, description="colour jitter: maximum relative change of the saturation")
    hue: float = Field(0, ge=0, le=0.5, description="colour jitter: maximum rotation of the hue, in full turns")
    rand_augment_ops: int = Field(0, ge=0, le=10, description="RandAugment: number of operations drawn for each image")
    rand_augment_magnitude: float = Field(9, ge=0, le=10, description="RandAugment: strength of the operations")
    rand_augment_prob: float = Field(1, ge=0, le=1, description="RandAugment: probability of applying an operation")
    random_erasing: float = Field(0, ge=0, le=1, description="probability of painting over a random rectangle")
    mixup: float = Field(0, ge=0, description="alpha of mixup; 0 disables it")
    cutmix: float = Field(0, ge=0, description="alpha of cutmix; 0 disables it")
    mix_prob: float = Field(1, ge=0, le=1, description="probability of mixing an image if mixup or cutmix is enabled")
    mix_until: float = Field(1, ge=0, le=1, description="fraction of the run after which images are no longer mixed")
    light_end: float = Field(0, ge=0, le=1, description="final fraction of the run with only crops and flips")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("preset", "none") not in PRESETS:
            return values  # pydantic reports the error
        return PRESETS[values.get("preset", "none")] | dict(values)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scale is not None and self.padding:
            raise ValueError("scale and padding are two kinds of crop; set one of them to null or 0")
        for name, bounds in (("scale", self.scale), ("ratio", self.ratio)):
            if bounds is not None and not 0 < bounds[0] <= bounds[1]:
                raise ValueError(f"{name}: must be two numbers greater than 0, the smaller one first")
        if self.interpolation != "bilinear" and self.scale is None:
            raise ValueError("interpolation is that of a random resized crop; set scale too")
        if self.scale is not None and self.scale[1] > 1:
            raise ValueError("scale: the relative area must be at most 1")
        return self

    @property
    def stages(self) -> list[tuple[float, Self]]:
        """Settings in the course of a run with the fraction of the run at which they start; the last started apply."""
        crops = {key: getattr(self, key) for key in ("padding", "scale", "ratio", "interpolation", "flip")}
        light = type(self)(**crops)
        return [(0.0, self), (self.mix_until, self.changed(mix_prob=0)), (1 - self.light_end, light)]

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, so that targets are class probabilities."""
        return self.mix_prob > 0 and (self.mixup > 0 or self.cutmix > 0)


def measure_normalisation(dataset: ImageDataset, max_images: int = 5000) -> Normalisation:
    """Return the mean and standard deviation of each channel over evenly spaced images."""
    chosen = torch.linspace(0, len(dataset) - 1, min(len(dataset), max_images)).long()
    pixels, total, square_total = 0, torch.zeros(1), torch.zeros(1)  # the sums broadcast to (C,)
    for indices in torch.split(chosen, IMAGES_AT_ONCE):
        values = dataset.take(indices).double().cpu() / 255
        pixels += values[:, 0].numel()
        total, square_total = total + values.sum((0, 2, 3)), square_total + values.square().sum((0, 2, 3))
    mean = total / pixels
    std = (square_total / pixels - mean.square()).clamp(min=0).sqrt()
    mean_values, std_values = ([round(float(v), 4) for v in values] for values in (mean, std.clamp(min=MIN_STD)))
    return Normalisation(tuple(mean_values), tuple(std_values))


class RandomNumbers:
    """Uniform random numbers for each image of a batch: each call of `uniform` or `integers` uses the next column."""

    def __init__(self, rows: int, columns: int, generators: Sequence[torch.Generator], device: torch.device) -> None:
        per_batch = rows // len(generators)
        numbers = [torch.rand(per_batch, columns, generator=g, device=g.device) for g in generators]
        self.numbers = transforms.to_device(torch.cat(numbers), device)  # a single copy
        self._used = 0

    def uniform(self, low: float = 0, high: float = 1) -> Tensor:
        """Return one number per image, (B,)."""
        return low + (high - low) * self._next_column()

    def integers(self, end: int) -> Tensor:
        """Return one integer from 0 to end - 1 per image, (B,)."""
        return (self._next_column() * end).long().clamp(max=end - 1)

    def _next_column(self) -> Tensor:
        self._used += 1
        return self.numbers[:, self._used - 1]


class Augmentation:
    """Augmentation of training batches.

    The images may consist of several concatenated batches of one size, each with its own generator. The result for a
    batch is the same as if it were augmented alone.
    """

    def __init__(self, settings: AugmentationSettings, size: int, normalisation: Normalisation) -> None:
        self.settings, self.size, self.normalisation = settings, size, normalisation

    def __call__(self, images: Tensor, *generators: torch.Generator) -> Tensor:
        """Augment and normalise uint8 images (B, C, H, W): floats (B, C, size, size)."""
        return self.normalisation(self.augment(images, *generators))

    def mix(self, images: Tensor, labels: Tensor, classes: int, *generators: torch.Generator) -> tuple[Tensor, Tensor]:
        """Mix each image with its predecessor in the batch: mixup (Zhang et al., 2017), cutmix (Yun et al., 2019).

        Mixup averages images with weights from Beta(mixup, mixup). Cutmix replaces a rectangle whose relative area is
        from Beta(cutmix, cutmix). If both are enabled, each image uses one of them with equal probability.

        Args:
            images: Normalised images, (B, C, H, W).
            labels: (B,), on the device of the images.
            classes: Number of classes.
            generators: One generator for each of the concatenated batches.

        Returns:
            Mixed images, and class probabilities (B, classes). A batch of one image is not mixed.
        """
        targets, (height, width) = F.one_hot(labels, classes).to(images), images.shape[2:]
        batch_size = len(images) // len(generators)
        if batch_size < 2 or not (self.settings.mixup or self.settings.cutmix):
            return images, targets
        drawn = [_draw_mix(self.settings, batch_size, height, width, generator) for generator in generators]
        parameters = transforms.to_device(torch.cat(drawn).to(images.dtype), images.device)
        kept, is_cutmix, top, left, bottom, right = parameters.unbind(1)
        inside = transforms.rectangle_mask(top, left, bottom, right, height, width)
        weight = torch.where(is_cutmix[:, None, None].bool(), (~inside).to(images), kept[:, None, None])[:, None]
        mixed = weight * images + (1 - weight) * _predecessors(images, batch_size)
        return mixed, kept[:, None] * targets + (1 - kept[:, None]) * _predecessors(targets, batch_size)

    def augment(self, images: Tensor, *generators: torch.Generator) -> Tensor:
        """Augment images without normalisation and mixing: uint8 (B, C, size, size)."""
        s = self.settings
        random = RandomNumbers(len(images), 20 + 3 * s.rand_augment_ops, generators, images.device)
        images = self._crop(images, random)
        images = transforms.flip(images, random.uniform() < s.flip)
        images = self._jitter(images, random)
        amount = torch.full((len(images),), s.rand_augment_magnitude / 10, device=images.device)
        for _ in range(s.rand_augment_ops):
            applied = random.uniform() < s.rand_augment_prob
            operations = torch.where(applied, random.integers(len(OPERATIONS)), OPERATIONS.index("identity"))
            images = rand_augment(images, operations, amount, 2 * (random.uniform() < 0.5).float() - 1)
        return self._erase(images, random) if s.random_erasing else images

    def _crop(self, images: Tensor, random: RandomNumbers) -> Tensor:
        if self.settings.scale is None:
            images = transforms.pad(images, round(self.settings.padding * self.size))
            height, width = images.shape[2:]
            if min(height, width) < self.size:
                raise UserError(f"images of {width}×{height} pixels are too small for crops of {self.size} pixels")
            top = (random.uniform() * (height - self.size + 1)).long().clamp(max=height - self.size)
            left = (random.uniform() * (width - self.size + 1)).long().clamp(max=width - self.size)
            return transforms.crop(images, top, left, self.size)
        height, width = images.shape[2:]
        area = random.uniform(*self.settings.scale) * height * width
        ratio = random.uniform(*map(math.log, self.settings.ratio)).exp()
        crop_height, crop_width = (area / ratio).sqrt().clamp(max=height), (area * ratio).sqrt().clamp(max=width)
        top, left = random.uniform() * (height - crop_height), random.uniform() * (width - crop_width)
        bicubic = random.uniform() < 0.5 if self.settings.interpolation == "random" else None
        return transforms.resized_crop(images, top, left, crop_height, crop_width, self.size, bicubic)

    def _jitter(self, images: Tensor, random: RandomNumbers) -> Tensor:
        s = self.settings
        if s.brightness:
            factor = random.uniform(1 - s.brightness, 1 + s.brightness)
            table = transforms.scale_table(transforms.identity_table(images), torch.zeros_like(factor), factor)
            images = transforms.apply_table(images, table)
        if s.contrast:
            mean, factor = transforms.mean_grey(images), random.uniform(1 - s.contrast, 1 + s.contrast)
            table = transforms.scale_table(transforms.identity_table(images), mean, factor)
            images = transforms.apply_table(images, table)
        if s.saturation:
            factor = random.uniform(1 - s.saturation, 1 + s.saturation)
            images = transforms.blend(transforms.grey(images), images, factor)
        return transforms.rotate_hue(images, random.uniform(-s.hue, s.hue)) if s.hue else images

    def _erase(self, images: Tensor, random: RandomNumbers) -> Tensor:
        """Paint a rectangle of one random colour over some images."""
        height, width = images.shape[2:]
        selected = random.uniform() < self.settings.random_erasing
        area = random.uniform(*ERASED_AREA) * height * width
        ratio = random.uniform(*map(math.log, ERASED_RATIO)).exp()
        box_height = (area * ratio).sqrt().round().clamp(1, height)
        box_width = (area / ratio).sqrt().round().clamp(1, width)
        top = (random.uniform() * (height - box_height)).round()
        left = (random.uniform() * (width - box_width)).round()
        inside = transforms.rectangle_mask(top, left, top + box_height, left + box_width, height, width)
        colour = transforms.to_bytes(torch.stack([random.uniform(0, 255) for _ in range(images.shape[1])], 1))
        return torch.where((inside & selected[:, None, None])[:, None], colour[:, :, None, None], images)


class EvalTransform:
    """Centre crop and normalisation of batches for evaluation. Images are resized when they are stored or decoded."""

    def __init__(self, size: int, normalisation: Normalisation) -> None:
        self.size, self.normalisation = size, normalisation

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 images (B, C, H, W) to floats (B, C, size, size)."""
        return self.normalisation(transforms.centre_crop(images, self.size))


def _draw_mix(
    settings: AugmentationSettings, count: int, height: int, width: int, generator: torch.Generator
) -> Tensor:
    """Draw for each image how it is mixed with another one.

    Returns:
        The columns are the share of the image that is kept, whether CutMix is used instead of mixup, and the top, left,
        bottom and right of the rectangle that CutMix replaces, (count, 6).
    """
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    rng = np.random.default_rng(seed)  # the Beta distribution of torch does not accept a generator
    mix_draw, cutmix_draw, y, x = torch.from_numpy(rng.random((4, count)))
    cutmix_prob = 0.0
    if settings.cutmix:
        cutmix_prob = 0.5 if settings.mixup else 1.0
    is_mixed, is_cutmix = mix_draw < settings.mix_prob, cutmix_draw < cutmix_prob
    alphas = settings.mixup or 1, settings.cutmix or 1  # 1: drawn, but not used if the method is off
    mixup_kept, cutmix_kept = (torch.from_numpy(rng.beta(alpha, alpha, count)) for alpha in alphas)
    kept = torch.where(is_mixed, torch.where(is_cutmix, cutmix_kept, mixup_kept), 1.0)
    top, left, bottom, right = _cut_rectangles(1 - kept, y * height, x * width, height, width)
    kept = torch.where(is_cutmix, 1 - (bottom - top) * (right - left) / (height * width), kept)
    return torch.stack([kept, is_cutmix, top, left, bottom, right], 1)


def _cut_rectangles(
    share: Tensor, centre_y: Tensor, centre_x: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the top, left, bottom and right of rectangles with a share of the image's area, clipped to the image."""
    box_height, box_width = ((share.sqrt() * side).round() for side in (height, width))
    top, left = (centre_y - box_height / 2).round(), (centre_x - box_width / 2).round()
    bottom, right = (top + box_height).clamp(max=height), (left + box_width).clamp(max=width)
    return top.clamp(min=0), left.clamp(min=0), bottom, right


def _predecessors(rows: Tensor, batch_size: int) -> Tensor:
    """Return the preceding row of each row; the first row of a batch is preceded by the last."""
    return rows.view(-1, batch_size, *rows.shape[1:]).roll(1, 1).view(rows.shape)
