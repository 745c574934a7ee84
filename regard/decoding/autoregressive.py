"""Writing one token after another, for one model or for several that vote.

`AutoregressiveGenerator.generate` chooses between two paths to the same result: `search` over a stepper, which supports
everything, and on a GPU `CapturedSearch`, for the requests that `obstacle` has nothing against.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.constraints import DecodingRequest
from regard.decoding.ensemble import EnsembleStepper
from regard.decoding.generator import BATCH_TOKENS, collect_cross_attention
from regard.decoding.search import TokenHypothesis, search
from regard.decoding.stepper import TransformerStepper, coverage_penalty, pad_batch
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.ops.linear import PackedWeights

if TYPE_CHECKING:
    from regard.decoding.cuda_graph.search import CapturedSearch

BATCH_TOKENS_OF_GPU = 4 * BATCH_TOKENS
"""A GPU takes a step of many sentences in hardly more time than one of few."""


class AutoregressiveGenerator:
    """Writes with a `Transformer`, or with several that have the same vocabularies."""

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = True
    capture_devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(self, models: Sequence[Transformer], products: PackedWeights | None = None) -> None:
        self.models = models
        self._packed = PackedWeights() if products is None else products
        self.config = models[0].config
        self._steppers: dict[bool, EnsembleStepper] = {}
        self._captured: CapturedSearch | None = None

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        check_settings_type(settings, SearchSettings)
        if snapshots:
            raise UserError("snapshots need a non-autoregressive model; this model is autoregressive and has trees")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        on_gpu = self.models[0].target_embedding.weight.device.type == "cuda"
        return BATCH_TOKENS_OF_GPU if on_gpu else BATCH_TOKENS

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        if self._can_capture(requests, settings, trace):
            try:
                return self._replay(requests, settings)
            except torch.OutOfMemoryError:  # plain search needs less memory: finished sentences leave the batch
                self._captured = None
        return search(self._stepper(coverage=settings.coverage > 0), requests, settings, trace)

    def _can_capture(self, requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool) -> bool:
        if self.models[0].target_embedding.weight.device.type not in self.capture_devices:
            return False
        from regard.decoding.cuda_graph.capture import why_not_capture_search

        return why_not_capture_search(self.models, requests, settings, trace) is None

    def _replay(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        from regard.decoding.cuda_graph.search import CapturedSearch

        if self._captured is None:
            self._captured = CapturedSearch(self.models[0])
        return self._captured.search(requests, settings)

    @torch.no_grad()
    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """Row t is what is said after t target tokens."""
        device = self.models[0].target_embedding.weight.device
        read, read_layout = pad_batch([[*source, self.config.eos] for source in sources], self.config.pad, device)
        said, said_layout = pad_batch([[self.config.bos, *target] for target in targets], self.config.pad, device)
        self._packed.refresh()
        with self._packed:
            each: list[Tensor] = [m(read, said, read_layout, said_layout).float().log_softmax(-1) for m in self.models]
        if len(each) == 1:
            return each[0]
        return torch.stack(each).logsumexp(0) - torch.tensor(float(len(each))).log().to(device)

    def run_forward(self, sources: Sequence[Sequence[int]], found: Sequence[TokenHypothesis]) -> None:
        self.log_probs(sources, [one.tokens for one in found])

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        return list(range(len(found.tokens) + 1))

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        with collect_cross_attention(self.models if settings.coverage else ()) as seen:
            logp = self.log_probs(sources, targets)
        found = []
        for place, (source, target, row) in enumerate(zip(sources, targets, logp, strict=True)):
            said = torch.tensor([*target, self.config.eos], device=row.device)
            gains = row[: len(said)].gather(1, said[:, None])[:, 0]
            score = gains.double().sum() / settings.length_normaliser(float(len(said)))
            if settings.coverage:
                looked = [maps[place, : len(said), : len(source) + 1] for maps in self._last_layers(seen)]
                score += settings.coverage * sum(coverage_penalty(m.sum(0)) for m in looked) / len(looked)
            found.append(TokenHypothesis(list(target), float(score), gains.tolist()))
        return found

    def _last_layers(self, seen: list[Tensor]) -> list[Tensor]:
        """Of the cross-attentions of all models, each model's last."""
        ends = accumulate(len(model.decoder) for model in self.models)
        return [seen[end - 1] for end in ends]

    def _stepper(self, coverage: bool) -> EnsembleStepper:
        """Kept from call to call: a stepper prepares the weights for its steps once."""
        if coverage not in self._steppers:
            members = [TransformerStepper(model, coverage, self._packed) for model in self.models]
            self._steppers[coverage] = EnsembleStepper(members)
        return self._steppers[coverage]
