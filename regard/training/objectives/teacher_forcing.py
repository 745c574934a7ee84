"""Teacher forcing: the decoder reads the reference, all at once, and predicts each next token of it.

Shapes: N real target tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from regard.models.transformer import Transformer
from regard.ops.cross_entropy import linear_cross_entropy

if TYPE_CHECKING:
    from regard.training.tasks.translation.task import TextBatch


def read(model: Transformer, batch: TextBatch) -> Tensor:
    """The logits of every label, (N, V), given the source and the decoder's inputs up to it."""
    return model.logits(decode(model, batch))


def force(model: Transformer, batch: TextBatch, smoothing: float) -> Tensor:
    """The cross-entropy summed over the labels: of `read`, whose logits are never all there at once."""
    return linear_cross_entropy(decode(model, batch), model.output_weight, model.output_bias, batch.labels, smoothing)


def decode(model: Transformer, batch: TextBatch) -> Tensor:
    """The vectors from which every label is to be said, (N, W)."""
    memory = model.encode(batch.source, batch.source_layout)
    x = model.decode(batch.inputs, memory, batch.target_layout, batch.source_layout).flatten(0, 1)
    # Padding is dropped before the widest product of all, not after it.
    return x if batch.real is None else x[batch.real]


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Summed over the labels, in single precision."""
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing, reduction="sum")
