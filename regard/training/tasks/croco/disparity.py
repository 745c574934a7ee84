"""Disparity as a task: how far left in the right view each pixel of the left one is found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.two_view import render_stereo
from regard.models.croco import CroCo
from regard.training.task import LossSum, Step, Validation
from regard.training.tasks.croco.pairs import in_renderings
from regard.training.tasks.croco.task import CroCoTask


@dataclass(frozen=True)
class StereoPairs:
    """Rectified pairs, and the disparity of every pixel of the left view."""

    left: Tensor
    right: Tensor
    disparity: Tensor  # (B, H, W), in pixels

    def __len__(self) -> int:
        return len(self.left)

    def part(self, which: slice) -> StereoPairs:
        return StereoPairs(self.left[which], self.right[which], self.disparity[which])


class DisparityTask(CroCoTask[StereoPairs]):
    """The disparities of rendered stereo pairs, in units of a patch, from the whole of both views."""

    def make(self, numbers: Tensor, batch: int = 0) -> StereoPairs:
        settings, seed = self.recipe.data.scenes, self.recipe.training.seed
        rendered = [render_stereo(settings, seed, part) for part in in_renderings(numbers, settings)]
        left, right = (torch.cat([pairs.views[i].image for pairs in rendered]) for i in (0, 1))
        return StereoPairs(left, right, torch.cat([pairs.disparity() for pairs in rendered]))

    def loss(self, batch: StereoPairs, step: Step) -> LossSum:
        found = predict_disparity(self.model, batch.left, batch.right)
        each = F.smooth_l1_loss(found, batch.disparity, reduction="none").mean((1, 2))
        return LossSum(
            each.sum(), len(batch), {"pixels_off": (found.detach() - batch.disparity).abs().mean((1, 2)).sum()}
        )

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """By how many pixels it is off, and how often by more than one, on pairs never trained on."""
        assert isinstance(model, CroCo)
        model.eval()
        off, bad, plain = [], [], []
        for numbers in self.held_out():
            batch = self.make(numbers)
            error = (predict_disparity(model, batch.left, batch.right) - batch.disparity).abs()
            off.append(error.mean((1, 2)))
            bad.append((error > 1).float().mean((1, 2)))
            middle = batch.disparity.flatten(1).median(1).values[:, None, None]
            plain.append((middle - batch.disparity).abs().mean((1, 2)))
        scores = {name: float(torch.cat(part).mean()) for name, part in zip(NAMES, (off, bad, plain), strict=True)}
        return Validation(scores | {"score": -scores["pixels_off"]})


NAMES = ("pixels_off", "share_off_by_one", "pixels_off_flat")
"""The last is what the best single disparity for a whole view would be off by."""


def predict_disparity(model: CroCo, left: Tensor, right: Tensor) -> Tensor:
    """In pixels, (B, H, W); the model's outputs are in patches, so that they are about as large as one."""
    found: Tensor = model(left, right)[:, 0].float() * model.config.patch
    return found
