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

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.attention.packing import PaddedIndex, pad_packed, pad_packed_mask
from regard.config import Settings
from regard.errors import UserError
from regard.masks import Layout, Mask, Packed, Padded
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.task import Step
from regard.training.text_batches import TextBatch

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
        groups = LengthGroups.of(batch) if batch.fixed_shape else None
        priors = self._priors(batch, groups)
        number = torch.stack([guided.sum() for _, guided in priors]).sum().clamp(min=1)

        def hook(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            previous = previous_hooks[attention]
            if previous is not None:
                previous(attention, q, k, v, mask)
            if groups is None:
                weights = [weights_by_sentence(attention, q, k, mask)]
            else:
                weights = groups.weights(attention, q, k)
            losses, masses = zip(*map(self._loss_and_mass, weights, priors), strict=True)
            guidance.append((torch.stack(losses).sum(), torch.stack(masses).sum() / number))

        previous_hooks = {attention: attention.qkv_hook for attention in self._cross_attentions(model)}
        with use_qkv_hook(previous_hooks, hook):
            yield guidance

    def _cross_attentions(self, model: Transformer) -> list[Attention]:
        attentions: list[Attention] = [cast(Any, block).cross for block in model.decoder]
        return attentions if self.layers is None else [attentions[layer] for layer in self.layers]

    def _loss_and_mass(self, weights_BHTS: Tensor, prior: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss and the attention mass, both summed over guided positions."""
        prior_BTS, guided_BT = prior
        if self.heads is not None:  # indexing with a list would copy it to the device
            weights_BHTS = torch.stack([weights_BHTS[:, head] for head in self.heads], 1)
        mass_BHT = (weights_BHTS * prior_BTS[:, None]).sum(-1)
        loss = (-mass_BHT.clamp(min=MIN_MASS).log().mean(1) * guided_BT).sum()
        return loss, (mass_BHT.detach().mean(1) * guided_BT).sum()

    def _priors(self, batch: TextBatch, groups: "LengthGroups | None") -> list[tuple[Tensor, Tensor]]:
        """Return the prior, (B, T, S), and which target positions are guided, (B, T), of each group."""
        target, source = batch.target_layout, batch.source_layout
        if self.prior == "diagonal":
            is_sentence = batch.is_sentence()
            layouts = [(target, source, is_sentence)] if groups is None else groups.layouts(is_sentence)
            return [(diagonal_prior(t, s, self.width), _real_positions(t) & rows[:, None]) for t, s, rows in layouts]
        if batch.links is None:
            raise UserError("objective.guided_attention.prior: alignments needs word alignments with the training data")
        priors = [aligned_prior(target, source, batch.links)] if groups is None else groups.aligned_priors(batch.links)
        return [(prior, prior.any(-1)) for prior in priors]


class LengthGroups:
    """The sentences of a packed batch of fixed shape as a few padded batches of fixed shape.

    Sentences are sorted by the length of their longer side. The i-th of them has at most an i-th of the tokens of both
    sides, so that later groups need less padding; padded to the longest sentence of the corpus, weights of short
    sentences would take most of the memory.

    Args:
        target: Layout of the queries.
        source: Layout of the keys.
        is_sentence: Which sequences are sentences, (B,).
    """

    def __init__(self, target: Packed, source: Packed, is_sentence: Tensor) -> None:
        self.target, self.source = target, source
        sequences, device = len(is_sentence), is_sentence.device
        self.shapes = group_shapes(sequences, max(target.longest, source.longest), target.size + source.size)
        longer = torch.maximum(target.lengths, source.lengths).masked_fill(~is_sentence, 0)
        self.order = longer.argsort(descending=True, stable=True)
        ranks = torch.empty_like(self.order).scatter_(0, self.order, torch.arange(sequences, device=device))
        self.ranks = ranks.masked_fill(~is_sentence, sequences)  # behind all groups

    @classmethod
    def of(cls, batch: TextBatch) -> "LengthGroups":
        assert isinstance(batch.target_layout, Packed) and isinstance(batch.source_layout, Packed)
        return cls(batch.target_layout, batch.source_layout, batch.is_sentence())

    def weights(self, attention: Attention, q: Tensor, k: Tensor) -> list[Tensor]:
        """Return the attention weights of each group, (G, H, T, T)."""
        queries, keys = self._pad(q, self.target), self._pad(k, self.source)
        lengths = self._split(self.source.lengths)
        return [
            attention.kind.weights(group_q, group_k, Mask(keys=Padded(group_lengths, longest)))
            for group_q, group_k, group_lengths, (_, longest) in zip(queries, keys, lengths, self.shapes, strict=True)
        ]

    def layouts(self, is_sentence: Tensor) -> list[tuple[Padded, Padded, Tensor]]:
        """Return the layouts of both sides, and which sequences are sentences, of each group."""
        parts = [self._split(x) for x in (self.target.lengths, self.source.lengths, is_sentence)]
        return [
            (Padded(t, longest), Padded(s, longest), rows)
            for (_, longest), t, s, rows in zip(self.shapes, *parts, strict=True)
        ]

    def aligned_priors(self, links: Tensor) -> list[Tensor]:
        """Return the prior of each group, see `aligned_prior`."""
        sentence, t, s = links.unbind(1)
        starts, widths, size = self._starts(2), self._starts(0), sum(n * longest**2 for n, longest in self.shapes)
        rank = torch.where(sentence < 0, len(self.order), self.ranks[sentence.clamp(min=0)])
        index = torch.where(rank < len(self.order), starts[rank] + t * widths[rank] + s, size)
        prior = torch.zeros(size + 1, device=links.device).index_fill(0, index, 1.0)
        parts = torch.split(prior[:-1], [n * longest**2 for n, longest in self.shapes])
        return [part.view(n, longest, longest) for part, (n, longest) in zip(parts, self.shapes, strict=True)]

    def _starts(self, power: int) -> Tensor:
        """Return where each rank starts if it takes longest^power elements; with power 0, its longest, (B + 1,)."""
        device, starts, base = self.order.device, [], 0
        for n, longest in self.shapes:
            steps = torch.arange(n, device=device) * longest**power
            starts.append(steps + base if power else torch.full_like(steps, longest))
            base += n * longest**power
        missing = len(self.order) + 1 - sum(n for n, _ in self.shapes)
        return torch.cat((*starts, torch.full((missing,), base if power else 0, device=device)))

    def _split(self, x: Tensor) -> list[Tensor]:
        """Return the values of the sequences of each group, given those of all sequences, (B,)."""
        sizes = [n for n, _ in self.shapes]
        return list(torch.split(x[self.order[: sum(sizes)]], sizes))

    def _pad(self, x: Tensor, layout: Packed) -> list[Tensor]:
        """Convert (1, H, N, D) to padded rows of each group, (G, H, T, D)."""
        sizes = [n * longest for n, longest in self.shapes]
        tokens = self._starts(1)[self.ranks[layout.segments()]] + layout.positions()[0]
        tokens = tokens.clamp(max=sum(sizes))  # padding, which no group reads
        rows = pad_packed(x, PaddedIndex(sum(sizes) + 1, 1, tokens))[:-1, :, 0]
        shaped = zip(torch.split(rows, sizes), self.shapes, strict=True)
        return [part.view(n, longest, *part.shape[1:]).transpose(1, 2) for part, (n, longest) in shaped]


def group_shapes(sequences: int, longest: int, tokens: int) -> list[tuple[int, int]]:
    """Return the size and maximum length of groups of sequences, longest first, that have `tokens` in total."""
    shapes: list[tuple[int, int]] = []
    first = 0
    while first < sequences and (limit := min(longest, tokens // (first + 1))) > 0:
        end = min(sequences, max(first + 1, tokens // max(1, limit // 2)))  # the first one of at most half that length
        shapes.append((end - first, limit))
        first = end
    return shapes


def _real_positions(layout: Layout) -> Tensor:
    """Return which positions are inside their sequence, (B, longest)."""
    return torch.arange(layout.longest, device=layout.lengths.device) < layout.lengths[:, None]


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
