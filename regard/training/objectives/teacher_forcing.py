"""Training loss of an autoregressive translator: teacher forcing, optionally with further terms.

Scheduled sampling changes the decoder inputs, and guided attention adds a loss on cross-attention weights. R-Drop
(Liang et al., 2021) and SimCut run the model on two copies of the batch, as one batch, and penalise the difference
between the predictions: both copies get their own dropout, and SimCut cuts off tokens of the second.

Shapes: N target tokens to predict, W width, V vocabulary.
"""

from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from regard.attention.multi_head import disable_qkv_hooks
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.consistency_loss import linear_consistency_loss
from regard.ops.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from regard.registry import register
from regard.training.objectives.guided_attention import GuidedAttention
from regard.training.objectives.registry import Objective, ObjectiveSettings
from regard.training.objectives.scheduled_sampling import ScheduledSampling, mix_predictions
from regard.training.objectives.simcut import SimCut
from regard.training.task import LossSum, Step
from regard.training.text_batches import TextBatch


@register
class TeacherForcingSettings(ObjectiveSettings):
    """Additions to teacher forcing; all are off by default."""

    task = "translation"

    kind: Literal["teacher-forcing"] = Field("teacher-forcing", description="this loss, or that of an extension")
    scheduled_sampling: ScheduledSampling | None = None
    guided_attention: GuidedAttention | None = None
    r_drop: float = Field(
        0.0, ge=0, description="weight of the divergence between two forward passes (α); 0: R-Drop is off"
    )
    simcut: SimCut | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.r_drop and self.simcut is not None:
            raise ValueError("r_drop and simcut exclude each other; set one of them")
        return self

    def check_model(self, config: TransformerConfig) -> None:
        if self.guided_attention is not None:
            self.guided_attention.check_model(config)

    def build(self, recipe: Any, config: Any) -> Objective:
        return TeacherForcing(self, recipe.optim.label_smoothing, recipe.training.compile)


class TeacherForcing(Objective):
    """Teacher forcing with the additions of its settings. If `compiled`, batches of fixed shape use a compiled loss.

    Attributes:
        sampling_active: Whether scheduled sampling applies to the current step; False before `begin_step`.
        guide_active: Whether attention is guided in the current step; False before `begin_step`.
    """

    def __init__(self, settings: TeacherForcingSettings, label_smoothing: float, compiled: bool = False) -> None:
        self.label_smoothing, self.r_drop, self.simcut = label_smoothing, settings.r_drop, settings.simcut
        self.compiled_loss = torch.compile(teacher_forcing_loss, fullgraph=True, dynamic=False) if compiled else None
        self.sampling, self.guide = settings.scheduled_sampling, settings.guided_attention
        self.sampling_active = self.guide_active = False

    def begin_step(self, step: int) -> None:
        """Determine which additions apply to the losses of a step; see `Task.begin_step`."""
        self.sampling_active = self.sampling is not None and self.sampling.applies(step)
        self.guide_active = self.guide is not None and self.guide.applies(step)

    def operations_key(self) -> Hashable:
        return self.sampling_active, self.guide_active

    def loss(self, model: Transformer, batch: TextBatch, step: Step) -> LossSum:
        """Return the loss; all terms are sums over the labels, so that the losses of microbatches add up."""
        count = batch.count
        proportions: dict[str, Tensor] = {}
        if self.sampling is not None and self.sampling_active:
            predictions = self.sampling.predict(predicted_logits(model, batch))
            batch, proportions["sampled"] = mix_predictions(batch, predictions, self.sampling.probability(step))
        labels = batch.labels
        if self.simcut is not None:
            batch = batch.followed_by(self.simcut.cut_off(batch, model.config.eos))
        elif self.r_drop:
            batch = batch.followed_by(batch)
        guide = self.guide if self.guide_active else None
        with nullcontext() if guide is None else guide.observe(model, batch) as guidance:
            total, terms = self._forward(model, batch, labels)
        if guide is not None and guidance is not None:
            losses, masses = zip(*guidance, strict=True)
            terms["guide"] = torch.stack(losses).mean(0) * (len(labels) / len(batch.labels))
            proportions["on_prior"] = torch.stack(masses).mean(0)
            total = total + guide.weight_at(step) * terms["guide"]
        logged = {name: term.detach() for name, term in terms.items()} if len(terms) > 1 else {}
        if proportions:
            tokens = (labels != IGNORE_INDEX).sum()  # on the device, because `batch.count` is fixed in a CUDA graph
            logged |= {name: share * tokens for name, share in proportions.items()}
        return LossSum(total, count, logged)

    def _forward(self, model: Transformer, batch: TextBatch, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, or of two copies of a batch with these labels, and its terms."""
        if self.r_drop or self.simcut is not None:
            # Half the loss of the R-Drop paper, which adds up both cross-entropies.
            weight, share = (self.r_drop / 2, 0.5) if self.simcut is None else (self.simcut.weight, 0.0)
            x, output = decoder_outputs(model, batch), (model.output_weight, model.output_bias)
            total, *terms = linear_consistency_loss(x, *output, labels, weight, share, self.label_smoothing)
            return total, dict(zip(("cross_entropy", "divergence"), terms, strict=True))
        # Batches of other shapes would each be compiled anew.
        loss = self.compiled_loss if self.compiled_loss is not None and batch.fixed_shape else teacher_forcing_loss
        total = loss(model, batch, self.label_smoothing)
        return total, {"cross_entropy": total}


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
