"""Scheduled sampling in two passes, for Transformers (Mihaylova and Martins, 2019).

A first pass under teacher forcing predicts every token. Then each input of the decoder but the first is, with the share
that the schedule has reached, the model's own prediction of that token in place of the reference. The loss is that of
the second pass, and gradients flow through it alone.

The first pass is made without dropout: what a decoder reads when it translates was predicted without it, too. Random
numbers come from torch's generator, which a checkpoint saves; where nothing is to be mixed none are drawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.multi_head import disable_qkv_hooks
from regard.models.transformer import Transformer
from regard.training.objectives.config import SamplingSettings
from regard.training.objectives.decay import build_decay
from regard.training.objectives.teacher_forcing import read

if TYPE_CHECKING:
    from regard.training.tasks.translation.task import TextBatch


class ScheduledSampling:
    """Puts predictions in place of the reference, as many as the step asks for."""

    def __init__(self, settings: SamplingSettings) -> None:
        self.settings = settings
        self.decay = build_decay(settings.decay, settings.half_life)

    def share(self, step: int) -> float:
        """Of the decoder's inputs, how many are the model's own predictions at this step."""
        begun = step - self.settings.start
        return 0.0 if begun <= 0 else 1 - max(self.settings.floor, self.decay(begun))

    def mix(self, model: Transformer, batch: TextBatch, share: float) -> tuple[TextBatch, Tensor]:
        """The batch with some of its inputs predicted, and the share that are, the first of each sentence apart."""
        return put_predictions(batch, self._predict(model, batch), share)

    @torch.no_grad()
    def _predict(self, model: Transformer, batch: TextBatch) -> Tensor:
        training = model.training
        model.eval()
        try:
            with disable_qkv_hooks(model):
                logits = read(model, batch)
        finally:
            model.train(training)
        if self.settings.choice == "argmax":
            return logits.argmax(-1)
        odds = logits.float().softmax(-1)
        return (odds / torch.empty_like(odds).exponential_()).argmax(-1)  # a draw that never waits for the device


def put_predictions(batch: TextBatch, predictions: Tensor, share: float) -> tuple[TextBatch, Tensor]:
    """Each input but the first of a sentence becomes, by chance, what was predicted for it.

    Args:
        predictions: one for each label; the input behind a label is the label itself, moved on by one.
    """
    inputs, places = batch.inputs.flatten(), batch.target_layout.positions().expand_as(batch.inputs).flatten()
    if batch.real is not None:
        inputs, places = inputs[batch.real], places[batch.real]
    follows = places > 0
    chosen = follows & (torch.rand(len(inputs), device=inputs.device) < share)
    mixed = torch.where(chosen, predictions.roll(1), inputs)
    if batch.real is not None:
        mixed = batch.inputs.flatten().index_copy(0, batch.real, mixed)
    return replace(batch, inputs=mixed.view_as(batch.inputs)), chosen.sum() / follows.sum().clamp(min=1)
