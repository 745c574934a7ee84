"""Translation by a model that writes all tokens at once, as a task: the same text, batches and validation."""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.models.parallel import ParallelTransformer
from regard.training.parallel.teacher import ParallelTeacher
from regard.training.recipe import ParallelRecipe
from regard.training.task import Loss
from regard.training.translation import TextBatch, TranslationTask


class ParallelTranslationTask(TranslationTask):
    """The decoder fills a canvas on which some of the reference stands, as its `ParallelTeacher` has it do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self.recipe, ParallelRecipe) and isinstance(self.model, ParallelTransformer)
        settings = self.recipe.parallel
        self.parallel_teacher = ParallelTeacher(
            settings.choose(self.model.config),
            settings.glance,
            self.recipe.training.steps,
            self.recipe.optim.smoothing,
            settings.length_weight,
        )

    def teach(self, model: nn.Module, batch: TextBatch, step: int) -> Loss:
        assert isinstance(model, ParallelTransformer)
        return self.parallel_teacher.loss(model, batch, step)

    def examine(self, model: nn.Module, batch: TextBatch) -> Loss:
        """What the model says from the source alone."""
        assert isinstance(model, ParallelTransformer)
        return ParallelTeacher().loss(model, batch, 0)
