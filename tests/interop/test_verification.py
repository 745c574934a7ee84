"""Verification distinguishes identical translations, ties and differences."""

from collections.abc import Sequence

import pytest
import torch

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.interop.verification import (
    SEARCHES,
    Agreement,
    Tokens,
    check_agreement,
    compare,
    ended_before_limit,
    sample_sources,
)
from regard.pipelines.translator import Translator
from tests.interop.random_models import random_translator


class SwappedTokens:
    """A regard model that generates one token in place of another, and vice versa."""

    longest: int | None = None

    def __init__(self, translator: Translator, token: int, other: int) -> None:
        self.translator, self.swapped = translator, {token: other, other: token}

    def generate(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        beams = self.translator.generator.generate(requests, settings)
        return [
            [TokenHypothesis([self.swapped.get(token, token) for token in beam[0].tokens], 0.0, [])] for beam in beams
        ]

    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: SearchSettings
    ) -> list[TokenHypothesis]:
        return self.translator.generator.score(sources, targets, settings)


def test_different_translation_with_equal_score_is_a_tie() -> None:
    translator = random_translator("post")
    sources, greedy = sample_sources(translator), SEARCHES["greedy"]
    beams = translator.generator.generate([DecodingRequest(source) for source in sources], greedy)
    ended = [beam for beam, source in zip(beams, sources, strict=True) if ended_before_limit(beam, source, greedy)]
    generated = [token for beam in ended for token in beam[0].tokens]
    token, other = max(set(generated), key=generated.count), next(i for i in range(3, 290) if i not in generated)
    external = SwappedTokens(translator, token, other)
    with pytest.raises(UserError, match="differs from the regard model"):
        check_agreement(compare(translator, external, sources), "it")
    with torch.no_grad():  # gives both tokens the same probability
        translator.model.target_embedding.weight[other] = translator.model.target_embedding.weight[token]
    agreement = compare(translator, external, sources)
    check_agreement(agreement, "it")
    same, total = agreement.identical["greedy"]
    assert same < total and same + agreement.ties["greedy"] == total
    assert f"greedy {same} of {total} and {total - same} with equal scores" in str(agreement)


def test_difference_that_is_not_a_tie_is_rejected() -> None:
    check_agreement(Agreement(3, 1e-6, 1e-7, {"greedy": (2, 3)}, {"greedy": 1}), "it")
    with pytest.raises(UserError, match="greedy 2 of 3"):
        check_agreement(Agreement(3, 1e-6, 1e-7, {"greedy": (2, 3)}, {"greedy": 0}), "it")
