"""Translating with `generate` of transformers in place of our own search: the same weights, tokens and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.interop.huggingface_marian import HuggingFacePeer, build_huggingface
from regard.pipelines.external import ExternalGenerator
from regard.pipelines.translator import Translator

WHO = "transformers' generate"


class TransformersGenerator(ExternalGenerator):
    """Writes with a model of transformers. Hypotheses have no scores, and there is one a sentence."""

    who = WHO

    def __init__(self, peer: HuggingFacePeer) -> None:
        self.peer = peer

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_plain(settings, request, trees, snapshots)
        if settings.n_best > 1:
            raise UserError(f"{WHO} is asked for one translation a sentence; leave n_best away")
        return settings

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        written = self.peer.write([request.source for request in requests], settings)
        return [[TokenHypothesis(tokens, 0.0, [])] for tokens in written]

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        raise UserError(f"{WHO} only translates; use the engine regard")

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        raise UserError(f"{WHO} only translates; use the engine regard")


def load_in_transformers(path: Path, device: torch.device) -> Translator:
    """The translator of a run whose weights are in a model of transformers, which does the work.

    Raises:
        UserError: it is no model folder, transformers has no such model, or is not installed.
    """
    ours = Translator.load(path)
    peer = HuggingFacePeer(build_huggingface(ours).to(device))
    return Translator(ours.model, ours.vocabularies, ours.languages, generator=TransformersGenerator(peer))
