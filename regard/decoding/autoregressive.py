"""Autoregressive generation with one model or an ensemble.

`search_tokens` decodes with a `Stepper`. Its rows are hypotheses: the K hypotheses of each sentence follow each other.

On a GPU, `AutoregressiveGenerator.generate` replays captured CUDA graphs where `why_not_capture_search` gives no reason
against it; the results are the same as those of `search_tokens`. On a CPU, fused blocks replace the decoder blocks.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding.beam import BeamSearch, needs_beam
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.cpu_blocks import SingleStep, fuse_cpu_blocks
from regard.decoding.generator import BATCH_TOKENS, collect_cross_attention
from regard.decoding.greedy import greedy_search
from regard.decoding.settings import DEFAULT_BEAM, SAMPLING, DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.stepper import StateT, Stepper, TokenHypothesis
from regard.errors import UserError
from regard.masks import Mask, Padded, pad_batch
from regard.models.transformer import DecoderState, Transformer
from regard.ops.linear import refresh_prepacked

if TYPE_CHECKING:
    from regard.decoding.cuda_graph.search import CapturedSearch

GPU_BATCH_TOKENS = 4 * BATCH_TOKENS
"""On a GPU, the time of a step hardly depends on the number of sentences."""


@torch.inference_mode()
def search_tokens(
    stepper: Stepper[StateT],
    requests: Sequence[DecodingRequest | Sequence[int]],
    settings: SearchSettings,
    trace: bool = False,
) -> list[list[TokenHypothesis]]:
    """Return the best hypotheses of every request, or of every source without constraints, best first.

    Search does not know the model: a `Stepper` maps sources to a state and tokens to log-probabilities, on any device.
    Traced hypotheses carry the tree of their beam.
    """
    batch = [request if isinstance(request, DecodingRequest) else DecodingRequest(request) for request in requests]
    if not batch:
        return []
    beam_only = settings.coverage > 0 or trace or any(map(needs_beam, batch))
    if settings.sampling and beam_only:
        raise UserError(f"required phrases and trees need a beam: omit {', '.join(SAMPLING)} and mbr")
    if beam_only or (settings.beam_width > 1 and not settings.sampling):
        return BeamSearch(stepper, batch, settings, trace).run()
    return greedy_search(stepper, batch, settings)


class AutoregressiveGenerator:
    """Generates translations with a `Transformer`, or with several that have the same vocabularies.

    Attributes:
        graph_memory: Maximum bytes of captured steps; by default, a fraction of the GPU's memory.
    """

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = True
    capture_devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        self.config = models[0].config
        self.graph_memory: int | None = None
        self._captured: CapturedSearch | None = None

    @property
    def device(self) -> torch.device:
        return self.models[0].target_embedding.weight.device

    def resolve_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        check_settings_type(settings, SearchSettings)
        if snapshots:
            raise UserError("snapshots need a non-autoregressive model; this model is autoregressive and has trees")
        assert isinstance(settings, SearchSettings)
        if settings.mbr is not None and (trees or needs_beam(constraints)):
            raise UserError("required phrases and trees need a beam: omit mbr")
        if settings.sampling and constraints.terms is not None:
            raise UserError(f"a glossary needs a beam: omit {', '.join(SAMPLING)}")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        assert isinstance(settings, SearchSettings)
        tokens = GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS
        # Many samples of a sentence are as many rows.
        return tokens if settings.mbr is None else max(1, tokens * DEFAULT_BEAM // settings.beam_width)

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        if self._can_capture(requests, settings, trace):
            try:
                return self._replay(requests, settings)
            except torch.OutOfMemoryError:  # plain search needs less memory: decided sentences leave the batch
                self._captured = None
        return search_tokens(self._stepper(settings), requests, settings, trace)

    @torch.no_grad()
    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """Return the log-probabilities after 0 to T target tokens, (B, P, V) with P = T + 1."""
        bos, pad = self.config.bos, self.config.pad
        source, source_layout = pad_batch([self.config.source_tokens(tokens) for tokens in sources], pad, self.device)
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
                width = self.config.source_length(source)
                received = [maps[i, : len(tokens), :width].sum(0) for maps in weights]
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
            self._captured = CapturedSearch(self.models[0], memory=self.graph_memory)
        return self._captured.search(requests, settings)


# Step functions


@dataclass
class TransformerState:
    """The decoder state and, for the coverage penalty, the attention that each source token has received.

    With `single_step`, which decodes a single hypothesis on a CPU, the decoder state is not used.
    """

    decoder: DecoderState
    attention: Tensor | None = None  # (rows, S)
    single_step: SingleStep | None = None

    def select(self, rows: Tensor) -> "TransformerState":
        if self.single_step is not None:
            return TransformerState(self.decoder, single_step=self.single_step.copy())
        attention = None if self.attention is None else self.attention[rows]
        return TransformerState(self.decoder.select(rows), attention)

    def coverage_penalties(self) -> Tensor:
        layout = self.decoder.source_mask.keys
        assert self.attention is not None and isinstance(layout, Padded)
        real = layout.real().repeat_interleave(self.decoder.beam_width, 0)
        return coverage_penalty(self.attention.masked_fill(~real, 1))


class TransformerStepper:
    """Decodes with a `Transformer`.

    With `coverage`, states accumulate the attention of the last layer to each source token.
    """

    def __init__(self, model: Transformer, coverage: bool = False) -> None:
        self.model, self.coverage = model, coverage
        self.bos, self.eos = model.config.bos, model.config.eos
        self.max_length = model.config.max_positions

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> TransformerState:
        """Encode the sources, which are given without END. The model must not change until the search ends."""
        refresh_prepacked(self.model)
        config = self.model.config
        tokens, layout = pad_batch([config.source_tokens(source) for source in sources], config.pad, self.device)
        padding = layout if len(sources) > 1 or self.coverage else None  # a single sentence needs no mask
        encoder_output = self.model.encode(tokens, padding)
        if self.coverage:  # without fused blocks, which call no hooks: through these, `step` accumulates attention
            decoder = self.model.start(encoder_output, padding, beam_width)
            dtype = torch.promote_types(encoder_output.dtype, torch.float32)  # sums of small weights
            attention = encoder_output.new_zeros(len(tokens) * beam_width, layout.size, dtype=dtype)
            return TransformerState(decoder, attention)
        blocks = fuse_cpu_blocks(list(self.model.decoder)) if self.device.type == "cpu" else None
        decoder = self.model.start(encoder_output, padding, beam_width, blocks)
        is_single = len(sources) * beam_width == 1
        return TransformerState(decoder, single_step=SingleStep.of(self.model, decoder) if is_single else None)

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        if state.single_step is not None:
            return state.single_step(tokens).float().log_softmax(-1)
        with self._accumulate_attention(state):
            logits = self.model.step(tokens.view(-1, state.decoder.beam_width), state.decoder)
        return logits.flatten(0, 1).float().log_softmax(-1)

    @contextmanager
    def _accumulate_attention(self, state: TransformerState) -> Iterator[None]:
        """Add the cross-attention weights of the last layer, averaged over heads, to the state."""
        if state.attention is None:
            yield
            return
        received_BKS = state.attention.view(-1, state.decoder.beam_width, state.attention.shape[1])

        def add(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
            received_BKS.add_(attention.kind.weights(q, k, mask).mean(1))

        cross = self.model.get_submodule(f"decoder.{len(self.model.decoder) - 1}.cross")
        assert isinstance(cross, Attention)
        with use_qkv_hook([cross], add):
            yield


@dataclass
class EnsembleState:
    """The states of all models."""

    members: list[TransformerState]

    def select(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState([member.select(rows) for member in self.members])

    def coverage_penalties(self) -> Tensor:
        return torch.stack([member.coverage_penalties() for member in self.members]).mean(0)


class EnsembleStepper:
    """Averages the probabilities of several models with the same vocabularies at every step."""

    def __init__(self, steppers: Sequence[TransformerStepper]) -> None:
        self.steppers = steppers
        self.bos, self.eos = steppers[0].bos, steppers[0].eos
        self.max_length = min((s.max_length for s in steppers if s.max_length is not None), default=None)

    @property
    def device(self) -> torch.device:
        return self.steppers[0].device

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> EnsembleState:
        return EnsembleState([stepper.start(sources, beam_width) for stepper in self.steppers])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        pairs = zip(self.steppers, state.members, strict=True)
        log_probs = torch.stack([stepper.step(tokens, member) for stepper, member in pairs])
        return log_probs.logsumexp(0) - math.log(len(self.steppers))


def coverage_penalty(attention: Tensor) -> Tensor:
    """Return Σ log min(a, 1) over the attention a received by source tokens, the last dimension (Wu et al. 2016)."""
    return attention.clamp(min=1e-9, max=1).log().sum(-1)
