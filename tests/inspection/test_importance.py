from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.errors import UserError
from regard.inspection.importance import importance_by_ablation, importance_by_gradient

CROSSES = ["decoder.0.cross", "decoder.1.cross"]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


@pytest.fixture(scope="module")
def losses(translator: regard.Translator) -> Callable[[], Tensor]:
    """What the model loses on three sentences, each its own."""
    sources = ["I love apples", "They see dogs and cats", "You buy tea"]
    targets = ["我喜欢苹果", "他们看见狗和猫", "你买茶"]
    encoded = [translator.vocabularies.source.encode(text) for text in sources]
    wanted = [translator.vocabularies.target.encode(text) for text in targets]
    model = translator.model

    def compute() -> Tensor:
        each = []
        for source, target in zip(encoded, wanted, strict=True):
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
            each.append(torch.nn.functional.cross_entropy(logits[0], torch.tensor([*target, 2])))
        return torch.stack(each)

    return compute


def test_importance_by_ablation_is_the_rise_of_the_loss(
    translator: regard.Translator, losses: Callable[[], Tensor]
) -> None:
    with torch.no_grad():
        rises = importance_by_ablation(translator.model, lambda: losses().mean(), CROSSES)
        usual = float(losses().mean())
        with regard.ablate(translator.model, {"decoder.0.cross": [1]}):
            expected = float(losses().mean()) - usual
    assert list(rises) == CROSSES
    assert rises["decoder.0.cross"][1] == pytest.approx(expected)
    assert max(np.concatenate(list(rises.values()))) > 0.01


def test_the_gradient_is_the_slope_of_the_loss_in_the_heads_factor(
    translator: regard.Translator, losses: Callable[[], Tensor]
) -> None:
    from regard.inspection.interventions import scale_heads

    slopes = importance_by_gradient(translator.model, losses, CROSSES)
    step = 1e-2
    for name in CROSSES:
        for head in range(2):
            each = []
            for factor in (1 + step, 1 - step):
                with torch.no_grad(), scale_heads(translator.model, {name: {head: factor}}):
                    each.append(losses())
            numeric = ((each[0] - each[1]) / (2 * step)).abs().mean()
            assert slopes[name][head] == pytest.approx(float(numeric), rel=0.05, abs=2e-4)


def test_gradients_of_the_model_stay_as_they_were(translator: regard.Translator, losses: Callable[[], Tensor]) -> None:
    importance_by_gradient(translator.model, losses)
    assert all(parameter.grad is None for parameter in translator.model.parameters())


def test_an_unknown_name_is_refused(translator: regard.Translator) -> None:
    with pytest.raises(UserError, match="is not an attention module of this model"):
        importance_by_ablation(translator.model, lambda: 0.0, ["decoder.9.cross"])
