"""Writing with CTranslate2 in place of our own model: the same tokens in and out, and fewer things to ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.interop.ctranslate2 import POSITIONS
from regard.interop.lengths import longest_input
from regard.interop.optional import need
from regard.models.transformer import EncoderDecoderConfig
from regard.pipelines.external import ExternalGenerator

ENGINE = "the engine ctranslate2"


class CTranslate2Generator(ExternalGenerator):
    """Writes with a model that CTranslate2 has loaded.

    Its beam always stops as soon as `beam` hypotheses have ended. Hypotheses have no log-probabilities of their own
    tokens; `score` gives them.
    """

    who = ENGINE

    def __init__(
        self,
        folder: Path,
        config: EncoderDecoderConfig,
        pieces: tuple[Sequence[str], Sequence[str]],
        device: torch.device,
    ) -> None:
        """Loads the engine's files from a folder.

        Raises:
            UserError: CTranslate2 is not installed, the files are damaged, or the device is none of its.
        """
        engine = need("ctranslate2", "export")
        threads = torch.get_num_threads()
        options = {"device_index": device.index or 0} if device.type == "cuda" else {"intra_threads": threads}
        try:
            self._engine: Any = engine.Translator(str(folder), device=device.type, **options)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{folder}: CTranslate2 cannot load it ({_one_line(error)})") from None
        self.config = config
        self._source, self._target = pieces
        self._ids = {piece: index for index, piece in enumerate(self._target)}
        self.longest = longest_input(config, POSITIONS)

    @property
    def precision(self) -> str:
        """The numbers in which the engine computes."""
        return str(self._engine.compute_type)

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_plain(settings, request, trees, snapshots)
        if "stop" in settings.model_fields_set and settings.stop == "exact":
            raise UserError(f"{ENGINE} has no stop exact; leave it away, or use the engine regard")
        return settings.changed(stop="first")

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        sources = [request.source for request in requests]
        for source in sources:
            self._check_length(len(source))
        limits = [self._limit(len(source), settings) for source in sources]
        found = self._search(sources, settings, max(limits))
        # What ended in time would have ended so with the sentence's own limit; what did not is searched with it.
        again = defaultdict(list)
        for place, (best, limit) in enumerate(zip(found, limits, strict=True)):
            if limit < max(limits) and any(len(one.tokens) + 1 >= limit for one in best):
                again[limit].append(place)
        for limit, places in again.items():
            for place, best in zip(
                places, self._search([sources[place] for place in places], settings, limit), strict=True
            ):
                found[place] = best
        self._finish(sources, found, limits, settings)
        return [best[: settings.n_best] for best in found]

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        raise UserError(f"{ENGINE} does not tell the log-probabilities of the whole vocabulary; use the engine regard")

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        for row in (*sources, *targets):
            self._check_length(len(row))
        results = self._engine.score_batch(
            self._spell(sources), [[self._target[i] for i in row] for row in targets], max_input_length=0
        )
        found = []
        for target, result in zip(targets, results, strict=True):
            gains = list(result.log_probs)
            normaliser = settings.length_normaliser(float(len(gains)))
            found.append(TokenHypothesis(list(target), sum(gains) / normaliser, gains))
        return found

    def _search(
        self, sources: Sequence[Sequence[int]], settings: SearchSettings, limit: int
    ) -> list[list[TokenHypothesis]]:
        """All of the beam that ended; at the limit, END counted, hypotheses are cut as they stand."""
        results = self._engine.translate_batch(
            self._spell(sources),
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
                TokenHypothesis([self._ids[piece] for piece in pieces[: limit - 1]], score, [])
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _finish(
        self,
        sources: Sequence[Sequence[int]],
        found: list[list[TokenHypothesis]],
        limits: Sequence[int],
        settings: SearchSettings,
    ) -> None:
        """Scores with their END what was cut at the limit, or found greedily, which has a sum for a score."""
        cut = [
            (place, n)
            for place, best in enumerate(found)
            for n, one in enumerate(best)
            if len(one.tokens) + 1 >= limits[place] or settings.beam_width == 1
        ]
        if not cut:
            return
        scored = self.score([sources[place] for place, _ in cut], [found[p][n].tokens for p, n in cut], settings)
        for (place, n), one in zip(cut, scored, strict=True):
            found[place][n] = TokenHypothesis(one.tokens, one.score, [])
        for place in {place for place, _ in cut}:
            found[place].sort(key=lambda one: -one.score)

    def _limit(self, length: int, settings: SearchSettings) -> int:
        limit = settings.max_target_length(length)
        return limit if self.longest is None else min(limit, self.longest)

    def _check_length(self, tokens: int) -> None:
        if self.longest is not None and tokens + 1 > self.longest:
            raise UserError(f"a sentence of {tokens} tokens is too long for {ENGINE}, which ends at {self.longest - 1}")

    def _spell(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._source[i] for i in source] for source in sources]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
