"""Scheduled sampling in two passes, for Transformers (Mihaylova and Martins, 2019).

The first pass, under teacher forcing, predicts every target token. In the second pass, each decoder input except BOS is
replaced, with a probability that grows during training, by the prediction of the first pass. The loss is that of the
second pass, and gradients flow through it alone.

The first pass runs without dropout, as predictions are made at inference. Random numbers come from torch's default
generator, which is part of a checkpoint; none are drawn while the probability is zero.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from regard.config import Settings
from regard.ops.cross_entropy import IGNORE_INDEX
from regard.training.task import Step
from regard.training.text_batches import TextBatch

Decay = Literal["linear", "exponential", "inverse-sigmoid"]


class ScheduledSampling(Settings):
    """Replaces decoder inputs by predictions, more of them as training proceeds."""

    decay: Decay = Field("inverse-sigmoid", description="how the proportion of reference tokens decays")
    half_life: int = Field(gt=0, description="steps after `start` until half of the decoder inputs are predictions")
    start: int = Field(0, ge=0, description="steps of teacher forcing before the decay starts")
    floor: float = Field(0.5, ge=0, le=1, description="minimum proportion of reference tokens")
    choice: Literal["argmax", "sample"] = Field(
        "argmax", description="take the most probable token, or sample from the model's distribution"
    )

    def applies(self, step: int) -> bool:
        """Return whether the probability is positive at a step."""
        return step > self.start and self.floor < 1

    def probability(self, step: Step) -> Tensor:
        """Return the probability that a decoder input is a prediction, as a float64 tensor ()."""
        elapsed = torch.as_tensor(step, dtype=torch.float64) - self.start
        left = proportion_left(self.decay, self.half_life, elapsed)
        return torch.where(elapsed > 0, 1 - left.clamp(min=self.floor), 0.0)

    def predict(self, logits: Tensor) -> Tensor:
        """Choose a token for each label, (N,), from logits (N, V)."""
        if self.choice == "argmax":
            return logits.argmax(-1)
        probabilities = logits.float().softmax(-1)
        # Equivalent to torch.multinomial, which would synchronise with the device.
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def mix_predictions(batch: TextBatch, predictions: Tensor, probability: float | Tensor) -> tuple[TextBatch, Tensor]:
    """Replace decoder inputs by predictions with a probability, except the first of each sentence.

    The prediction for a label replaces the input at the next position. Also return the proportion that was replaced.
    """
    inputs, positions = batch.inputs.flatten(), batch.target_layout.positions().expand_as(batch.inputs).flatten()
    if batch.real is not None:
        inputs, positions = inputs[batch.real], positions[batch.real]
    replaceable = (positions > 0) & (batch.labels != IGNORE_INDEX)
    replaced = replaceable & (torch.rand(len(inputs), device=inputs.device) < probability)
    mixed = torch.where(replaced, predictions.roll(1), inputs)
    if batch.real is not None:
        mixed = batch.inputs.flatten().index_copy(0, batch.real, mixed)
    proportion = replaced.sum() / replaceable.sum().clamp(min=1)
    return replace(batch, inputs=mixed.view_as(batch.inputs)), proportion


def proportion_left(decay: Decay, half_life: int, step: Tensor) -> Tensor:
    """Return the value of a curve of Bengio et al. (2015), which falls from 1 towards 0 and is 0.5 at `half_life`."""
    if decay == "linear":
        return (1 - step / (2 * half_life)).clamp(min=0)
    if decay == "exponential":
        return torch.exp2(-step / half_life)
    k = _solve_k(half_life)
    return 1 / (1 + torch.exp(step / k) / k)


@cache
def _solve_k(half_life: int) -> float:
    """Solve k ln k = half_life, for which k / (k + exp(step / k)) is 0.5, by Newton's method on ln k."""
    log_k = math.log1p(half_life)
    for _ in range(50):
        log_k -= (log_k * math.exp(log_k) - half_life) / (math.exp(log_k) * (log_k + 1))
    return math.exp(log_k)
