"""Verification distinguishes identical translations, ties and differences."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.interop.argos import export_argos
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.graphs import GraphCall, GraphFormat, GraphSpec
from regard.interop.huggingface_translation import export_huggingface
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


def export_graphs(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Export to a format whose graphs are the modules themselves, in memory."""
    modules = {}

    def save(spec: GraphSpec, path: Path) -> None:
        modules[path] = copy.deepcopy(spec.module)

    def load(path: Path) -> GraphCall:
        return lambda inputs: modules[path](**inputs)

    return GraphFormat("graph", save, load, "in memory").export_translator(translator, folder, sources)


EXPORTS: dict[str, Callable[[Translator, Path, Sequence[Tokens]], object]] = {
    "argos": lambda *arguments: export_argos(*arguments, None),
    "ctranslate2": lambda *arguments: export_ctranslate2(*arguments, None),
    "graphs": export_graphs,
    "huggingface_translation": export_huggingface,
}


@pytest.mark.parametrize("module", EXPORTS)
def test_export_that_translates_differently_is_rejected(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers" if "huggingface" in module else "ctranslate2")
    translator = random_translator("post", encoder_layers=1, decoder_layers=1)

    def compare_with_changed_weights(changed: Translator, *rest: object) -> Agreement:
        with torch.no_grad():
            changed.model.decoder[0].cross.out.weight[0] *= 1.5
        return compare(changed, *rest)

    EXPORTS[module](translator, tmp_path, sample_sources(translator)[:4])
    monkeypatch.setattr(f"regard.interop.{module}.compare", compare_with_changed_weights)
    with pytest.raises(UserError, match="differs from the regard model"):
        EXPORTS[module](translator, tmp_path, sample_sources(translator)[:4])


@pytest.mark.parametrize("module", EXPORTS)
def test_ensembles_are_not_exported(module: str, tmp_path: Path) -> None:
    member = random_translator("post", encoder_layers=1, decoder_layers=1)
    both = Translator(member.model, member.vocabularies, ("en", "de"), [member.model])
    pytest.importorskip("transformers" if "huggingface" in module else "ctranslate2")
    with pytest.raises(UserError, match="ensemble"):
        EXPORTS[module](both, tmp_path, sample_sources(member)[:1])
    assert list(tmp_path.iterdir()) == []


def test_blank_samples_are_rejected() -> None:
    with pytest.raises(UserError, match="the sample for verification has only blank lines"):
        sample_sources(random_translator("post"), ["", "  "])
