from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.errors import UserError
from regard.inspection.importance import importance_by_ablation, importance_by_gradient
from regard.inspection.interventions import scale_heads

CROSS = ["decoder.0.cross", "decoder.1.cross"]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


@pytest.fixture(scope="module")
def losses(translator: regard.Translator) -> Callable[[], Tensor]:
    """Computes the cross-entropy of three sentences separately."""
    sources = ["I love apples", "They see dogs and cats", "You buy tea"]
    targets = ["我喜欢苹果", "他们看见狗和猫", "你买茶"]
    source_tokens = [translator.vocabularies.source.encode(text) for text in sources]
    target_tokens = [translator.vocabularies.target.encode(text) for text in targets]
    model = translator.model

    def compute() -> Tensor:
        values = []
        for source, target in zip(source_tokens, target_tokens, strict=True):
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
            values.append(torch.nn.functional.cross_entropy(logits[0], torch.tensor([*target, 2])))
        return torch.stack(values)

    return compute


def test_importance_by_ablation_is_the_increase_of_the_loss(
    translator: regard.Translator, losses: Callable[[], Tensor]
) -> None:
    with torch.no_grad():
        increases = importance_by_ablation(translator.model, lambda: losses().mean(), CROSS)
        baseline = float(losses().mean())
        with regard.ablate(translator.model, {"decoder.0.cross": [1]}):
            expected = float(losses().mean()) - baseline
    assert list(increases) == CROSS
    assert increases["decoder.0.cross"][1] == pytest.approx(expected)
    assert max(np.concatenate(list(increases.values()))) > 0.01


def test_importance_by_gradient_matches_finite_differences(
    translator: regard.Translator, losses: Callable[[], Tensor]
) -> None:
    importance = importance_by_gradient(translator.model, losses, CROSS)
    step = 1e-2
    for name in CROSS:
        for head in range(2):
            values = []
            for factor in (1 + step, 1 - step):
                with torch.no_grad(), scale_heads(translator.model, {name: {head: factor}}):
                    values.append(losses())
            numeric = ((values[0] - values[1]) / (2 * step)).abs().mean()
            assert importance[name][head] == pytest.approx(float(numeric), rel=0.05, abs=2e-4)


def test_gradients_of_the_model_are_not_changed(translator: regard.Translator, losses: Callable[[], Tensor]) -> None:
    importance_by_gradient(translator.model, losses)
    assert all(parameter.grad is None for parameter in translator.model.parameters())


def test_unknown_name_is_rejected(translator: regard.Translator) -> None:
    with pytest.raises(UserError, match="is not an attention module of this model"):
        importance_by_ablation(translator.model, lambda: 0.0, ["decoder.9.cross"])
