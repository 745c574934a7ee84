"""Translation by a model that writes all tokens at once, as a task: the same text, batches and validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from regard.data.text.tokens import SCAN_ROWS
from regard.errors import UserError
from regard.models.nat import NATransformer
from regard.training.progress import counted
from regard.training.task import LossSum, Step
from regard.training.tasks.nat.objective import NATObjective
from regard.training.tasks.translation.recipe import NATRecipe
from regard.training.tasks.translation.task import TextBatch, TranslationTask


class NATTask(TranslationTask):
    """The decoder fills a canvas on which some of the reference stands, as its `NATObjective` has it do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self.recipe, NATRecipe) and isinstance(self.model, NATransformer)
        settings = self.recipe.objective
        self.parallel_teacher = NATObjective(
            settings.choose(self.model.config),
            settings.glancing_ratio,
            self.recipe.training.steps,
            self.recipe.optim.label_smoothing,
            settings.length_weight,
        )

    def note(self) -> str:
        """How many pairs are left out since their target is longer than the canvas that their source gives.

        A CTC path needs a blank between equal neighbours, so that it may leave out some more, which the log counts.

        Raises:
            UserError: none is left.
        """
        assert isinstance(self.model, NATransformer)
        config = self.model.config
        if config.length == "classifier":
            return ""
        long = 0
        for start in range(0, len(self.train), SCAN_ROWS):
            rows = np.arange(start, min(start + SCAN_ROWS, len(self.train)))
            needed = self.train.target.lengths_at(rows) - (2 if config.length == "ctc" else 1)
            long += int((needed > config.upsampled_lengths(self.train.source.lengths_at(rows))).sum())
        self.train.release_pages()
        advice = "raise model.upsample_ratio or model.upsample_extra"
        if long == len(self.train):
            raise UserError(f"no training pair is left: the target of each is longer than its canvas; {advice}")
        return f"left out: {counted(long, 'pair')} whose target is longer than the canvas; {advice}" if long else ""

    def teach(self, model: nn.Module, batch: TextBatch, step: Step) -> LossSum:
        assert isinstance(model, NATransformer)
        return self.parallel_teacher.loss(model, batch, step)

    def examine(self, model: nn.Module, batch: TextBatch) -> LossSum:
        """What the model says from the source alone."""
        assert isinstance(model, NATransformer)
        assert isinstance(self.recipe, NATRecipe)
        return NATObjective(length_weight=self.recipe.objective.length_weight).loss(model, batch, 0)
