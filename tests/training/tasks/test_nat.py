"""Runs and recipes of NAT models."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from tests.conftest import build_task, small_recipe
from tests.training.objectives.test_nat import LONG_TARGETS, SHORT_TARGETS
from tests.training.test_run_folder import crashing_at, log, weights

DEEP = {
    "model__layer_predictions": True,
    "objective__deep_supervision": True,
    "objective__mixed_training": 0.3,
}


@pytest.mark.parametrize(
    ("length", "changes"),
    [("classifier", {}), ("ctc", DEEP), ("end", {}), ("dag", {"objective__ngram_overlap": 2})],
    ids=str,
)
def test_resumed_run_has_bit_identical_weights(
    make_recipe: Callable[..., Recipe], tmp_path: Path, length: str, changes: dict[str, object]
) -> None:
    recipe = make_recipe(
        model__kind="nat",
        model__length=length,
        model__dropout=0.2,
        training__steps=6,
        training__validate_every=4,
        training__log_every=1,
        training__checkpoint_every=2,
        training__valid_sentences=4,
        **changes,
    )
    run_recipe(recipe, tmp_path / "uninterrupted")
    with crashing_at(5):
        run_recipe(recipe, tmp_path / "resumed")
    run_recipe(recipe, tmp_path / "resumed")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "uninterrupted")
    assert log(tmp_path / "resumed") == log(tmp_path / "uninterrupted")


def test_targets_that_do_not_fit_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def recipe(pairs: list[str]) -> Recipe:
        (tmp_path / "pairs.tsv").write_text("".join(f"{pair}\n" for pair in pairs))
        no_upsampling = {"model__upsample_ratio": 1, "model__upsample_extra": 0}
        return small_recipe(tmp_path / "pairs.tsv", model__kind="nat", model__length="end", **no_upsampling)

    task = build_task(recipe(SHORT_TARGETS * 2 + LONG_TARGETS), torch.device("cpu"), Progress(1))
    number = int((task.train_tokens.target.lengths - 1 > task.train_tokens.source.lengths).sum())
    assert number > 40
    message = f"skipped: {number} pairs with a target longer than its upsampled source; raise model.upsample_ratio"
    assert message in capsys.readouterr().out
    with pytest.raises(UserError, match="no training pair is left: every target is longer than its upsampled source"):
        build_task(recipe(LONG_TARGETS), torch.device("cpu"), Progress(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__kind": "natt"}, "model.kind: 'natt' is not one of transformer, nat"),
        ({"model__kind": "nat", "model__length": "guess"}, "model: length: input should be"),
        ({"model__length": "ctc"}, "model.length: is for model.kind=nat, not transformer"),
        ({"objective__reveal": "none"}, "objective.reveal is for model.kind=nat, not transformer"),
        (
            {"model__kind": "nat", "model__length": "ctc", "objective__reveal": "uniform"},
            "objective.reveal: uniform is for model.length=classifier, not ctc",
        ),
        ({"search__iterations": 4}, "search: iterations is a setting of non-autoregressive models"),
        (
            {"model__kind": "nat", "search__temperature": 1.0},
            "search: temperature is a setting of autoregressive models",
        ),
        ({"model__kind": "nat", "search__beam": 5}, "search.beam 5 needs a model with length: ctc"),
        ({"model__kind": "nat", "model__upsample_ratio": 3}, "model.upsample_ratio is for model.length=end"),
        (
            {"model__kind": "nat", "model__length": "ctc", "model__max_length_offset": 9},
            "model.max_length_offset is for model.length=classifier, not ctc",
        ),
        (
            {"model__kind": "nat", "objective__glancing_ratio": [0.4, 0.1]},
            "objective.glancing_ratio: is for objective.reveal=glancing, not uniform; omit it",
        ),
        (
            {"model__kind": "nat", "model__length": "end", "objective__length_weight": 1.0},
            "objective.length_weight: is for model.length=classifier, not end; omit it",
        ),
        (
            {"model__kind": "nat", "model__length": "end", "search__iterations": 3},
            "iterations 3 needs a model with length",
        ),
        (
            {"model__kind": "nat", "model__length": "dag", "objective__deep_supervision": True},
            "objective.deep_supervision: is for model.length=classifier, end or ctc, not dag; omit it",
        ),
        (
            {"model__kind": "nat", "model__layer_predictions": True},
            "model.layer_predictions: needs objective.deep_supervision=true, which trains the predictions",
        ),
        (
            {"model__kind": "nat", "objective__mixed_training": 0.3},
            "objective.mixed_training: needs model.layer_predictions=true, or omit it",
        ),
        (
            {"model__kind": "nat", "model__length": "ctc", "objective__ngram_overlap": 2},
            "objective.ngram_overlap: is for model.length=dag, not ctc; omit it",
        ),
        ({"model__kind": "nat", "model__upsample_mode": "mask"}, "model.upsample_mode is for model.length=end"),
        ({"model__kind": "nat", "objective__r_drop": 1.0}, "objective.r_drop is for model.kind=transformer, not nat"),
        ({"model__kind": "nat", "objective__glancing_ratio": [0.5, 1.5]}, "objective.glancing_ratio"),
        (
            {"model__kind": "nat", "search__lengths": 3, "search__rerank": "nowhere"},
            "search.rerank: nowhere: no such model folder",
        ),
    ],
)
def test_contradictory_recipe_is_rejected(
    make_recipe: Callable[..., Recipe], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        make_recipe(**changes)
