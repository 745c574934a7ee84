"""Augmentation of batches on any device: uint8 in, normalised floats out; and what validation sees instead.

All numbers are drawn from an explicit generator, a row of them for each image, so that a run that goes on draws what it
would have drawn, and what happens to an image does not depend on the others in its batch. Only mixing joins images.
So several batches can be changed at once, each with a generator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.data.images import transforms
from regard.data.images.datasets import ImageDataset
from regard.data.images.randaugment import OPERATIONS, operate
from regard.data.images.transforms import to_device, within
from regard.errors import UserError

PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "light": {"padding": 0.125, "flip": 0.5},
    "strong": {"padding": 0.125, "flip": 0.5, "random_erasing": 0.25, "mixup": 0.8, "cutmix": 1.0}
    | {"rand_augment_ops": 2, "rand_augment_magnitude": 9, "rand_augment_prob": 0.5},
}
ERASED_AREA, ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)


class AugmentationSettings(Settings):
    """How training images are changed; a preset says where the other keys start from."""

    preset: Literal["none", "light", "strong"] = Field(
        "none", description="none, light (crop, flip) or strong (RandAugment, erasing, mixing too): the others' start"
    )
    padding: float = Field(
        0, ge=0, le=1, description="black border, as a share of the side, from which a random square is cut"
    )
    scale: tuple[float, float] | None = Field(
        None, description="random resized crop: smallest and largest share of the area, as [0.08, 1] for photographs"
    )
    ratio: tuple[float, float] = Field((0.75, 1.3333), description="narrowest and widest shape of such a crop")
    flip: float = Field(0, ge=0, le=1, description="share of images that are turned left to right")
    brightness: float = Field(0, ge=0, le=1, description="jitter: light is multiplied by 1 ± at most this")
    contrast: float = Field(0, ge=0, le=1, description="jitter: contrast is multiplied by 1 ± at most this")
    saturation: float = Field(0, ge=0, le=1, description="jitter: saturation is multiplied by 1 ± at most this")
    hue: float = Field(0, ge=0, le=0.5, description="jitter: colours are turned by ± at most this part of a full turn")
    rand_augment_ops: int = Field(0, ge=0, le=10, description="RandAugment: operations that are drawn for each image")
    rand_augment_magnitude: float = Field(9, ge=0, le=10, description="RandAugment: how strong each of them is")
    rand_augment_prob: float = Field(1, ge=0, le=1, description="RandAugment: how often one that is drawn is also done")
    random_erasing: float = Field(0, ge=0, le=1, description="share of images of which a rectangle is painted over")
    mixup: float = Field(0, ge=0, description="alpha of mixup: two images laid over each other; 0: none")
    cutmix: float = Field(0, ge=0, description="alpha of cutmix: a part of one image covered by another; 0: none")
    mix_prob: float = Field(1, ge=0, le=1, description="share of images that are mixed, if mixup or cutmix is on")
    mix_until: float = Field(
        1, ge=0, le=1, description="share of the run, at its beginning, in which images are mixed; later none are"
    )
    light_end: float = Field(
        0, ge=0, le=1, description="share of the run, at its end, in which images are cropped and flipped and no more"
    )

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("preset", "none") not in PRESETS:
            return values  # refused with a better reason than could be given here
        return PRESETS[values.get("preset", "none")] | dict(values)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scale is not None and self.padding:
            raise ValueError("scale and padding are two ways to crop; give one of them, and 0 or null for the other")
        for name, bounds in (("scale", self.scale), ("ratio", self.ratio)):
            if bounds is not None and not 0 < bounds[0] <= bounds[1]:
                raise ValueError(f"{name}: two numbers above 0 are needed, the smaller one first")
        if self.scale is not None and self.scale[1] > 1:
            raise ValueError("scale: an image has no more than 1 of its area")
        return self

    @property
    def stages(self) -> list[tuple[float, Self]]:
        """What a run does, one after the other, each from a share of the run on; the last that has begun holds."""
        settled = type(self)(padding=self.padding, scale=self.scale, ratio=self.ratio, flip=self.flip)
        return [(0.0, self), (self.mix_until, self.changed(mix_prob=0)), (1 - self.light_end, settled)]

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, so that targets are shares of classes."""
        return self.mix_prob > 0 and (self.mixup > 0 or self.cutmix > 0)


@dataclass(frozen=True)
class Normalisation:
    """What is taken from each channel, and what the rest is divided by; both on a scale from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Floats of uint8 images (B, C, H, W)."""
        mean, std = (transforms.constant(each, images.device).view(1, -1, 1, 1) for each in (self.mean, self.std))
        return (images.float() / 255 - mean) / std

    def undo(self, images: Tensor) -> Tensor:
        """The uint8 images, but for what was rounded."""
        mean, std = (transforms.constant(each, images.device).view(1, -1, 1, 1) for each in (self.mean, self.std))
        return transforms.to_bytes((images * std + mean) * 255)


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def measure_normalisation(pictures: ImageDataset, most: int = 5000) -> Normalisation:
    """Mean and standard deviation of each channel over all pixels of evenly spaced images."""
    chosen = torch.linspace(0, len(pictures) - 1, min(len(pictures), most)).long()
    count, total, squares = 0, torch.zeros(1), torch.zeros(1)
    for part in torch.split(chosen, 256):
        values = pictures.take(part).double().cpu() / 255
        count += values[:, 0].numel()
        total, squares = total + values.sum((0, 2, 3)), squares + values.square().sum((0, 2, 3))
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    rounded = [[round(float(value), 4) for value in each] for each in (mean, std.clamp(min=1e-2))]
    return Normalisation(tuple(rounded[0]), tuple(rounded[1]))


class Dice:
    """Numbers from 0 to 1 for each image of a batch: a row is its own, whatever rows are beside it."""

    def __init__(self, rows: int, columns: int, generators: Sequence[torch.Generator], device: torch.device) -> None:
        each = rows // len(generators)
        numbers = [torch.rand(each, columns, generator=one, device=one.device) for one in generators]
        self.numbers = transforms.to_device(torch.cat(numbers), device)  # all at once
        self._next = 0

    def roll(self, low: float = 0, high: float = 1) -> Tensor:
        """One number for each image, on the images' device."""
        return low + (high - low) * self._column()

    def choose(self, choices: int) -> Tensor:
        """One whole number below `choices` for each image."""
        return (self._column() * choices).long().clamp(max=choices - 1)

    def _column(self) -> Tensor:
        self._next += 1
        return self.numbers[:, self._next - 1]


class Augmentation:
    """What training does to a batch of images, or to several batches of one size, one behind the other.

    Whatever is done to a batch is drawn from its own generator, so that it is the same alone and in company.

    Raises:
        UserError: the images are smaller than what is to be cut from them.
    """

    def __init__(self, settings: AugmentationSettings, size: int, normalisation: Normalisation) -> None:
        self.settings, self.size, self.normalisation = settings, size, normalisation

    def __call__(self, images: Tensor, *generators: torch.Generator) -> Tensor:
        """Changes uint8 images (B, C, H, W) into floats (B, C, size, size)."""
        return self.normalisation(self.change(images, *generators))

    def mix(self, images: Tensor, labels: Tensor, classes: int, *generators: torch.Generator) -> tuple[Tensor, Tensor]:
        """Mixes floats; labels (B,) become shares (B, classes)."""
        s = self.settings
        return mix(images, labels, classes, *generators, mixup=s.mixup, cutmix=s.cutmix, share=s.mix_prob)

    def change(self, images: Tensor, *generators: torch.Generator) -> Tensor:
        """Everything but normalisation and mixing: uint8 (B, C, size, size)."""
        s = self.settings
        dice = Dice(len(images), 20 + 3 * s.rand_augment_ops, generators, images.device)
        images = self._crop(images, dice)
        images = transforms.flip(images, dice.roll() < s.flip)
        images = self._jitter(images, dice)
        amount = torch.full((len(images),), s.rand_augment_magnitude / 10, device=images.device)
        for _ in range(s.rand_augment_ops):
            done = dice.roll() < s.rand_augment_prob
            choice = torch.where(done, dice.choose(len(OPERATIONS)), OPERATIONS.index("identity"))
            images = operate(images, choice, amount, 2 * (dice.roll() < 0.5).float() - 1)
        return self._erase(images, dice) if s.random_erasing else images

    def _crop(self, images: Tensor, dice: Dice) -> Tensor:
        height, width = images.shape[2:]
        if self.settings.scale is None:
            images = transforms.pad(images, round(self.settings.padding * self.size))
            height, width = images.shape[2:]
            if min(height, width) < self.size:
                raise UserError(f"images of {width}×{height} pixels are too small to cut {self.size} from them")
            down, right = dice.roll(), dice.roll()
            top, left = ((roll * (side - self.size + 1)).long() for roll, side in ((down, height), (right, width)))
            return transforms.crop(
                images, top.clamp(max=height - self.size), left.clamp(max=width - self.size), self.size
            )
        area = dice.roll(*self.settings.scale) * height * width
        shape = dice.roll(*map(math.log, self.settings.ratio)).exp()
        tall, wide = (area / shape).sqrt().clamp(max=height), (area * shape).sqrt().clamp(max=width)
        top, left = dice.roll() * (height - tall), dice.roll() * (width - wide)
        return transforms.resized_crop(images, top, left, tall, wide, self.size)

    def _jitter(self, images: Tensor, dice: Dice) -> Tensor:
        """Light, contrast, saturation and hue, in this order."""
        s = self.settings
        if s.brightness:
            factor = dice.roll(1 - s.brightness, 1 + s.brightness)
            images = transforms.look_up(
                images, transforms.scale(transforms.values(images), torch.zeros_like(factor), factor)
            )
        if s.contrast:
            mean, factor = transforms.mean_grey(transforms.grey(images)), dice.roll(1 - s.contrast, 1 + s.contrast)
            images = transforms.look_up(images, transforms.scale(transforms.values(images), mean, factor))
        if s.saturation:
            images = transforms.saturation(images, dice.roll(1 - s.saturation, 1 + s.saturation))
        return transforms.hue(images, dice.roll(-s.hue, s.hue)) if s.hue else images

    def _erase(self, images: Tensor, dice: Dice) -> Tensor:
        """Paints a rectangle of one random colour over some images."""
        height, width = images.shape[2:]
        chosen = dice.roll() < self.settings.random_erasing
        area = dice.roll(*ERASED_AREA) * height * width
        shape = dice.roll(*map(math.log, ERASED_RATIO)).exp()
        tall = (area * shape).sqrt().round().clamp(1, height)
        wide = (area / shape).sqrt().round().clamp(1, width)
        top, left = (dice.roll() * (height - tall)).round(), (dice.roll() * (width - wide)).round()
        inside = transforms.within(top, left, top + tall, left + wide, height, width) & chosen[:, None, None]
        colour = transforms.to_bytes(torch.stack([dice.roll(0, 255) for _ in range(images.shape[1])], 1))
        return torch.where(inside[:, None], colour[:, :, None, None], images)


class EvalTransform:
    """What validation and use do to a batch of images: the middle is cut out and normalised.

    Images are brought to their frame by `fit` when they are stored or read, which is where they are resized.
    """

    def __init__(self, size: int, normalisation: Normalisation) -> None:
        self.size, self.normalisation = size, normalisation

    def __call__(self, images: Tensor) -> Tensor:
        """Floats (B, C, size, size) of uint8 images that are no smaller."""
        return self.normalisation(transforms.centre_crop(images, self.size))


def mix(
    images: Tensor,
    labels: Tensor,
    classes: int,
    *generators: torch.Generator,
    mixup: float,
    cutmix: float,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mixes each image with its neighbour in the batch, by a weight of its own; a batch of one is left alone.

    Args:
        images: float (B, C, H, W), of one batch, or of several of one size, one behind the other.
        labels: (B,), on the images' device.
        classes: How many there are.
        generators: One for each batch decides about everything in it.
        mixup: The two images are laid over each other, with weights from Beta(mixup, mixup); 0: never.
        cutmix: A rectangle of the neighbour covers a part drawn from Beta(cutmix, cutmix); 0: never. With both, each
            image takes either, with even chances.
        share: Of the images, how many are mixed.

    Returns:
        The images, and targets (B, classes) whose rows sum to one.
    """
    targets, (height, width) = F.one_hot(labels, classes).to(images), images.shape[2:]
    count = len(images) // len(generators)
    if count < 2 or not (mixup or cutmix):
        return images, targets
    drawn = [_draw(count, height, width, one, mixup, cutmix, share) for one in generators]
    numbers = to_device(torch.cat(drawn).to(images.dtype), images.device)
    kept, cutting, top, left, bottom, right = numbers.unbind(1)
    inside = within(top, left, bottom, right, height, width)
    weight = torch.where(cutting[:, None, None].bool(), (~inside).to(images), kept[:, None, None])[:, None]
    mixed = weight * images + (1 - weight) * _neighbours(images, count)
    return mixed, kept[:, None] * targets + (1 - kept[:, None]) * _neighbours(targets, count)


def _draw(
    count: int, height: int, width: int, generator: torch.Generator, mixup: float, cutmix: float, share: float
) -> Tensor:
    """How each image of a batch is mixed, (count, 6): how much of it stays, whether by cutting, and the rectangle."""
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    rng = np.random.default_rng(seed)  # torch has no Beta distribution that takes a generator
    mixed, cuts, y, x = torch.from_numpy(rng.random((4, count)))
    cutting = (cuts < (0.5 if mixup else 1.0)) & (cutmix > 0)
    weights = [torch.from_numpy(rng.beta(alpha or 1, alpha or 1, count)) for alpha in (mixup, cutmix)]
    kept = torch.where(mixed < share, torch.where(cutting, weights[1], weights[0]), 1.0)
    cut_height, cut_width = (((1 - kept).sqrt() * side).round() for side in (height, width))
    top, left = (y * height - cut_height / 2).round(), (x * width - cut_width / 2).round()
    bottom, right = (top + cut_height).clamp(max=height), (left + cut_width).clamp(max=width)
    top, left = top.clamp(min=0), left.clamp(min=0)
    kept = torch.where(cutting, 1 - (bottom - top) * (right - left) / (height * width), kept)
    return torch.stack([kept, cutting, top, left, bottom, right], 1)


def _neighbours(rows: Tensor, count: int) -> Tensor:
    """For each row that before it, and for the first of every `count` the last of them."""
    return rows.view(-1, count, *rows.shape[1:]).roll(1, 1).view(rows.shape)
