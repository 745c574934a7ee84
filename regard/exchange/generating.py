"""Translating with `generate` of transformers in place of our own search: the same weights, tokens and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.decoding.engine import check_plain
from regard.decoding.rules import Request
from regard.decoding.search import Found, Trace
from regard.decoding.settings import AnySettings, SearchSettings
from regard.decoding.translator import Translator
from regard.decoding.writer import BATCH_TOKENS
from regard.errors import UserError
from regard.exchange.huggingface import HuggingFacePeer, build_huggingface

WHO = "transformers' generate"


class GenerateWriter:
    """Writes with a model of transformers. Hypotheses have no scores, and there is one a sentence."""

    settings: type[AnySettings] = SearchSettings
    shows_attention = False

    def __init__(self, peer: HuggingFacePeer) -> None:
        self.peer = peer

    def prepare(self, settings: AnySettings, request: Request, trees: bool, snapshots: bool) -> AnySettings:
        settings = check_plain(settings, request, trees, snapshots, WHO)
        if settings.n_best > 1:
            raise UserError(f"{WHO} is asked for one translation a sentence; leave n_best away")
        return settings

    def batch_tokens(self, settings: AnySettings) -> int:
        return BATCH_TOKENS

    def write(
        self, requests: Sequence[Request], settings: AnySettings, trace: Trace | None = None
    ) -> list[list[Found]]:
        assert isinstance(settings, SearchSettings)
        written = self.peer.write([request.source for request in requests], settings)
        return [[Found(tokens, 0.0, [])] for tokens in written]

    def read(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        raise UserError(f"{WHO} only translates; use the engine regard")

    def review(self, sources: Sequence[Sequence[int]], found: Sequence[Found]) -> None:
        raise UserError(f"{WHO} does not show its attention (probe, alignments); use the engine regard")

    def rows(self, found: Found) -> list[int]:
        return list(range(len(found.tokens) + 1))

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
    return Translator(ours.model, ours.vocabularies, ours.languages, writer=GenerateWriter(peer))
