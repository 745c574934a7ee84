"""Translation with CTranslate2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.decoding.config import DecodingSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.pipelines.external import ExternalGenerator, Tokens
from regard.runtime import import_optional


class CTranslate2Generator(ExternalGenerator):
    """Generates translations with a model that CTranslate2 has loaded.

    Its beam search stops as soon as `beam` hypotheses have ended. Hypotheses have no token log-probabilities; `score`
    computes them.

    Args:
        folder: folder with the files of the engine.
        vocabularies: text of each token of the source and of the target, by id.
        device: device of the engine.
        longest: maximum number of tokens of either side, END included; None if unlimited.

    Raises:
        UserError: CTranslate2 is not installed, the files are damaged, or it does not support the device.
    """

    library = "CTranslate2"

    def __init__(
        self, folder: Path, vocabularies: tuple[Sequence[str], Sequence[str]], device: torch.device, longest: int | None
    ) -> None:
        library = import_optional("ctranslate2", "export")
        threads = torch.get_num_threads()
        options = {"device_index": device.index or 0} if device.type == "cuda" else {"intra_threads": threads}
        try:
            self._engine: Any = library.Translator(str(folder), device=device.type, **options)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder}: CTranslate2 cannot load it ({reason})") from None
        self._source_vocabulary, self._target_vocabulary = vocabularies
        self._target_ids = {token: index for index, token in enumerate(self._target_vocabulary)}
        self.longest = longest

    @property
    def precision(self) -> str:
        """Data type in which the engine computes."""
        return str(self._engine.compute_type)

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_settings(settings, request, trees, snapshots)
        if "stop" in settings.model_fields_set and settings.stop == "exact":
            raise UserError(f"{self.library} has no stop exact; omit it, or use the engine regard")
        return settings.changed(stop="first")

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        sources = [request.source for request in requests]
        for source in sources:
            self._check_length(source)
        limits = [self.max_target_length(source, settings) for source in sources]
        found = self._search(sources, settings, max(limits))
        # The engine has one length limit per batch. Sentences that reach their own lower limit are searched again.
        repeated = defaultdict(list)
        for index, (best, limit) in enumerate(zip(found, limits, strict=True)):
            if limit < max(limits) and any(len(one.tokens) + 1 >= limit for one in best):
                repeated[limit].append(index)
        for limit, indices in repeated.items():
            results = self._search([sources[index] for index in indices], settings, limit)
            for index, best in zip(indices, results, strict=True):
                found[index] = best
        self._rescore(sources, found, limits, settings)
        return [best[: settings.n_best] for best in found]

    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        for tokens in (*sources, *targets):
            self._check_length(tokens)
        results = self._engine.score_batch(
            self._to_text(sources),
            [[self._target_vocabulary[i] for i in tokens] for tokens in targets],
            max_input_length=0,
        )
        scored = []
        for target, result in zip(targets, results, strict=True):
            log_probs = list(result.log_probs)
            normaliser = settings.length_normaliser(float(len(log_probs)))
            scored.append(TokenHypothesis(list(target), sum(log_probs) / normaliser, log_probs))
        return scored

    def _search(self, sources: Sequence[Tokens], settings: SearchSettings, limit: int) -> list[list[TokenHypothesis]]:
        """Return all finished hypotheses of the beam. At the limit, END included, hypotheses are cut."""
        results = self._engine.translate_batch(
            self._to_text(sources),
            beam_size=settings.beam_width,
            num_hypotheses=settings.beam_width,
            length_penalty=0.0 if settings.length_penalty == "none" else settings.alpha,
            max_decoding_length=max(limit - 1, 1),
            min_decoding_length=0,
            max_input_length=0,
            return_scores=True,
        )
        return [
            [
                TokenHypothesis([self._target_ids[token] for token in hypothesis[: limit - 1]], score, [])
                for hypothesis, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _rescore(
        self,
        sources: Sequence[Tokens],
        found: list[list[TokenHypothesis]],
        limits: Sequence[int],
        settings: SearchSettings,
    ) -> None:
        """Score with END the hypotheses that were cut, and those of greedy search, which are not normalised."""
        indices = [
            (i, n)
            for i, best in enumerate(found)
            for n, one in enumerate(best)
            if len(one.tokens) + 1 >= limits[i] or settings.beam_width == 1
        ]
        if not indices:
            return
        scored = self.score([sources[i] for i, _ in indices], [found[i][n].tokens for i, n in indices], settings)
        for (i, n), one in zip(indices, scored, strict=True):
            found[i][n] = TokenHypothesis(one.tokens, one.score, [])
        for i in {i for i, _ in indices}:
            found[i].sort(key=lambda one: -one.score)

    def _check_length(self, tokens: Tokens) -> None:
        if self.longest is not None and len(tokens) + 1 > self.longest:
            raise UserError(
                f"a sentence of {len(tokens)} tokens is too long for {self.library}, whose positions end at "
                f"{self.longest - 1}"
            )

    def _to_text(self, sources: Sequence[Tokens]) -> list[list[str]]:
        return [[self._source_vocabulary[i] for i in source] for source in sources]
