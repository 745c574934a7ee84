"""Training loss of an autoregressive translator: teacher forcing, optionally with further terms.

Scheduled sampling changes the decoder inputs, R-Drop (Liang et al., 2021) runs the decoder twice with different dropout
and penalises the difference, and guided attention adds a loss on cross-attention weights.

Shapes: N target tokens to predict, W width, V vocabulary.
"""

from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from regard.attention.multi_head import disable_qkv_hooks
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from regard.registry import register
from regard.training.objectives.guided_attention import GuidedAttention
from regard.training.objectives.registry import Objective
from regard.training.objectives.scheduled_sampling import ScheduledSampling, mix_predictions
from regard.training.task import LossSum, Step
from regard.training.tasks.translation.batches import TextBatch


@register
class ObjectiveSettings(Objective):
    """Additions to teacher forcing; all are off by default."""

    task = "translation"

    kind: Literal["teacher-forcing"] = Field("teacher-forcing", description="this loss, or that of an extension")
    scheduled_sampling: ScheduledSampling | None = None
    guided_attention: GuidedAttention | None = None
    r_drop: float = Field(
        0.0, ge=0, description="weight of the divergence between two forward passes; 0: R-Drop is off"
    )

    def check_model(self, config: TransformerConfig) -> None:
        if self.guided_attention is not None:
            self.guided_attention.check_model(config)

    def build(self, recipe: Any, config: Any) -> "TranslationObjective":
        return TranslationObjective(self, recipe.optim.label_smoothing, recipe.training.compile)


class TranslationObjective:
    """Computes the loss of a batch at a step. If `compiled`, the loss of batches of fixed shape is compiled.

    Attributes:
        samples: Whether scheduled sampling applies to the current step.
        guides: Whether attention is guided in the current step.
    """

    def __init__(self, settings: ObjectiveSettings, label_smoothing: float, compiled: bool = False) -> None:
        self.label_smoothing, self.r_drop = label_smoothing, settings.r_drop
        self.compiled_loss = torch.compile(teacher_forcing_loss, fullgraph=True, dynamic=False) if compiled else None
        self.sampling, self.guide = settings.scheduled_sampling, settings.guided_attention
        self.samples = self.guides = False

    def begin_step(self, step: int) -> Hashable:
        """Determine which additions apply to a step; see `Task.begin_step`."""
        self.samples = self.sampling is not None and self.sampling.applies(step)
        self.guides = self.guide is not None and self.guide.applies(step)
        return self.samples, self.guides

    def loss(self, model: Transformer, batch: TextBatch, step: Step) -> LossSum:
        """Return the loss; all terms are sums over the labels, so that the losses of microbatches add up."""
        if isinstance(step, int):  # a tensor in a captured step, which the training loop has begun
            self.begin_step(step)
        count = batch.count
        proportions: dict[str, Tensor] = {}
        if self.sampling is not None and self.samples:
            predictions = self.sampling.predict(predicted_logits(model, batch))
            batch, proportions["sampled"] = mix_predictions(batch, predictions, self.sampling.probability(step))
        guide = self.guide if self.guides else None
        with nullcontext() if guide is None else guide.observe(model, batch) as guidance:
            terms = self._forward(model, batch)
        total = terms["cross_entropy"]
        if self.r_drop:
            total = total + self.r_drop * terms["divergence"]
        if guide is not None and guidance is not None:
            losses, masses = zip(*guidance, strict=True)
            terms["guide"], proportions["on_prior"] = torch.stack(losses).mean(0), torch.stack(masses).mean(0)
            total = total + guide.weight_at(step) * terms["guide"]
        logged = {name: term.detach() for name, term in terms.items()} if len(terms) > 1 else {}
        return LossSum(total, count, logged | {name: share * count for name, share in proportions.items()})

    def _forward(self, model: Transformer, batch: TextBatch) -> dict[str, Tensor]:
        if self.r_drop:
            passes = [logits_of_labels(model, batch) for _ in range(2)]
            losses = [cross_entropy(logits, batch.labels, self.label_smoothing) for logits in passes]
            divergence = symmetric_kl(*passes)
            divergence = torch.where(batch.labels == IGNORE_INDEX, 0, divergence).sum()
            return {"cross_entropy": torch.stack(losses).mean(0), "divergence": divergence}
        # Batches of other shapes would each be compiled anew.
        loss = self.compiled_loss if self.compiled_loss is not None and batch.fixed_shape else teacher_forcing_loss
        return {"cross_entropy": loss(model, batch, self.label_smoothing)}


def teacher_forcing_loss(model: Transformer, batch: TextBatch, label_smoothing: float) -> Tensor:
    """Return the cross-entropy summed over the labels, without materialising all logits at once."""
    x = decoder_outputs(model, batch)
    return linear_cross_entropy(x, model.output_weight, model.output_bias, batch.labels, label_smoothing)


def logits_of_labels(model: Transformer, batch: TextBatch) -> Tensor:
    """Return the logits of every label given the source and the decoder inputs up to it, (N, V)."""
    return model.logits(decoder_outputs(model, batch))


def decoder_outputs(model: Transformer, batch: TextBatch) -> Tensor:
    """Return the decoder outputs at the labels, (N, W)."""
    encoded = model.encode(batch.source, batch.source_layout)
    x = model.decode(batch.inputs, encoded, batch.target_layout, batch.source_layout).flatten(0, 1)
    # Padding is removed before the output projection, the widest linear layer.
    return x if batch.real is None else x[batch.real]


@torch.no_grad()
def predicted_logits(model: Transformer, batch: TextBatch) -> Tensor:
    """Return the logits of every label without dropout, hooks and gradients, (N, V)."""
    training = model.training
    model.eval()
    try:
        with disable_qkv_hooks(model):
            return logits_of_labels(model, batch)
    finally:
        model.train(training)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross-entropy summed over the labels, in float32."""
    return F.cross_entropy(
        logits.float(), labels, ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing, reduction="sum"
    )


def symmetric_kl(logits1: Tensor, logits2: Tensor) -> Tensor:
    """Return the mean of both Kullback-Leibler divergences between distributions (N, V), (N,)."""
    p, q = logits1.float().log_softmax(-1), logits2.float().log_softmax(-1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2
