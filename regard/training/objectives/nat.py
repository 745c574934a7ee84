"""Training loss of a non-autoregressive (NAT) translator.

The decoder reads a NAT target of which some reference tokens are revealed and the others masked, and predicts the
masked tokens. The choice of revealed tokens determines what the model learns:

- none: to predict all tokens from the source alone;
- uniform: to predict any number of masked tokens, as iterative refinement needs (mask-predict, Ghazvininejad et al.,
  2019);
- glancing: to predict tokens given some of those that a first pass gets wrong, fewer of them as training proceeds
  (GLAT, Qian et al., 2021).

With deep supervision (DSLP, Huang et al., 2022), the loss is the mean over the predictions of all decoder layers. If
each layer receives the predictions of the previous one, mixed training replaces some of them by reference tokens.

Graphs are trained on the likelihood of the targets, or on the expected overlap of their n-grams with those of the paths
(FA-DAT, Ma et al., 2023).

Each loss is a sum of terms that depend on one sentence alone, so that the losses of microbatches add up. A batch of
fixed shape is processed without synchronising with the device, so that a CUDA graph can capture the step.

Shapes: B sentences, N positions of all NAT targets concatenated, T positions of the longest NAT target, V vocabulary,
U tokens of the longest target, L CTC states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.data.text.tokens import RaggedArray
from regard.errors import UserError
from regard.masks import Layout, Packed, Padded
from regard.models.nat import NATransformer, NATransformerConfig
from regard.ops import ctc, dag
from regard.registry import register
from regard.training.objectives.registry import Objective, ObjectiveSettings
from regard.training.task import LossSum, Step
from regard.training.text_batches import TextBatch

Ratio = Annotated[float, Field(ge=0, lt=1)]
Reveal = Literal["uniform", "glancing", "none"]


@register
class NATObjectiveSettings(ObjectiveSettings):
    """Which reference tokens are revealed to the decoder, and the weight of the length classifier."""

    task = "nat"

    kind: Literal["masked-tokens"] = Field("masked-tokens", description="this loss, or that of an extension")
    reveal: Literal["auto", "uniform", "glancing", "none"] = Field(
        "auto",
        description="uniform: a random number of random tokens, as mask-predict needs; glancing: some of those that a "
        "first pass gets wrong; none; auto: uniform if model.length is classifier, else glancing",
    )
    glancing_ratio: tuple[Ratio, Ratio] = Field(
        (0.5, 0.3), description="number of tokens that glancing reveals per wrong token, at the first and last step"
    )
    length_weight: float = Field(0.5, ge=0, description="weight of the length classifier's loss")
    deep_supervision: bool = Field(
        False,
        description="for classifier, end, ctc: the loss is the mean over the predictions of all decoder layers (DSLP)",
    )
    mixed_training: Ratio = Field(
        0.0, description="probability that a reference token replaces a prediction that model.layer_predictions feeds"
    )
    ngram_overlap: Literal[1, 2, 3] | None = Field(
        None,
        description="for dag: maximise the expected overlap of n-grams of this order with the reference instead of its "
        "likelihood (FA-DAT); for finetuning",
    )

    def resolve(self, model: NATransformerConfig) -> Reveal:
        """Return which tokens are revealed to this model."""
        if self.reveal == "auto":
            return "uniform" if model.length == "classifier" else "glancing"
        if self.reveal == "uniform" and model.length != "classifier":
            raise UserError(f"objective.reveal: uniform is for model.length=classifier, not {model.length}")
        return self.reveal

    def check_model(self, config: NATransformerConfig) -> None:
        """Check that every setting has an effect on this model."""
        default, reveal = NATObjectiveSettings(), self.resolve(config)
        if self.glancing_ratio != default.glancing_ratio and reveal != "glancing":
            raise UserError(f"objective.glancing_ratio: is for objective.reveal=glancing, not {reveal}; omit it")
        if self.length_weight != default.length_weight and config.length != "classifier":
            raise UserError(f"objective.length_weight: is for model.length=classifier, not {config.length}; omit it")
        if self.deep_supervision and config.length == "dag":
            raise UserError("objective.deep_supervision: is for model.length=classifier, end or ctc, not dag; omit it")
        if config.layer_predictions and not self.deep_supervision:
            raise UserError(
                "model.layer_predictions: needs objective.deep_supervision=true, which trains the predictions"
            )
        if self.mixed_training and not config.layer_predictions:
            raise UserError("objective.mixed_training: needs model.layer_predictions=true, or omit it")
        if self.ngram_overlap and config.length != "dag":
            raise UserError(f"objective.ngram_overlap: is for model.length=dag, not {config.length}; omit it")

    def build(self, recipe: Any, config: NATransformerConfig) -> Objective:
        return NATObjective(
            self.resolve(config),
            self.glancing_ratio,
            recipe.training.steps,
            recipe.optim.label_smoothing,
            self.length_weight,
            self.deep_supervision,
            self.mixed_training,
            self.ngram_overlap,
        )


@dataclass(frozen=True)
class NATTargets:
    """Positions of the NAT targets of a batch, all sentences concatenated (N,), for either layout."""

    layout: Layout

    @cached_property
    def sentences(self) -> Tensor:
        """Sentence of each position, (N,)."""
        if isinstance(self.layout, Packed):
            return self.layout.segments()
        return self._real // max(1, self.layout.size)

    @cached_property
    def positions(self) -> Tensor:
        """Position in its sentence, (N,)."""
        if isinstance(self.layout, Packed):
            return self.layout.positions()[0]
        return self._real % max(1, self.layout.size)

    @cached_property
    def _real(self) -> Tensor:
        """Index of each position in the flattened padded rows, (N,)."""
        assert isinstance(self.layout, Padded)
        return self.layout.real().flatten().nonzero()[:, 0]

    def unflatten(self, tokens: Tensor, pad: int) -> Tensor:
        """Arrange tokens (N,) as the decoder reads them, (B, T) or packed (1, N)."""
        if isinstance(self.layout, Packed):
            return tokens[None]
        rows = tokens.new_full((len(self.layout.lengths), self.layout.size), pad)
        return rows.flatten().index_copy(0, self._real, tokens).view(rows.shape)

    def flatten(self, x: Tensor) -> Tensor:
        """Concatenate decoder outputs (B, T, …) or (1, N, …) to (N, …)."""
        return x[0] if isinstance(self.layout, Packed) else x.flatten(0, 1)[self._real]

    def to_rows(self, x: Tensor) -> Tensor:
        """Arrange decoder outputs (1, N, …) as one sentence per row, (B, T, …), with undefined values past its end.

        Gradients past the end of a sentence are ignored.
        """
        if isinstance(self.layout, Padded):
            return x
        rows: Tensor = _Rows.apply(  # type: ignore[no-untyped-call]
            x[0], self._index(self.layout), self.sentences, self.positions
        )
        return rows

    @staticmethod
    def _index(layout: Packed) -> Tensor:
        """Return where each position of each sentence is in the row, (B, T), or any index past its end."""
        positions = torch.arange(layout.longest, device=layout.offsets.device)
        return (layout.offsets[:-1, None] + positions).clamp(max=layout.size - 1)

    def from_rows(self, rows: Tensor) -> Tensor:
        """Concatenate one sentence per row (B, T) to (N,)."""
        return rows[self.sentences, self.positions]

    def emissions_(self, logits: Tensor, states: Tensor) -> Tensor:
        """Return the log-probabilities of each sentence's tokens (B, L) at its positions, (B, T, L).

        The logits are overwritten if they need a gradient.
        """
        if isinstance(self.layout, Packed):
            return ctc.state_emissions(logits[0], states, self.sentences, self.positions, self._index(self.layout))
        B, T, _ = logits.shape
        index = torch.arange(B * T, device=states.device)
        return ctc.state_emissions(logits.flatten(0, 1), states, index // T, index % T, index.view(B, T))

    def sum(self, values: Tensor) -> Tensor:
        """Sum values (N,) over each sentence, (B,)."""
        zeros = torch.zeros(len(self.layout.lengths), dtype=values.dtype, device=values.device)
        return zeros.index_add(0, self.sentences, values)

    def sample(self, counts: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Mark random positions (N,): `counts` (B,) of each sentence, among the candidates (N,) if given."""
        keys = torch.rand(len(self.sentences), device=self.sentences.device, dtype=torch.float64)
        if candidates is not None:
            keys = torch.where(candidates, keys / 2, 0.5 + keys / 2)  # candidates are sorted first
        order = (self.sentences + keys).argsort()
        ranks = torch.empty_like(order).scatter_(0, order, self.positions)
        sampled = ranks < counts[self.sentences]
        return sampled if candidates is None else sampled & candidates


class _Rows(torch.autograd.Function):
    """Selection of the positions of each sentence, whose backward pass is a selection too, unlike that of indexing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, sentences: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(sentences, positions)
        return x[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad[ctx.saved_tensors], None, None, None


def exact_targets(target_layout: Layout, is_sentence: Tensor | None = None) -> NATTargets:
    """Return one position for every target token except END; in batches of fixed shape, padding remains padding."""
    if isinstance(target_layout, Padded):
        return NATTargets(Padded(target_layout.lengths - 1, max(0, target_layout.size - 1)))
    if is_sentence is not None:
        lengths = torch.where(is_sentence, target_layout.lengths - 1, target_layout.longest)
        offsets = torch.zeros_like(target_layout.offsets)
        offsets[1:] = lengths.cumsum(0).clamp(max=target_layout.size)
        return NATTargets(Packed(offsets, target_layout.longest, target_layout.size))
    sentences = len(target_layout.offsets) - 1
    removed = torch.arange(sentences + 1, dtype=torch.int32, device=target_layout.offsets.device)
    return NATTargets(
        Packed(target_layout.offsets - removed, target_layout.longest - 1, target_layout.size - sentences)
    )


def upsampled_targets(source_layout: Layout, config: NATransformerConfig) -> NATTargets:
    """Return as many positions as follow from the source length; padding sequences are upsampled like sentences."""
    lengths = config.upsampling * source_layout.lengths + config.upsample_extra
    longest = config.upsampling * source_layout.longest + config.upsample_extra
    limit = config.max_positions
    clipped = limit is not None and longest > limit
    if limit is not None and clipped:
        lengths, longest = lengths.clamp(max=limit), limit
    if isinstance(source_layout, Padded):
        return NATTargets(Padded(lengths, longest))
    if clipped:
        return NATTargets(Packed.of(lengths))
    # The size follows from that of the source, so there is no need to synchronise with the device.
    size = config.upsampling * source_layout.size + config.upsample_extra * (len(source_layout.offsets) - 1)
    offsets = torch.zeros_like(source_layout.offsets)
    offsets[1:] = lengths.cumsum(0)
    return NATTargets(Packed(offsets, longest, size))


@dataclass(frozen=True)
class EncodedBatch:
    """A batch with encoded sources and the positions of its NAT targets."""

    model: NATransformer
    batch: TextBatch
    encoded: Tensor
    targets: NATTargets
    is_sentence: Tensor  # (B,); False for sequences of padding in a batch of fixed shape

    def decode(self, labels: Tensor, masked: Tensor) -> Tensor:
        """Decode labels (N,) of which some are masked (N,); return vectors, (B, T, W) or (1, N, W)."""
        inputs = self._inputs(labels, masked)
        return self.model.decode(inputs, self.encoded, self.targets.layout, self.batch.source_layout)

    def decode_layers(self, labels: Tensor, masked: Tensor, references: Sequence[Tensor]) -> list[Tensor]:
        """Return the vectors of every decoder layer; the references, (N,) each, are those of the model's method."""
        rows = [self.targets.unflatten(tokens, -1) for tokens in references]
        layouts = self.targets.layout, self.batch.source_layout
        return self.model.decode_layers(self._inputs(labels, masked), self.encoded, *layouts, rows)

    def _inputs(self, labels: Tensor, masked: Tensor) -> Tensor:
        config = self.model.config
        return self.targets.unflatten(labels.masked_fill(masked, config.mask_token), config.pad)

    def logits(self, labels: Tensor, masked: Tensor) -> Tensor:
        """Return the logits of `decode`, (B, T, V) or (1, N, V)."""
        return self.model.logits(self.decode(labels, masked))


@dataclass(frozen=True)
class NATObjective(Objective):
    """Masks the targets and computes the loss of the masked tokens; see `NATObjectiveSettings`."""

    reveal: Reveal = "none"
    glancing_ratio: tuple[float, float] = (0.5, 0.3)
    steps: int = 1  # of the run
    label_smoothing: float = 0.0  # not applied to CTC and graphs
    length_weight: float = 0.5
    deep_supervision: bool = False
    mixed_training: float = 0.0
    ngram_overlap: int | None = None

    def loss(self, model: NATransformer, batch: TextBatch, step: Step) -> LossSum:
        """Return the loss as a sum over the `batch.count` tokens that `count_predicted` counts."""
        config, is_sentence = model.config, batch.is_sentence()
        encoded = model.encode(batch.source, batch.source_layout)
        if config.length == "classifier":
            targets = exact_targets(batch.target_layout, is_sentence if batch.fixed_shape else None)
            tokens = self._exact_loss(EncodedBatch(model, batch, encoded, targets, is_sentence), step)
            length = length_loss(model, encoded, batch)
            logged = {"cross_entropy": tokens.detach(), "length": length.detach()}
            return LossSum(tokens + self.length_weight * length, batch.count, logged)
        targets = upsampled_targets(batch.source_layout, config)
        loss = {"ctc": self._ctc_loss, "end": self._end_loss, "dag": self._dag_loss}[config.length]
        total, fits = loss(EncodedBatch(model, batch, encoded, targets, is_sentence), step)
        lengths = batch.target_layout.lengths
        predicted = lengths + (targets.layout.lengths > lengths) if config.length == "end" else lengths - 1
        # On the device, because `batch.count` is fixed in a CUDA graph.
        count = (predicted * (fits & is_sentence)).sum()
        too_long = (~fits & is_sentence).sum() / is_sentence.sum()
        return LossSum(total, batch.count, {"too_long": too_long * count})

    def revealed_per_error(self, step: Step) -> float | Tensor:
        """Return the glancing ratio at a step, which may be a tensor."""
        first, last = self.glancing_ratio
        progress = step / self.steps
        progress = progress.clamp(max=1.0) if isinstance(progress, Tensor) else min(1.0, progress)
        return first + (last - first) * progress

    def _exact_loss(self, encoded: EncodedBatch, step: Step) -> Tensor:
        """Cross-entropy if the NAT target has the length of the reference."""
        targets = encoded.targets
        labels = target_tokens(encoded.batch)[targets.sentences, targets.positions]
        weights = encoded.is_sentence[targets.sentences].float()
        if self.reveal == "uniform":
            lengths = targets.layout.lengths
            masked = targets.sample((torch.rand(lengths.shape, device=lengths.device) * lengths).long() + 1)
            # On average (length + 1) / 2 tokens are masked; this makes the expected weight that of all tokens.
            weights = weights * (2 * lengths / (lengths + 1))[targets.sentences]
        else:
            revealed = self._glance(encoded, labels, torch.ones_like(labels, dtype=torch.bool), step)
            masked = ~revealed
            weights = weights * _rescale(targets, targets.layout.lengths, revealed)
        return self._cross_entropy(encoded, labels, masked, weights)

    def _end_loss(self, encoded: EncodedBatch, step: Step) -> tuple[Tensor, Tensor]:
        """Cross-entropy if the translation is cut at the first END; also return which targets fit, (B,).

        All positions after the first END together weigh as much as one token, otherwise they would dominate the loss.
        """
        targets, batch = encoded.targets, encoded.batch
        tokens, lengths = target_tokens(batch), batch.target_layout.lengths  # including END
        inside = targets.positions < lengths[targets.sentences]
        positions = targets.positions.clamp(max=tokens.shape[1] - 1)
        labels = torch.where(inside, tokens[targets.sentences, positions], encoded.model.config.eos)
        revealed = self._glance(encoded, labels, targets.positions < (lengths - 1)[targets.sentences], step)
        after_end = targets.layout.lengths - lengths
        fits = after_end >= 0
        weights = torch.where(inside, 1.0, 1 / after_end.clamp(min=1)[targets.sentences])
        weights = weights * _rescale(targets, lengths + (after_end > 0), revealed)
        weights = weights * (fits & encoded.is_sentence)[targets.sentences]
        return self._cross_entropy(encoded, labels, ~revealed, weights), fits

    def _ctc_loss(self, encoded: EncodedBatch, step: Step) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood of the targets over all CTC paths; also return which targets fit, (B,)."""
        targets, batch, blank = encoded.targets, encoded.batch, encoded.model.config.blank_token
        positions = targets.layout.lengths
        tokens, lengths = target_tokens(batch), (batch.target_layout.lengths - 1).clamp(min=0)
        states = ctc.target_states(tokens, blank)
        path = torch.full_like(targets.positions, blank)
        masked = torch.ones_like(path, dtype=torch.bool)
        if self.reveal == "glancing" or self.mixed_training:
            with torch.no_grad():
                logits = encoded.logits(path, masked)
                emissions = targets.emissions_(logits, states)
                path = targets.from_rows(ctc.align_states(emissions, positions, states, lengths, blank))
                wrong = targets.flatten(logits.argmax(-1)) != path
        if self.reveal == "glancing":
            masked = ~targets.sample(self._number_revealed(targets.sum(wrong.long()), step))
        of_layers = []
        for logits in self._layer_logits(encoded, path, masked):
            if batch.fixed_shape or logits.is_cuda:  # torch's loss adds gradients in any order on a GPU
                emissions = targets.emissions_(logits, states)
                of_layers.append(ctc.state_log_likelihood(emissions, positions, states, lengths, blank))
            else:
                log_probs = targets.to_rows(logits.float().log_softmax(-1))
                of_layers.append(ctc.log_likelihood(log_probs, positions, tokens, lengths, blank))
        fits = of_layers[-1] > -torch.inf
        log_likelihood = torch.stack([torch.where(fits & encoded.is_sentence, each, 0).sum() for each in of_layers])
        return -log_likelihood.mean(), fits

    def _dag_loss(self, encoded: EncodedBatch, step: Step) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood of the targets over all paths through the graph; also return which fit, (B,).

        With `ngram_overlap`, one minus the overlap instead, in which each sentence has the weight of its tokens.
        """
        targets, batch = encoded.targets, encoded.batch
        tokens, lengths = target_tokens(batch), (batch.target_layout.lengths - 1).clamp(min=0)
        vertices = targets.layout.lengths

        def predict(labels: Tensor, masked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return logits, and log-probabilities of the target's tokens at each vertex and of transitions."""
            x = encoded.decode(labels, masked)
            logits = encoded.model.logits(x)
            transitions = encoded.model.transitions(targets.to_rows(x), vertices)
            return logits, targets.emissions_(logits, tokens), transitions

        labels = torch.zeros_like(targets.positions)
        masked = torch.ones_like(labels, dtype=torch.bool)
        if self.reveal == "glancing":
            with torch.no_grad():
                logits, emissions, transitions = predict(labels, masked)
                assigned = targets.from_rows(dag.align(emissions, transitions, vertices, lengths))
                labels = tokens[targets.sentences, assigned.clamp(min=0)]
                wrong = (targets.flatten(logits.argmax(-1)) != labels) & (assigned >= 0)
                number = self._number_revealed(targets.sum(wrong.long()), step)
            masked = ~targets.sample(number, assigned >= 0)
        _, emissions, transitions = predict(labels, masked)
        if self.ngram_overlap is not None:
            overlap = dag.ngram_overlap(emissions, transitions, vertices, tokens, lengths, self.ngram_overlap)
            fits = lengths <= vertices - 2
            return torch.where(fits & encoded.is_sentence, (1 - overlap) * lengths, 0).sum(), fits
        log_likelihood = dag.log_likelihood(emissions, transitions, vertices, lengths)
        fits = log_likelihood > -torch.inf
        return -torch.where(fits & encoded.is_sentence, log_likelihood, 0).sum(), fits

    def _glance(self, encoded: EncodedBatch, labels: Tensor, candidates: Tensor, step: Step) -> Tensor:
        """Mark the positions to reveal, (N,): as many of the candidates as follow from the errors of a first pass."""
        if self.reveal != "glancing":
            return torch.zeros_like(candidates)
        targets = encoded.targets
        with torch.no_grad():
            logits = encoded.logits(labels, torch.ones_like(candidates))
            wrong = (targets.flatten(logits.argmax(-1)) != labels) & candidates
        return targets.sample(self._number_revealed(targets.sum(wrong.long()), step), candidates)

    def _number_revealed(self, wrong: Tensor, step: Step) -> Tensor:
        return (self.revealed_per_error(step) * wrong.float()).long()

    def _cross_entropy(self, encoded: EncodedBatch, labels: Tensor, masked: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum over the masked positions."""
        of_layers = []
        for logits in self._layer_logits(encoded, labels, masked):
            logits = encoded.targets.flatten(logits).float()
            losses = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")
            of_layers.append((losses * weights * masked).sum())
        return torch.stack(of_layers).mean()

    def _layer_logits(self, encoded: EncodedBatch, labels: Tensor, masked: Tensor) -> Iterator[Tensor]:
        """Yield the logits of the last decoder layer, or with deep supervision of every layer."""
        if not self.deep_supervision:
            yield encoded.logits(labels, masked)
            return
        layers, references = len(encoded.model.decoder), list[Tensor]()
        if self.mixed_training:
            draws = [torch.rand(labels.shape, device=labels.device) for _ in range(layers - 1)]
            references = [torch.where(draw < self.mixed_training, labels, -1) for draw in draws]
        for x in encoded.decode_layers(labels, masked, references):
            yield encoded.model.logits(x)


def _rescale(targets: NATTargets, total: Tensor, revealed: Tensor) -> Tensor:
    """Return factors (N,) that give the masked positions of a sentence the total weight (B,) of all its positions."""
    factors = total / (total - targets.sum(revealed.long())).clamp(min=1)
    return factors[targets.sentences]


def length_loss(model: NATransformer, encoded: Tensor, batch: TextBatch) -> Tensor:
    """Return the cross-entropy of the length differences, in which each sentence has the weight of its tokens."""
    limit = model.config.max_length_offset
    lengths = batch.target_layout.lengths
    differences = (lengths - batch.source_layout.lengths).clamp(-limit, limit)
    logits = model.length_logits(encoded, batch.source_layout).float()
    losses = F.cross_entropy(logits, (differences + limit).long(), reduction="none")
    return (losses * (lengths - 1) * batch.is_sentence()).sum()


def target_tokens(batch: TextBatch) -> Tensor:
    """Return the targets including END, one per row, (B, U + 1); values past the end of a row are undefined."""
    layout = batch.target_layout
    starts = layout.lengths.cumsum(0) - layout.lengths
    index = starts[:, None] + torch.arange(layout.longest, device=starts.device)
    return batch.labels[index.clamp(max=len(batch.labels) - 1)].clamp(min=0)  # IGNORE_INDEX is not a token


def count_predicted(config: NATransformerConfig, source: RaggedArray, target: RaggedArray) -> int:
    """Return the number of tokens that the loss is a sum over; targets do not count if they do not fit.

    For model.length=end, END counts, and so do the positions after it, as one token.
    """
    lengths = target.lengths - 2
    if config.length == "classifier":
        return int(lengths.sum())
    available = config.upsampled_lengths(source.lengths)
    if config.length == "end":
        lengths = lengths + 1
        return int((lengths + (available > lengths))[lengths <= available].sum())
    if config.length == "dag":
        return int(lengths[lengths + 2 <= available].sum())
    repeated = np.zeros(len(target.tokens) + 1, np.int64)
    repeated[2:] = np.cumsum(target.tokens[1:] == target.tokens[:-1])
    needed = lengths + repeated[target.offsets[1:]] - repeated[target.offsets[:-1] + 1]
    return int(lengths[needed <= available].sum())
