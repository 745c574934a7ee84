"""The families of models that can be trained, by the kind that a recipe names."""

from __future__ import annotations

from regard.config import Settings
from regard.errors import UserError
from regard.training.family import AnyFamily
from regard.training.recipe import Recipe
from regard.training.tasks.classification.family import Classification
from regard.training.tasks.croco.family import TwoViews
from regard.training.tasks.nat.task import NATTask
from regard.training.tasks.translation.family import Translation
from regard.training.tasks.translation.recipe import NATRecipe, TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask

FAMILIES: dict[str, AnyFamily] = {
    "transformer": Translation(TranslationRecipe, TranslationTask),
    "nat": Translation(NATRecipe, NATTask),
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


def kinds_with(group: str, key: str | None = None) -> list[str]:
    """The kinds of model whose recipes have a group of settings of this name, and this key in it."""
    return [kind for kind, family in FAMILIES.items() if has_key(family.recipe, group, key)]


def has_key(recipe: type[Recipe], group: str, key: str | None = None) -> bool:
    """Whether recipes of this type have a group of settings, and a key in it if one is given."""
    field = recipe.model_fields.get(group)
    if field is None or key is None:
        return field is not None
    settings = field.annotation
    return isinstance(settings, type) and issubclass(settings, Settings) and key in settings.model_fields
