"""Autoregressive generation with one model or an ensemble.

On a GPU, `AutoregressiveGenerator.generate` replays captured CUDA graphs where `why_not_capture_search` gives no reason
against it; the results are the same as those of `search`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS, collect_cross_attention
from regard.decoding.search import Stepper, TokenHypothesis, search
from regard.decoding.stepper import EnsembleStepper, TransformerStepper, coverage_penalty, pad_batch
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.ops.quantization import refresh_prepacked

if TYPE_CHECKING:
    from regard.decoding.cuda_graph.search import CapturedSearch

GPU_BATCH_TOKENS = 4 * BATCH_TOKENS
"""On a GPU, the time of a step hardly depends on the number of sentences."""


class AutoregressiveGenerator:
    """Generates translations with a `Transformer`, or with several that have the same vocabularies."""

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = True
    capture_devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        self.config = models[0].config
        self._captured: CapturedSearch | None = None

    @property
    def device(self) -> torch.device:
        return self.models[0].target_embedding.weight.device

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        check_settings_type(settings, SearchSettings)
        if snapshots:
            raise UserError("snapshots need a non-autoregressive model; this model is autoregressive and has trees")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        return GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        if self._can_capture(requests, settings, trace):
            try:
                return self._replay(requests, settings)
            except torch.OutOfMemoryError:  # plain search needs less memory: decided sentences leave the batch
                self._captured = None
        return search(self._stepper(settings), requests, settings, trace)

    @torch.no_grad()
    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """Return the log-probabilities after 0 to T target tokens, (B, T + 1, V)."""
        eos, bos, pad = self.config.eos, self.config.bos, self.config.pad
        source, source_layout = pad_batch([[*tokens, eos] for tokens in sources], pad, self.device)
        target, target_layout = pad_batch([[bos, *tokens] for tokens in targets], pad, self.device)
        for model in self.models:
            refresh_prepacked(model)
        logits = [model(source, target, source_layout, target_layout) for model in self.models]
        log_probs: list[Tensor] = [x.float().log_softmax(-1) for x in logits]
        return log_probs[0] if len(log_probs) == 1 else torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))

    def run_forward(self, sources: Sequence[Sequence[int]], hypotheses: Sequence[TokenHypothesis]) -> None:
        self.log_probs(sources, [hypothesis.tokens for hypothesis in hypotheses])

    def attention_rows(self, hypothesis: TokenHypothesis) -> list[int]:
        return list(range(len(hypothesis.tokens) + 1))

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        with collect_cross_attention(self.models if settings.coverage else ()) as weights:
            log_probs = self.log_probs(sources, targets)
        if settings.coverage:  # the last cross-attention of each model
            weights = [weights[end - 1] for end in accumulate(len(model.decoder) for model in self.models)]
        scored = []
        for i, (source, target, row) in enumerate(zip(sources, targets, log_probs, strict=True)):
            tokens = torch.tensor([*target, self.config.eos], device=row.device)
            chosen = row[: len(tokens)].gather(1, tokens[:, None])[:, 0]
            score = chosen.double().sum() / settings.length_normaliser(float(len(tokens)))
            if settings.coverage:
                received = [maps[i, : len(tokens), : len(source) + 1].sum(0) for maps in weights]
                score += settings.coverage * sum(map(coverage_penalty, received)) / len(received)
            scored.append(TokenHypothesis(list(target), float(score), chosen.tolist()))
        return scored

    def _stepper(self, settings: SearchSettings) -> Stepper[Any]:
        steppers = [TransformerStepper(model, settings.coverage > 0) for model in self.models]
        return steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers)

    def _can_capture(self, requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool) -> bool:
        if self.device.type not in self.capture_devices:
            return False
        from regard.decoding.cuda_graph.capture import why_not_capture_search

        return why_not_capture_search(self.models, requests, settings, trace) is None

    def _replay(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        from regard.decoding.cuda_graph.search import CapturedSearch

        if self._captured is None:
            self._captured = CapturedSearch(self.models[0])
        return self._captured.search(requests, settings)
