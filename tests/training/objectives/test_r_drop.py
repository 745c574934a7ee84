from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard import Translator
from regard.training.objectives.config import ObjectiveSettings
from regard.training.objectives.objective import TranslationObjective
from regard.training.objectives.r_drop import divergence
from regard.training.objectives.teacher_forcing import read
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.translation.task import TranslationTask, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
PLAIN, R_DROP = TranslationObjective(ObjectiveSettings(), 0.1), TranslationObjective(ObjectiveSettings(r_drop=2.0), 0.1)


def test_the_divergence_is_the_mean_of_both_directions() -> None:
    one, other = torch.randn(2, 7, 11)
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    expected = sum(F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))) / 2
    assert divergence(one, other).item() == pytest.approx(float(expected), rel=1e-5)
    assert divergence(one, one).item() == 0


def test_without_dropout_there_is_no_divergence_and_the_loss_is_the_plain_one(
    build: Callable[..., TranslationTask],
) -> None:
    task = build(model__dropout=0.0)
    batch = collate(task.train, ROWS, False, 0)
    plain, twice = PLAIN.loss(task.model, batch, 1), R_DROP.loss(task.model, batch, 1)
    assert twice.parts["divergence"].item() == 0
    assert twice.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    assert twice.count == plain.count == len(batch.labels)


def test_with_dropout_the_readings_differ_and_their_divergence_is_added(
    build: Callable[..., TranslationTask],
) -> None:
    task = build(model__dropout=0.3)
    batch = collate(task.train, ROWS, False, 0)
    task.model.train()
    loss = R_DROP.loss(task.model, batch, 1)
    assert loss.parts["divergence"].item() > 1e-2
    expected = loss.parts["cross_entropy"] + 2 * loss.parts["divergence"]
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)


def test_it_brings_the_readings_together(
    make_recipe: Callable[..., Recipe], build: Callable[..., TranslationTask], tmp_path: Path
) -> None:
    task = build()
    batch = collate(task.train, np.arange(100), False, 0)

    def disagreement(name: str, alpha: float) -> float:
        recipe = make_recipe(
            training__steps=100,
            training__validate_every=100,
            training__valid_sentences=0,
            model__dropout=0.2,
            objective__r_drop=alpha,
        )
        run_recipe(recipe, tmp_path / name)
        model = Translator.load(tmp_path / name / "last").model.train()
        torch.manual_seed(0)
        with torch.no_grad():
            return divergence(read(model, batch), read(model, batch)).item() / len(batch.labels)

    assert disagreement("r-drop", 5.0) < disagreement("plain", 0.0) / 2
