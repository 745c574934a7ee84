"""A task of ours with the model of another program: the same batches, loss, optimiser and loop."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.huggingface_translation import build_huggingface
from regard.interop.huggingface_vision import build_huggingface_classifier
from regard.pipelines.classifier import Classifier
from regard.training.objectives.objective import ObjectiveSettings, cross_entropy
from regard.training.task import LossSum, Step, Task
from regard.training.tasks.classification.batches import ImageBatch
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.translation.batches import TextBatch
from regard.training.tasks.translation.task import TranslationTask


class PeerTask:
    """All of a task but its model and how the loss of a batch is had."""

    def __init__(self, task: Any, model: nn.Module) -> None:
        self._task, self.model = task, model.to(task.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, batch: Any, step: Step) -> LossSum:
        return LossSum(self.total(batch), self._task.count(batch))

    def total(self, batch: Any) -> Tensor:
        """The summed loss."""
        raise NotImplementedError


class TheirTranslation(PeerTask):
    """Teacher forcing."""

    def total(self, batch: TextBatch) -> Tensor:
        assert batch.real is not None  # batches are padded
        real = batch.source_layout.real().long()  # type: ignore[union-attr]
        said = self.model(input_ids=batch.source, attention_mask=real, decoder_input_ids=batch.inputs, use_cache=False)
        return cross_entropy(
            said.logits.flatten(0, 1)[batch.real], batch.labels, self._task.recipe.optim.label_smoothing
        )


class TheirClassification(PeerTask):
    """Images with the shares of their classes."""

    def total(self, batch: ImageBatch) -> Tensor:
        logits = self.model(batch.images).logits.float()
        return F.cross_entropy(logits, batch.targets, reduction="sum")


def in_transformers(task: Task[Any]) -> Task[Any]:
    """The task with a model of transformers of the same weights.

    Raises:
        UserError: transformers has no such model, or is not installed.
    """
    if isinstance(task, ClassificationTask):
        theirs = build_huggingface_classifier(Classifier(task.model, task.preprocessing))
        peer: Any = TheirClassification(task, theirs)
    elif isinstance(task, TranslationTask):
        if task.recipe.objective != ObjectiveSettings():
            raise UserError("is taught by plain teacher forcing, and the recipe has more in teaching")
        peer = TheirTranslation(task, build_huggingface(task.translator))
    else:
        raise UserError("transformers has no model of two views")
    made: Task[Any] = peer
    return made
