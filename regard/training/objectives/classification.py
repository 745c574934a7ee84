"""Training loss of an image classifier."""

from typing import Any, Literal

import torch.nn.functional as F

from regard.registry import register
from regard.training.objectives.registry import Objective
from regard.training.task import LossSum, Step


@register
class CrossEntropy(Objective):
    """Cross-entropy with the target probabilities, which include label smoothing and mixed images."""

    task = "classification"

    kind: Literal["cross-entropy"] = "cross-entropy"

    def loss(self, model: Any, batch: Any, step: Step) -> LossSum:
        logits = model(batch.images).float()
        return LossSum(F.cross_entropy(logits, batch.targets, reduction="sum"), len(batch))
