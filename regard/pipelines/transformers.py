"""Translation with `generate` of the library transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.search import TokenHypothesis
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.pipelines.external import ExternalGenerator, Tokens
from regard.runtime import import_optional


class TransformersGenerator(ExternalGenerator):
    """Generates one translation per sentence, without scores, with an encoder-decoder model of transformers.

    Args:
        model: a model that was trained with END at the end of the source.
    """

    library = "transformers"

    def __init__(self, model: Any) -> None:
        self.model, self.config = model.eval(), model.config
        self.longest = self.config.max_position_embeddings

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_settings(settings, request, trees, snapshots)
        if settings.n_best > 1:
            raise UserError(f"{self.library} returns one translation per sentence here; omit n_best")
        return settings

    @torch.no_grad()
    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        sources = [request.source for request in requests]
        beam: dict[str, Any] = {}
        if settings.beam_width > 1:
            beam["early_stopping"] = True if settings.stop == "first" else "never"  # "never" is our "exact"
            beam["length_penalty"] = 0.0 if settings.length_penalty == "none" else settings.alpha
        limits = [self.max_target_length(source, settings) for source in sources]
        force_end = _ForceEnd(limits, settings.beam_width, self.config.eos_token_id)
        rows = self.model.generate(
            **self._inputs(sources),
            num_beams=settings.beam_width,
            do_sample=False,
            max_new_tokens=max(limits),  # includes END but not the decoder's start token
            logits_processor=import_optional("transformers", "hf").LogitsProcessorList([force_end]),
            **beam,
        )
        return [[TokenHypothesis(self._strip(row), 0.0, [])] for row in rows.tolist()]

    @torch.no_grad()
    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        start, end = self.config.decoder_start_token_id, self.config.eos_token_id
        inputs, _ = pad_batch([[start, *target] for target in targets], self.config.pad_token_id, self.model.device)
        log_probs = self.model(**self._inputs(sources), decoder_input_ids=inputs).logits.log_softmax(-1)
        scored = []
        for target, row in zip(targets, log_probs, strict=True):
            labels = torch.tensor([*target, end])
            token_log_probs = row[torch.arange(len(labels)), labels].tolist()
            score = sum(token_log_probs) / settings.length_normaliser(float(len(labels)))
            scored.append(TokenHypothesis(list(target), score, token_log_probs))
        return scored

    def _inputs(self, sources: Sequence[Tokens]) -> dict[str, Tensor]:
        end = self.config.eos_token_id
        ids, layout = pad_batch([[*source, end] for source in sources], self.config.pad_token_id, self.model.device)
        return {"input_ids": ids, "attention_mask": layout.real().long()}

    def _strip(self, row: list[int]) -> list[int]:
        """Remove the decoder's start token, END, and padding."""
        end = self.config.eos_token_id
        tokens = row[1:]
        return tokens[: tokens.index(end)] if end in tokens else tokens


class _ForceEnd:
    """Logits processor that allows only END at the length limit of each sentence, as regard's search does.

    `generate` itself has one limit per batch and cuts unfinished hypotheses without END. Its `forced_eos_token_id` also
    has one limit, and ignores the probability of END.
    """

    def __init__(self, limits: Sequence[int], beam: int, end: int) -> None:
        self.end = end
        self.rows_by_limit: dict[int, list[int]] = {}
        for sentence, limit in enumerate(limits):
            self.rows_by_limit.setdefault(limit, []).extend(range(sentence * beam, (sentence + 1) * beam))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # The decoder's start token makes up for END, which is still missing.
        rows = self.rows_by_limit.get(input_ids.shape[1])
        if rows is None:
            return scores
        forced = scores.clone()
        forced[rows] = -torch.inf
        forced[rows, self.end] = scores[rows, self.end]
        return forced
