"""The loss of a batch at a step: cross-entropy under teacher forcing, and what the settings lay over it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.models.transformer import Transformer
from regard.training.objectives.config import ObjectiveSettings
from regard.training.objectives.guided_attention import GuidedAttention
from regard.training.objectives.r_drop import divergence
from regard.training.objectives.scheduled_sampling import ScheduledSampling
from regard.training.objectives.teacher_forcing import cross_entropy, force, read
from regard.training.task import LossSum, Step

if TYPE_CHECKING:
    from regard.training.tasks.translation.task import TextBatch


class TranslationObjective:
    """Scheduled sampling changes what the decoder reads, R-Drop lets it read twice, guided attention watches it."""

    def __init__(self, settings: ObjectiveSettings, smoothing: float, compiled: bool = False) -> None:
        self.smoothing, self.r_drop = smoothing, settings.r_drop
        self.force_framed = torch.compile(force, fullgraph=True, dynamic=False) if compiled else force
        sampling, guide = settings.scheduled_sampling, settings.guided_attention
        self.sampling = None if sampling is None else ScheduledSampling(sampling)
        self.guide = None if guide is None else GuidedAttention(guide)

    def loss(self, model: Transformer, batch: TextBatch, step: Step) -> LossSum:
        """What every strategy adds is a sum over the batch's labels, so that batches of any size weigh alike."""
        count = batch.count
        shares: dict[str, Tensor] = {}  # of this batch, for the log
        if self.sampling is not None and (share := self.sampling.share(int(step))) > 0:
            batch, shares["sampled"] = self.sampling.mix(model, batch, share)
        weight = 0.0 if self.guide is None else self.guide.weight(int(step))
        watching = self.guide.watch(model, batch) if self.guide is not None and weight else nullcontext()
        terms: dict[str, Tensor] = {}
        with watching as guidance:
            if self.r_drop:
                readings = [read(model, batch) for _ in range(2)]
                truth = torch.stack([cross_entropy(x, batch.labels, self.smoothing) for x in readings]).mean(0)
                terms["divergence"] = divergence(*readings)
                total = truth + self.r_drop * terms["divergence"]
            else:  # batches of another size than all others are not worth compiling for
                truth = total = (self.force_framed if batch.framed else force)(model, batch, self.smoothing)
        terms = {"cross_entropy": truth} | terms
        if guidance is not None:
            terms["guide"], shares["on_prior"] = guidance.loss(), guidance.mass()
            total = total + weight * terms["guide"]
        parts = {name: term.detach() for name, term in terms.items()} if len(terms) > 1 else {}
        return LossSum(total, count, parts | {name: share * count for name, share in shares.items()})
