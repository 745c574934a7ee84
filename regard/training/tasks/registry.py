"""The tasks by the kind of model that a recipe selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import Settings
from regard.errors import UserError
from regard.training.recipe import Recipe
from regard.training.task import Task
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.croco.task import CroCoTask
from regard.training.tasks.nat import NATTask
from regard.training.tasks.translation.task import TranslationTask

TASKS: dict[str, type[Task[Any]]] = {
    "transformer": TranslationTask,
    "nat": NATTask,
    "vit": ClassificationTask,
    "swin": ClassificationTask,
    "croco": CroCoTask,  # type: ignore[type-abstract]  # its `open` returns a subclass
}


def task_of(kind: str) -> type[Task[Any]]:
    """Return the task that trains a kind of model.

    Raises:
        UserError: there is none.
    """
    if kind not in TASKS:
        raise UserError(f"model.kind: {kind!r} is not one of {', '.join(TASKS)}")
    return TASKS[kind]


def check_groups(kind: str, values: Mapping[str, Any], where: str) -> None:
    """Check that a recipe contains no group, and no key of `objective`, that only other kinds of model have.

    Raises:
        UserError: it contains one.
    """
    own = task_of(kind).recipe_type
    for group, keys in values.items():
        names: list[tuple[str, ...]] = [(group,)]
        if group == "objective" and isinstance(keys, Mapping):
            names += [(group, key) for key in keys]
        for name in names:
            others = [other for other, task in TASKS.items() if _has(task.recipe_type, *name)]
            if others and not _has(own, *name):
                raise UserError(f"{where}: {'.'.join(name)} is for model.kind={' or '.join(others)}, not {kind}")


def _has(recipe: type[Recipe], group: str, key: str | None = None) -> bool:
    field = recipe.model_fields.get(group)
    if field is None or key is None:
        return field is not None
    settings = field.annotation
    return isinstance(settings, type) and issubclass(settings, Settings) and key in settings.model_fields
