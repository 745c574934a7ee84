"""Decoding with a non-autoregressive model: one decoder pass, mask-predict, CTC, or paths through a graph.

The decoder input has one row per candidate length of every sentence. On a GPU, `NATGenerator.generate` replays captured
CUDA graphs where `why_not_capture_nat` gives no reason against it; the results are the same.

Shapes: B sentences, R rows, S source tokens, T target positions, V vocabulary, W width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.ctc import CTCDecoder
from regard.decoding.dag import GraphTrace, Paths, TokenGraphDecoder, TokenGraphs
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.mask_predict import (
    LengthCandidate,
    NATOutput,
    active_iterations,
    length_log_probs,
    list_candidates,
    log_probs_of,
    mask_predict,
    predict_lengths,
    token_log_probs,
)
from regard.decoding.settings import DecodingSettings, NATSettings, check_settings_type
from regard.decoding.stepper import NATHypothesis, NATIteration, TokenHypothesis, snapshots
from regard.errors import UserError
from regard.masks import Padded, pad_batch
from regard.models.nat import NATransformer
from regard.ops.linear import refresh_prepacked

Tokens = Sequence[int]
LENGTH_WEIGHT = 0.05
"""Weight of the length's log-probability in the score, chosen on the validation set of Multi30k (docs/LOG.md)."""


@dataclass
class EncodedSources:
    """Encoder output of a batch. A layout is None if all rows have the same length, which is faster."""

    output: Tensor  # (B, S, W)
    layout: Padded | None
    lengths: list[int]  # END included


@dataclass
class NATTargets:
    """Rows that are decoded together, with the encoder output of their sentences."""

    lengths: list[int]
    layout: Padded | None
    encoder_output: Tensor  # (R, S, W)
    source_layout: Padded | None
    masked: Tensor  # decoder input of mask tokens, (R, T)


class PrecompiledDecoder(Protocol):
    """Decodes one pass with graphs that were captured or exported."""

    def decode(
        self, sources: Sequence[Tokens], settings: NATSettings
    ) -> tuple[list[list[LengthCandidate]], NATOutput | Paths]:
        """Return the candidate lengths of each sentence, and the decoded rows of all candidates on the CPU."""


class NATGenerator:
    """Generates translations with a `NATransformer`.

    Args:
        model: The model.
        precompiled: Decodes instead of the model, such as an exported graph; by default CUDA graphs where these apply.
    """

    settings_class: type[DecodingSettings] = NATSettings
    has_attention = True
    capture_devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(self, model: NATransformer, precompiled: PrecompiledDecoder | None = None) -> None:
        self.model, self.config = model, model.config
        self.ctc, self.dag = CTCDecoder(model.config), TokenGraphDecoder(model.config)
        self._precompiled, self._is_given = precompiled, precompiled is not None

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def resolve_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        check_settings_type(settings, NATSettings)
        assert isinstance(settings, NATSettings)
        for name, value in (
            ("prefix", constraints.prefix),
            ("required phrases", constraints.required),
            ("forbidden phrases", constraints.forbidden),
            ("glossary", constraints.terms),
            ("trees", trees),
        ):
            if value:
                raise UserError(f"{name}: needs an autoregressive model; this model is non-autoregressive")
        return settings.resolve(self.config.length)

    def batch_tokens(self, settings: DecodingSettings) -> int:
        """Return fewer tokens than for search, because every target position has a row of logits."""
        assert isinstance(settings, NATSettings)
        positions = settings.lengths if self.config.length == "classifier" else self.config.upsampling
        return max(1, int(BATCH_TOKENS / 2 / max(1.0, positions)))

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, NATSettings)
        if not requests:
            return []
        sources = [request.source for request in requests]
        if self._can_capture(settings, trace):
            try:
                return self._replay(sources, settings)
            except torch.OutOfMemoryError:
                self._precompiled = None
        encoded = self._encode(sources)
        candidates = self._candidates(encoded, settings.lengths)
        rows = [(i, candidate.length) for i, sentence in enumerate(candidates) for candidate in sentence]
        targets = self._targets(encoded, [length for _, length in rows], [i for i, _ in rows])
        if self.config.length == "ctc":
            return self.ctc.decode(self._predict(targets), targets.lengths, settings, trace)
        if self.config.length == "dag" and settings.beam > 1:
            return self.dag.search(self._predict_graphs(targets), sources, settings, trace)
        if self.config.length == "dag":
            return self.dag.decode(self._predict_graphs(targets), settings, trace)
        output, iterations = self._mask_predict(targets, settings.iterations or 1, trace)
        return self._rank(candidates, output, settings, iterations)

    @torch.no_grad()
    def log_probs(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Tensor:
        """Return the log-probabilities of one pass over masks, (B, P, V) with P = T.

        With a length classifier, T is the length of the longest target; otherwise it follows from the sources.
        """
        encoded = self._encode(sources)
        return self._predict(self._targets(encoded, self._target_lengths(encoded, targets)))

    @torch.no_grad()
    def trace_graph(self, source: Tokens, settings: NATSettings) -> GraphTrace:
        """Return the graph that a model with `length: dag` predicts for a source, and its paths."""
        encoded = self._encode([source])
        graphs = self._predict_graphs(self._targets(encoded, self._target_lengths(encoded, ())))
        return self.dag.trace(graphs, source, settings)

    @torch.no_grad()
    def run_forward(self, sources: Sequence[Tokens], hypotheses: Sequence[TokenHypothesis]) -> None:
        inputs = [_as_nat(hypothesis).decoder_input for hypothesis in hypotheses]
        targets = self._targets(self._encode(sources), [len(tokens) for tokens in inputs])
        self._predict(targets, pad_batch(inputs, self.config.mask_token, self.device)[0])

    def attention_rows(self, hypothesis: TokenHypothesis) -> list[int]:
        return _as_nat(hypothesis).positions

    @torch.no_grad()
    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        """Score given translations by one decoder pass over masks.

        A translation that is longer than the NAT target, whose length follows from the source, scores -inf.
        """
        encoded = self._encode(sources)
        lengths: list[int] = self.config.clip_lengths(np.array(self._target_lengths(encoded, targets))).tolist()
        if self.config.length == "dag":
            assert isinstance(settings, NATSettings)
            return [*self.dag.score(self._predict_graphs(self._targets(encoded, lengths)), targets, settings.alpha)]
        log_probs = self._predict(self._targets(encoded, lengths))
        if self.config.length == "ctc":
            return self.ctc.score(log_probs, lengths, targets)
        length_scores: list[float | None] = [None] * len(targets)
        if self.config.length == "classifier":
            sizes = [len(target) for target in targets]
            length_scores = [*length_log_probs(self.model, encoded.output, encoded.layout, encoded.lengths, sizes)]
        end = [self.config.eos] if self.config.length == "end" else []
        scored: list[TokenHypothesis] = []
        for row, target, length, length_score in zip(log_probs, targets, lengths, length_scores, strict=True):
            predicted = [*target, *end][:length]
            index = torch.tensor(predicted, dtype=torch.long, device=self.device)
            token_log_probs = row[: len(predicted)].gather(1, index[:, None])[:, 0].tolist()
            fits = len(target) <= length
            hypothesis = NATHypothesis(
                tokens=list(target),
                score=score_target(token_log_probs, length_score) if fits else -math.inf,
                token_log_probs=token_log_probs,
                decoder_input=[self.config.mask_token] * length,
                positions=list(range(len(predicted))),
            )
            scored.append(hypothesis)
        return scored

    # Captured CUDA graphs

    def _can_capture(self, settings: NATSettings, trace: bool) -> bool:
        if self._is_given or self.device.type not in self.capture_devices:
            return self._is_given
        from regard.decoding.cuda_graph.capture import why_not_capture_nat

        return why_not_capture_nat(self.model, settings, trace) is None

    def _replay(self, sources: Sequence[Tokens], settings: NATSettings) -> list[list[TokenHypothesis]]:
        """Return the hypotheses of `generate`, computed by captured CUDA graphs."""
        from regard.decoding.cuda_graph.nat import CapturedNAT

        if self._precompiled is None:
            self._precompiled = CapturedNAT(self.model)
        candidates, output = self._precompiled.decode(sources, settings)
        if isinstance(output, Paths):
            lengths = [candidate.length for row in candidates for candidate in row]
            return [[path] for path in self.dag.follow(output, lengths, settings.alpha)]
        if self.config.length == "ctc":  # prefix search is not captured
            lengths = [candidate.length for row in candidates for candidate in row]
            return [[path] for path in self.ctc.best_paths(output.tokens, output.log_probs, lengths)]
        return self._rank(candidates, output, settings)

    # Encoder and decoder

    def _encode(self, sources: Sequence[Tokens]) -> EncodedSources:
        """Encode sources, which are given without END."""
        refresh_prepacked(self.model)
        lengths = [len(source) + 1 for source in sources]
        tokens, _ = pad_batch([[*source, self.config.eos] for source in sources], self.config.pad, self.device)
        layout = self._layout(lengths)
        return EncodedSources(self.model.encode(tokens, layout), layout, lengths)

    def _layout(self, lengths: Sequence[int]) -> Padded | None:
        longest = max(lengths)
        return None if min(lengths) == longest else Padded(torch.tensor(lengths, device=self.device), longest)

    def _candidates(self, encoded: EncodedSources, count: int) -> list[list[LengthCandidate]]:
        if self.config.length != "classifier":
            return [[LengthCandidate(length, None)] for length in self._target_lengths(encoded, ())]
        source_lengths = torch.tensor(encoded.lengths, device=self.device)
        return list_candidates(*predict_lengths(self.model, encoded.output, encoded.layout, source_lengths, count))

    def _target_lengths(self, encoded: EncodedSources, targets: Sequence[Tokens]) -> list[int]:
        """Return the number of target positions: those of the targets, or without a classifier of the sources."""
        if self.config.length == "classifier":
            return [len(target) for target in targets]
        lengths: list[int] = self.config.upsampled_lengths(np.array(encoded.lengths)).tolist()
        return lengths

    def _targets(
        self, encoded: EncodedSources, lengths: list[int], sentences: Sequence[int] | None = None
    ) -> NATTargets:
        """Create a row of mask tokens for every length; by default, one row per sentence."""
        output, source_lengths = encoded.output, encoded.lengths
        if sentences is not None and len(sentences) > len(source_lengths):
            output = output[torch.tensor(sentences, device=self.device)]
            source_lengths = [source_lengths[i] for i in sentences]
        masked = torch.full((len(lengths), max(lengths)), self.config.mask_token, device=self.device)
        return NATTargets(lengths, self._layout(lengths), output, self._layout(source_lengths), masked)

    def _predict(self, targets: NATTargets, decoder_input: Tensor | None = None) -> Tensor:
        """Return the log-probabilities of one decoder pass, (R, T, V); the input consists of masks by default."""
        decoder_input = targets.masked if decoder_input is None else decoder_input
        layouts = targets.layout, targets.source_layout
        return token_log_probs(self.model, targets.encoder_output, *layouts, decoder_input)

    def _predict_graphs(self, targets: NATTargets) -> TokenGraphs:
        """Return the graphs that one decoder pass predicts."""
        x = self.model.decode(targets.masked, targets.encoder_output, targets.layout, targets.source_layout)
        lengths = torch.tensor(targets.lengths, device=self.device)
        return TokenGraphs(log_probs_of(self.model, x), self.model.transitions(x, lengths), targets.lengths)

    # Length classifier and END

    def _mask_predict(
        self, targets: NATTargets, iterations: int, trace: bool
    ) -> tuple[NATOutput, list[list[NATIteration]]]:
        """Return the last output and, if traced, the iterations of every row."""
        traced: list[list[NATIteration]] = [[] for _ in targets.lengths] if trace else []
        lengths = torch.tensor(targets.lengths, device=self.device)
        outputs = mask_predict(partial(self._predict, targets), targets.masked, lengths, iterations)
        active = active_iterations(max(targets.lengths), iterations)
        for number, (output, updated) in enumerate(islice(outputs, active)):
            if not trace:
                continue
            taken = snapshots(output.tokens, output.log_probs, updated, targets.lengths)
            for row, length, snapshot in zip(traced, targets.lengths, taken, strict=True):
                if number < active_iterations(length, iterations):  # longer rows have more active iterations
                    row.append(snapshot)
        return output, traced

    def _rank(
        self,
        candidates: Sequence[Sequence[LengthCandidate]],
        output: NATOutput,
        settings: NATSettings,
        iterations: Sequence[list[NATIteration]] = (),
    ) -> list[list[TokenHypothesis]]:
        """Return the hypotheses of each sentence, best first, with their iterations if these are traced."""
        flat = [candidate for sentence in candidates for candidate in sentence]
        rows = zip(flat, *(part.tolist() for part in output), iterations or [[]] * len(flat), strict=True)
        hypotheses = iter([self._hypothesis(*row) for row in rows])
        count = settings.lengths if settings.rerank else settings.n_best
        groups = [[next(hypotheses) for _ in sentence] for sentence in candidates]
        return [sorted(group, key=lambda hypothesis: -hypothesis.score)[:count] for group in groups]

    def _hypothesis(
        self,
        candidate: LengthCandidate,
        tokens: list[int],
        log_probs: list[float],
        decoder_input: list[int],
        iterations: list[NATIteration],
    ) -> TokenHypothesis:
        """Return the hypothesis of a row of the output; with length: end, its tokens end before the first END."""
        tokens, predicted = tokens[: candidate.length], candidate.length
        if self.config.length == "end" and self.config.eos in tokens:
            tokens = tokens[: tokens.index(self.config.eos)]
            predicted = len(tokens) + 1
        return NATHypothesis(
            tokens=tokens,
            score=score_target(log_probs[:predicted], candidate.log_prob),
            token_log_probs=log_probs[:predicted],
            decoder_input=decoder_input[: candidate.length],
            positions=list(range(predicted)),
            iterations=iterations,
        )


def score_target(log_probs: Sequence[float], length_log_prob: float | None) -> float:
    """Return the mean token log-probability plus the weighted log-probability of the predicted length.

    The weight does not depend on the number of tokens: otherwise the length would count less in long targets.
    """
    mean = sum(log_probs) / max(1, len(log_probs))
    return mean if length_log_prob is None else mean + LENGTH_WEIGHT * length_log_prob


def _as_nat(hypothesis: TokenHypothesis) -> NATHypothesis:
    assert isinstance(hypothesis, NATHypothesis)
    return hypothesis
