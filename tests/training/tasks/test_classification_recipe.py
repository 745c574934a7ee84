"""Recipes of classifiers, and the choice of the task by the kind of the model."""

from pathlib import Path

import pytest

from regard.errors import UserError
from regard.models.folder import MODELS
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.registry import TASKS, load_recipe, task_of
from regard.training.tasks.translation.recipe import TranslationRecipe

GIVEN = {"data.images": "somewhere", "model.kind": "vit"}


def test_every_kind_of_model_has_a_task() -> None:
    assert {model.task for model in MODELS.values()} - {None} == set(TASKS)
    with pytest.raises(UserError, match=r"'bert' is not one of transformer, nat, vit, swin, croco$"):  # imported only
        load_recipe(None, [], {"model.kind": "bert", "data.builtin": "en-zh"})


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        (None, {"data.images": "somewhere"}),
        (Path("mnist"), {}),
        (Path("demo"), {}),
        (None, {"init.from": "somewhere"}),
    ],
)
def test_unknown_kind_is_reported_first(recipe: Path | None, given: dict[str, str]) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(recipe, ["model.kind=swim"], given)
    assert str(error.value) == "model.kind: 'swim' is not one of transformer, nat, vit, swin, croco"


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_kind_of_the_model_selects_the_recipe_type(kind: str) -> None:
    recipe = load_recipe(None, [], GIVEN | {"model.kind": kind})
    assert isinstance(recipe, ClassificationRecipe)
    assert isinstance(recipe, task_of(recipe).recipe_type)
    config = recipe.model_settings(7, 1)
    assert (config.kind, config.classes, config.channels, config.image) == (kind, 7, 1, (32, 32))


def test_recipe_of_another_task_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("model: {kind: vit}\ndata: {images: somewhere}\n")
    with pytest.raises(UserError, match=r"r\.yaml: a recipe for model.kind=vit cannot be used here"):
        load_recipe(path, expected=TranslationRecipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.wdith=8", "unknown key model.wdith; did you mean model.width?"),
        ("model.classes=3", "model.classes: follows from the images"),
        ("model.image=64", "model.image: follows from data.size"),
        ("model.preset=medium", "model.preset: 'medium' is not one of micro, mini, tiny"),
        ("model.heads=7", "model: width 256 is not divisible by heads 7"),
        ("data.size=30", "model: "),
        ("batch.tokens=9", "batch.tokens is for model.kind=transformer or nat, not vit"),
        ("training.monitor=bleu", "training.monitor"),
        ("augmentation.preset=stark", "augmentation.preset"),
        ("data.builtin=en-zh", "data.builtin is for model.kind=transformer or nat, not vit"),
    ],
)
def test_wrong_setting_is_rejected(change: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(None, [change], GIVEN)
    assert message in str(error.value)


def test_patience_without_monitored_score_is_rejected() -> None:
    with pytest.raises(UserError, match="patience has no effect with monitor=last"):
        load_recipe(None, ["training.monitor=last", "training.patience=3"], GIVEN)
    newest, best = (load_recipe(None, [f"training.monitor={monitor}"], GIVEN) for monitor in ("last", "auto"))
    assert newest.training.keeps_newest and not best.training.keeps_newest


def test_default_image_size_is_that_of_the_preset() -> None:
    small = load_recipe(None, ["model.preset=small"], GIVEN)
    given = load_recipe(None, ["model.preset=small", "data.size=64"], GIVEN)
    assert isinstance(small, ClassificationRecipe) and isinstance(given, ClassificationRecipe)
    assert (small.resize.size, given.resize.size) == (224, 64)
