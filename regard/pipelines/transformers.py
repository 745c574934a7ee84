"""Translating with `generate` of transformers in place of our own search: the same weights, tokens and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.decoding.constraints import Request
from regard.decoding.search import Found, Trace
from regard.decoding.settings import AnySettings, SearchSettings
from regard.errors import UserError
from regard.interop.export_huggingface import HuggingFacePeer, build_huggingface
from regard.pipelines.external import ExternalGenerator
from regard.pipelines.translator import Translator

WHO = "transformers' generate"


class TransformersGenerator(ExternalGenerator):
    """Writes with a model of transformers. Hypotheses have no scores, and there is one a sentence."""

    who = WHO

    def __init__(self, peer: HuggingFacePeer) -> None:
        self.peer = peer

    def prepare(self, settings: AnySettings, request: Request, trees: bool, snapshots: bool) -> AnySettings:
        settings = self.check_plain(settings, request, trees, snapshots)
        if settings.n_best > 1:
            raise UserError(f"{WHO} is asked for one translation a sentence; leave n_best away")
        return settings

    def write(
        self, requests: Sequence[Request], settings: AnySettings, trace: Trace | None = None
    ) -> list[list[Found]]:
        assert isinstance(settings, SearchSettings)
        written = self.peer.write([request.source for request in requests], settings)
        return [[Found(tokens, 0.0, [])] for tokens in written]

    def read(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        raise UserError(f"{WHO} only translates; use the engine regard")

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: AnySettings
    ) -> list[Found]:
        raise UserError(f"{WHO} only translates; use the engine regard")


def load_in_transformers(path: Path, device: torch.device) -> Translator:
    """The translator of a run whose weights are in a model of transformers, which does the work.

    Raises:
        UserError: it is no model folder, transformers has no such model, or is not installed.
    """
    ours = Translator.load(path)
    peer = HuggingFacePeer(build_huggingface(ours).to(device))
    return Translator(ours.model, ours.vocabularies, ours.languages, writer=TransformersGenerator(peer))
