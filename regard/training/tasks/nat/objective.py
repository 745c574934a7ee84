"""The loss of a batch for a model that writes all tokens at once.

What the model reads is a canvas on which some tokens of the reference stand and the rest is masked; what it must say is
the rest. Which tokens stand there decides what it learns:

- none: to write everything from the source alone;
- uniform: any share of them, so that it can refine what it has written (mask-predict, Ghazvininejad et al. 2019);
- glancing: of those that a first look gets wrong, a share that falls while training (GLAT, Qian et al. 2021), so that
  it first learns words that depend on others, and in the end to do without.

On a batch that is filled up to a frame nothing waits for the device, and all that differs between two steps is in
tensors: so a step can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from regard.training.tasks.nat.targets import Canvas, source_canvas, target_canvas
from torch import Tensor

from regard.attention.masks import Layout
from regard.models.nat import NATransformer
from regard.ops import ctc
from regard.ops.cross_entropy import IGNORE_INDEX
from regard.training.task import LossSum, Step

if TYPE_CHECKING:
    from regard.training.tasks.translation.task import TextBatch


@dataclass(frozen=True)
class Reader:
    """A model that has read its sources, and the canvas that it is to fill."""

    model: NATransformer
    memory: Tensor
    source_layout: Layout
    canvas: Canvas
    sentences: Tensor  # which sequences are sentences, (B,), since some may fill up the batch

    def read(self, labels: Tensor, hidden: Tensor) -> Tensor:
        """The logits at every place of the canvas, on which the labels stand as far as they are not hidden."""
        config = self.model.config
        shown = self.canvas.lay_out(labels.masked_fill(hidden, config.mask_token), config.pad)
        return self.model.logits(self.model.decode(shown, self.memory, self.canvas.layout, self.source_layout))

    def share_of(self, marks: Tensor) -> Tensor:
        """How many of the sentences are marked, of (B,)."""
        return (marks & self.sentences).sum() / self.sentences.sum()


class NATObjective:
    """Masks the reference, and scores what the model makes of it.

    Args:
        reveal: which tokens of the reference the model sees.
        glance: the share that glancing reveals of the wrong tokens, at the first step and at the last.
        steps: how many steps there are.
        smoothing: of the labels; CTC has none.
        length_weight: of the length classifier's loss.
    """

    def __init__(
        self,
        reveal: Literal["uniform", "glancing", "none"] = "none",
        glance: tuple[float, float] = (0.5, 0.3),
        steps: int = 1,
        smoothing: float = 0.0,
        length_weight: float = 0.5,
    ) -> None:
        self.reveal, self.glance, self.steps = reveal, glance, steps
        self.smoothing, self.length_weight = smoothing, length_weight

    def loss(self, model: NATransformer, batch: TextBatch, step: Step) -> LossSum:
        """Every part is a mean times the number of labels, so that batches of any size weigh alike."""
        config, count, sentences = model.config, (batch.labels != IGNORE_INDEX).sum(), are_sentences(batch)
        memory = model.encode(batch.source, batch.source_layout)
        if config.length == "classifier":
            canvas = target_canvas(batch.target_layout, sentences if batch.framed else None)
            reader = Reader(model, memory, batch.source_layout, canvas, sentences)
            tokens, length = self._exact(reader, batch, step), length_loss(model, memory, batch)
            parts = {"cross_entropy": tokens.detach() * count, "length": length.detach() * count}
            return LossSum((tokens + self.length_weight * length) * count, batch.count, parts)
        reader = Reader(model, memory, batch.source_layout, source_canvas(batch.source_layout, config), sentences)
        mean, fits = (self._ctc if config.length == "ctc" else self._cut)(reader, batch, step)
        return LossSum(mean * count, batch.count, {"left_out": reader.share_of(~fits) * count})

    def share(self, step: Step) -> float | Tensor:
        """How much of what is wrong glancing reveals at a step."""
        first, last = self.glance
        passed = step / self.steps
        return first + (last - first) * (passed.clamp(max=1.0) if isinstance(passed, Tensor) else min(1.0, passed))

    def _exact(self, reader: Reader, batch: TextBatch, step: Step) -> Tensor:
        """The canvas has just the target's length."""
        canvas = reader.canvas
        labels = target_tokens(batch)[canvas.sentences, canvas.places]
        if self.reveal == "uniform":
            lengths = canvas.layout.lengths
            hidden = canvas.pick((torch.rand(lengths.shape, device=lengths.device) * lengths).long() + 1)
        else:
            hidden = ~self._glance(reader, labels, torch.ones_like(labels, dtype=torch.bool), step)
        weights = (hidden & reader.sentences[canvas.sentences]).float()
        return self._mean(canvas.flatten(reader.read(labels, hidden)), labels, weights)

    def _cut(self, reader: Reader, batch: TextBatch, step: Step) -> tuple[Tensor, Tensor]:
        """The canvas is longer: END stands behind the target, and everywhere after it. Tells which sentences fit.

        The places after the first END weigh as much as one token, or they would be most of the loss. A sentence that
        does not fit is left out.
        """
        canvas = reader.canvas
        table, steps = target_tokens(batch), batch.target_layout.lengths
        within = canvas.places < steps[canvas.sentences]
        places = canvas.places.clamp(max=table.shape[1] - 1)
        labels = torch.where(within, table[canvas.sentences, places], reader.model.config.eos)
        hidden = ~self._glance(reader, labels, canvas.places < (steps - 1)[canvas.sentences], step)
        behind = (canvas.layout.lengths - steps).clamp(min=1)
        weights = torch.where(within, 1.0, 1 / behind[canvas.sentences])
        fits = steps <= canvas.layout.lengths
        weights = weights * hidden * (fits & reader.sentences)[canvas.sentences]
        return self._mean(canvas.flatten(reader.read(labels, hidden)), labels, weights), fits

    def _ctc(self, reader: Reader, batch: TextBatch, step: Step) -> tuple[Tensor, Tensor]:
        """The canvas is longer and may stay blank anywhere: all paths that say the target count. Tells which fit."""
        canvas, blank = reader.canvas, reader.model.config.blank_token
        sizes = canvas.layout.lengths
        table, lengths = target_tokens(batch), (batch.target_layout.lengths - 1).clamp(min=0)
        states = ctc.target_states(table, blank)
        path = torch.full_like(canvas.places, blank)
        hidden = torch.ones_like(path, dtype=torch.bool)
        if self.reveal == "glancing":
            with torch.no_grad():
                seen = reader.read(path, hidden).float().log_softmax(-1)
                path = canvas.from_rows(ctc.align_states(canvas.emit(seen, states), sizes, states, lengths, blank))
                wrong = canvas.flatten(seen.argmax(-1)) != path
            hidden = ~canvas.pick(self._shown(canvas.count(wrong), step))
        logp = reader.read(path, hidden).float().log_softmax(-1)
        if batch.framed:
            found = ctc.state_log_likelihood(canvas.emit(logp, states), sizes, states, lengths, blank)
        else:
            found = ctc.log_likelihood(canvas.in_rows(logp), sizes, table, lengths, blank)
        fits = found > -torch.inf
        counted = fits & reader.sentences
        return -torch.where(counted, found, 0).sum() / (lengths * counted).sum().clamp(min=1), fits

    def _glance(self, reader: Reader, labels: Tensor, among: Tensor, step: Step) -> Tensor:
        """Which places are shown after a first look, (N,): a share of as many as it gets wrong, among those marked."""
        if self.reveal != "glancing":
            return torch.zeros_like(among)
        canvas = reader.canvas
        with torch.no_grad():
            seen = reader.read(labels, torch.ones_like(among))
            wrong = (canvas.flatten(seen.argmax(-1)) != labels) & among
        return canvas.pick(self._shown(canvas.count(wrong), step), among)

    def _shown(self, wrong: Tensor, step: Step) -> Tensor:
        """How many places glancing shows of each sentence, (B,), given how many were wrong."""
        return (self.share(step) * wrong.float()).long()

    def _mean(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        each = F.cross_entropy(logits.float(), labels, label_smoothing=self.smoothing, reduction="none")
        return (each * weights).sum() / weights.sum().clamp(min=1)


def target_tokens(batch: TextBatch) -> Tensor:
    """The targets, END last, one a row; behind the end of a row stands anything, (B, longest)."""
    layout = batch.target_layout
    starts = layout.lengths.cumsum(0) - layout.lengths
    index = starts[:, None] + torch.arange(layout.longest, device=starts.device)
    return batch.labels[index.clamp(max=len(batch.labels) - 1)].clamp(min=0)  # IGNORE_INDEX is no token


def are_sentences(batch: TextBatch) -> Tensor:
    """Which sequences are sentences, (B,); the others fill the batch up."""
    lengths = batch.target_layout.lengths
    first = batch.labels[(lengths.cumsum(0) - lengths).clamp(max=len(batch.labels) - 1)]
    return (lengths > 0) & (first != IGNORE_INDEX)


def length_loss(model: NATransformer, memory: Tensor, batch: TextBatch) -> Tensor:
    """The mean cross-entropy of how much longer the targets are; what lies out of reach counts as the furthest."""
    reach = model.config.length_reach
    difference = (batch.target_layout.lengths - batch.source_layout.lengths).clamp(-reach, reach)
    logits, sentences = model.length_logits(memory, batch.source_layout).float(), are_sentences(batch)
    each = F.cross_entropy(logits, (difference + reach).long(), reduction="none")
    return (each * sentences).sum() / sentences.sum()
