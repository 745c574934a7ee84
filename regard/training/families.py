"""The families of models that can be trained, by the kind that a recipe names."""

from __future__ import annotations

from regard.errors import UserError
from regard.training.family import AnyFamily
from regard.training.tasks.classification.family import Classification
from regard.training.tasks.croco.family import TwoViews
from regard.training.tasks.nat.task import ParallelTranslationTask
from regard.training.tasks.translation.family import Translation
from regard.training.tasks.translation.recipe import ParallelRecipe, TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask

FAMILIES: dict[str, AnyFamily] = {
    "transformer": Translation(TranslationRecipe, TranslationTask),
    "nat": Translation(ParallelRecipe, ParallelTranslationTask),
    "vit": Classification(),
    "swin": Classification(),
    "croco": TwoViews(),
}


def family_of(kind: str) -> AnyFamily:
    """The family of a kind of model.

    Raises:
        UserError: no such kind can be trained.
    """
    if kind not in FAMILIES:
        raise UserError(f"model.kind: {kind!r} is not one of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def kinds_with_group(group: str) -> list[str]:
    """The kinds of model whose recipes have a group of settings of this name."""
    return [kind for kind, family in FAMILIES.items() if group in family.recipe.model_fields]
