"""Guided attention: an auxiliary loss that pulls cross-attention towards a prior.

The prior assigns a value between 0 and 1 to every pair of target and source positions. "diagonal" is the Gaussian of
Tachibana et al. (2018) around the source position at the same relative position in its sentence; "alignments" is 1 at
the source words that a target word is aligned to. The mass of a query is the sum of its attention weights multiplied by
the prior, and the loss is the negative logarithm of the mass: close to 1 it equals Tachibana's 1 - mass, and far from 1
its gradient does not vanish.

Attention weights are materialised in the selected layers only, and only while the loss has a positive weight.

Shapes: B sentences, H heads, T target positions, S source positions, L links.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from regard.attention.masks import Layout, Mask, Packed
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.attention.packing import pad_packed, pad_packed_mask
from regard.config import Settings
from regard.errors import UserError
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.task import Step
from regard.training.tasks.translation.batches import TextBatch

MIN_MASS = 1e-9
Index = Annotated[int, Field(strict=True)]


class GuidedAttention(Settings):
    """Computes the guided attention loss from hooks on the cross-attentions of a model."""

    prior: Literal["diagonal", "alignments"] = Field(
        "diagonal", description="source positions to attend to: along the diagonal, or those of aligned words"
    )
    weight: float = Field(1.0, gt=0, description="weight of the loss relative to the cross-entropy at the first step")
    steps: int = Field(gt=0, description="steps over which the weight decreases linearly to zero")
    layers: tuple[Index, ...] | None = Field(
        None, min_length=1, description="decoder layers, from 0, or negative from the end; default: all"
    )
    heads: tuple[Index, ...] | None = Field(None, min_length=1, description="heads of these layers; default: all")
    width: float = Field(0.2, gt=0, description="standard deviation of the diagonal, relative to the sentence length")

    def check_model(self, model: TransformerConfig) -> None:
        """Check that the model has the selected layers and heads."""
        for key, chosen, size in (("layers", self.layers, model.decoder_layers), ("heads", self.heads, model.heads)):
            for number in chosen or ():
                if not -size <= number < size:
                    raise UserError(
                        f"objective.guided_attention.{key}: the model has {key} 0 to {size - 1}, not {number}"
                    )

    def applies(self, step: int) -> bool:
        """Return whether the loss has a positive weight at a step, counted from 1."""
        return step <= self.steps

    def weight_at(self, step: Step) -> Tensor:
        """Return the weight of the loss at a step, counted from 1, as a tensor ()."""
        elapsed = torch.as_tensor(step, dtype=torch.float64) - 1
        return (self.weight * (1 - elapsed / self.steps).clamp(min=0)).float()

    @contextmanager
    def observe(self, model: Transformer, batch: TextBatch) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Collect loss and attention mass of the forward passes inside the block, one entry per layer.

        Both are means over heads; the loss is summed over target positions, and the mass is their mean. Hooks that are
        already set still run.
        """
        guidance: list[tuple[Tensor, Tensor]] = []
        prior_BTS, guided_BT = self._prior(batch)

        def hook(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            previous = previous_hooks[attention]
            if previous is not None:
                previous(attention, q, k, v, mask)
            weights_BHTS = weights_by_sentence(attention, q, k, mask)
            if self.heads is not None:  # indexing with a list would copy it to the device
                weights_BHTS = torch.stack([weights_BHTS[:, head] for head in self.heads], 1)
            mass_BHT = (weights_BHTS * prior_BTS[:, None]).sum(-1)
            loss = (-mass_BHT.clamp(min=MIN_MASS).log().mean(1) * guided_BT).sum()
            mean_mass = (mass_BHT.detach().mean(1) * guided_BT).sum() / guided_BT.sum().clamp(min=1)
            guidance.append((loss, mean_mass))

        previous_hooks = {attention: attention.qkv_hook for attention in self._cross_attentions(model)}
        with use_qkv_hook(previous_hooks, hook):
            yield guidance

    def _cross_attentions(self, model: Transformer) -> list[Attention]:
        attentions: list[Attention] = [cast(Any, block).cross for block in model.decoder]
        return attentions if self.layers is None else [attentions[layer] for layer in self.layers]

    def _prior(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Return the prior, (B, T, S), and which target positions are guided, (B, T)."""
        target, source = batch.target_layout, batch.source_layout
        if self.prior == "diagonal":
            positions = torch.arange(target.longest, device=target.lengths.device)
            guided = (positions < target.lengths[:, None]) & batch.is_sentence()[:, None]
            return diagonal_prior(target, source, self.width), guided
        if batch.links is None:
            raise UserError("objective.guided_attention.prior: alignments needs word alignments with the training data")
        prior = aligned_prior(target, source, batch.links)
        return prior, prior.any(-1)


def diagonal_prior(target: Layout, source: Layout, width: float) -> Tensor:
    """Return a Gaussian around the diagonal from the first tokens of a pair to both END tokens, (B, T, S)."""
    distance = _relative_positions(target)[:, :, None] - _relative_positions(source)[:, None, :]
    return torch.exp(-distance.square() / (2 * width**2))


def aligned_prior(target: Layout, source: Layout, links: Tensor) -> Tensor:
    """Return 1 at the links (sentence, target position, source position), (L, 3), and 0 elsewhere, (B, T, S).

    Links of -1 are padding.
    """
    shape = len(target.lengths), target.longest, source.longest
    sentence, t, s = links.unbind(1)
    index = (sentence * target.longest + t) * source.longest + s
    index = torch.where(sentence < 0, math.prod(shape), index)  # one element more, which is dropped
    return torch.zeros(math.prod(shape) + 1, device=links.device).index_fill(0, index, 1.0)[:-1].view(shape)


def weights_by_sentence(attention: Attention, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    """Return attention weights with one sentence per row, (B, H, T, S), for either layout."""
    if isinstance(mask.queries, Packed) and isinstance(mask.keys, Packed):
        q, k, mask = pad_packed(q, mask.queries), pad_packed(k, mask.keys), pad_packed_mask(mask)
    return attention.kind.weights(q, k, mask)


def _relative_positions(layout: Layout) -> Tensor:
    """Return the position of each token in its sentence, from 0 for the first to 1 for the last, (B, longest)."""
    positions = torch.arange(layout.longest, device=layout.lengths.device)
    return positions / (layout.lengths[:, None] - 1).clamp(min=1)
