"""What counts as saying the same, and what is told apart from it."""

from collections.abc import Sequence

import pytest
import torch

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.errors import UserError
from regard.interop.verification import SEARCHES, Agreement, Tokens, check, compare, has_ended, sample_sources
from regard.pipelines.translator import Translator
from tests.interop.random_models import random_translator


class Swapping:
    """Our own model, which says one token wherever it would say another."""

    longest: int | None = None

    def __init__(self, ours: Translator, token: int, other: int) -> None:
        self.ours, self.swapped = ours, {token: other, other: token}

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        beams = self.ours.generator.generate([DecodingRequest(source) for source in sources], settings)
        return [[self.swapped.get(token, token) for token in beam[0].tokens] for beam in beams]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        return [one.token_log_probs for one in self.ours.generator.score(sources, targets, SEARCHES["greedy"])]


def test_a_translation_of_equal_worth_is_a_tie_and_not_the_same() -> None:
    ours = random_translator("post")
    sources, greedy = sample_sources(ours), SEARCHES["greedy"]
    beams = zip(ours.generator.generate([DecodingRequest(s) for s in sources], greedy), sources, strict=True)
    said = [token for beam, source in beams if has_ended(beam, source, greedy) for token in beam[0].tokens]
    token, other = max(set(said), key=said.count), next(i for i in range(3, 290) if i not in said)
    swapping = Swapping(ours, token, other)
    with pytest.raises(UserError, match="does not say what our model says"):
        check(compare(ours, swapping, sources), "it")
    with torch.no_grad():  # now the two tokens are one
        ours.model.target_embedding.weight[other] = ours.model.target_embedding.weight[token]
    agreement = compare(ours, swapping, sources)
    check(agreement, "it")
    same, ended = agreement.same["greedy"]
    assert same < ended and same + agreement.ties["greedy"] == ended
    assert f"greedy {same} of {ended} and {ended - same} worth as much" in str(agreement)


def test_what_is_neither_the_same_nor_a_tie_is_refused() -> None:
    check(Agreement(3, 1e-6, 1e-7, {"greedy": (2, 3)}, {"greedy": 1}), "it")
    with pytest.raises(UserError, match="greedy 2 of 3"):
        check(Agreement(3, 1e-6, 1e-7, {"greedy": (2, 3)}, {"greedy": 0}), "it")
