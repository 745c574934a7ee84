"""Guided attention: cross-attention is rewarded for looking where a prior says.

The prior gives every source place a worth between 0 and 1 for every target place. "diagonal" is the one of Tachibana et
al. (2018), a bell round the place that stands as far along in the source as the target has come; "alignments" is 1 at
the words that a target word is aligned to. How much of a query's attention falls on the prior is its mass, and the loss
is minus the mass's logarithm: near 1 it is Tachibana's 1 - mass, and far from it the gradient does not fade.

Weights are made of the chosen layers alone, and only while the guide still has any weight.

Shapes: B sentences, H heads, T target places, S source places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from regard.attention.masks import Layout, Mask, Packed
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.attention.packing import pad_packed, pad_packed_mask
from regard.errors import UserError
from regard.layers import DecoderBlock
from regard.models.transformer import Transformer
from regard.training.objectives.config import GuideSettings

if TYPE_CHECKING:
    from regard.training.tasks.translation.task import TextBatch

LEAST_MASS = 1e-9


class Guidance:
    """What the chosen heads did with one batch: the mean over layers and readings."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.masses: list[Tensor] = []

    def loss(self) -> Tensor:
        """The mean over heads, summed over target places."""
        return torch.stack(self.losses).mean(0)

    def mass(self) -> Tensor:
        """The mean over heads and target places."""
        return torch.stack(self.masses).mean(0)


class GuidedAttention:
    """Watches the chosen cross-attentions of a model while it reads a batch."""

    def __init__(self, settings: GuideSettings) -> None:
        self.settings = settings

    def weight(self, step: int) -> float:
        """Of the guide's loss at a step, counted from 1."""
        return self.settings.weight * max(0.0, 1 - (step - 1) / self.settings.steps)

    @contextmanager
    def watch(self, model: Transformer, batch: TextBatch) -> Iterator[Guidance]:
        """Judges what the model looks at while the block runs; whoever else observes it goes on doing so."""
        guidance = Guidance()
        prior, guided = self._prior(batch)

        def observe(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            before = observers[attention]
            if before is not None:
                before(attention, q, k, v, mask)
            weights = weights_by_sentence(attention, q, k, mask)
            if self.settings.heads is not None:  # an index of numbers would have to be copied to the device
                weights = torch.stack([weights[:, head] for head in self.settings.heads], 1)
            mass = (weights * prior[:, None]).sum(-1)
            guidance.losses.append((-mass.clamp(min=LEAST_MASS).log().mean(1) * guided).sum())
            guidance.masses.append((mass.detach().mean(1) * guided).sum() / guided.sum().clamp(min=1))

        observers = {attention: attention.qkv_hook for attention in self._chosen(model)}
        with use_qkv_hook(observers, observe):
            yield guidance

    def _chosen(self, model: Transformer) -> list[Attention]:
        crosses = [cast(DecoderBlock, block).cross for block in model.decoder]
        return crosses if self.settings.layers is None else [crosses[layer] for layer in self.settings.layers]

    def _prior(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """The prior, (B, T, S), and which target places it guides, (B, T)."""
        target, source = batch.target_layout, batch.source_layout
        if self.settings.prior == "diagonal":
            return diagonal_prior(target, source, self.settings.width), _reached(target)
        if batch.links is None:
            raise UserError("objective.guided_attention.prior: alignments needs word alignments with the training data")
        prior = aligned_prior(target, source, batch.links)
        return prior, prior.any(-1)


def diagonal_prior(target: Layout, source: Layout, width: float) -> Tensor:
    """A bell round the diagonal, on which first meets first and END meets END."""
    distance = _progress(target)[:, :, None] - _progress(source)[:, None, :]
    return torch.exp(-distance.square() / (2 * width**2))


def aligned_prior(target: Layout, source: Layout, links: Tensor) -> Tensor:
    """One where a row of `links` says (sentence, target place, source place), zero elsewhere."""
    shape = len(target.lengths), target.longest, source.longest
    sentence, t, s = links.unbind(1)
    places = (sentence * target.longest + t) * source.longest + s
    return torch.zeros(math.prod(shape), device=links.device).index_fill(0, places, 1.0).view(shape)


def weights_by_sentence(attention: Attention, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    """The weights of every sentence in a row of its own, (B, H, T, S), whatever the layout."""
    if isinstance(mask.queries, Packed) and isinstance(mask.keys, Packed):
        q, k, mask = pad_packed(q, mask.queries), pad_packed(k, mask.keys), pad_packed_mask(mask)
    return attention.kind.weights(q, k, mask)


def _progress(layout: Layout) -> Tensor:
    """How far along its sentence each place stands, from 0 to 1, (B, longest)."""
    places = torch.arange(layout.longest, device=layout.lengths.device)
    return places / (layout.lengths[:, None] - 1).clamp(min=1)


def _reached(layout: Layout) -> Tensor:
    """Which places a sentence reaches, (B, longest)."""
    return torch.arange(layout.longest, device=layout.lengths.device) < layout.lengths[:, None]
