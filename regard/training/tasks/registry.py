"""The tasks by the kind of model that a recipe selects, and how recipes are loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import Settings
from regard.errors import UserError
from regard.training.recipe import DEFAULT_KIND, Recipe, kind_of, read_recipe_values
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


def load_recipe(
    path: Path | None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    expected: type[Recipe] = Recipe,
) -> Any:
    """Read a recipe from a file or by the name of a built-in one, and change some of its values.

    Args:
        path: the file or name; None for an empty recipe.
        overrides: changes of the form `group.key=value` with a YAML value, applied last.
        given: values by `group.key`.
        expected: the type of recipe that the caller needs and gets.

    Raises:
        UserError: the file cannot be read, a key is unknown, a value is wrong, or the recipe is for another task.
    """
    where = str(path) if path else "settings"
    values = read_recipe_values(path, overrides, given or {})
    model = values.get("model")
    kind = kind_of(model) if isinstance(model, dict) else DEFAULT_KIND
    check_groups(kind, values, where)
    recipe = task_of(kind).recipe_type.parse(values, where)
    if not isinstance(recipe, expected):
        raise UserError(f"{where}: a recipe for model.kind={kind} cannot be used here")
    if recipe.init.folder is None:  # otherwise the folder determines the keys that are not given
        recipe.check_model()
    return recipe


def check_groups(kind: str, values: Mapping[str, Any], where: str) -> None:
    """Check that a recipe contains no group and no key that only other kinds of model have.

    Raises:
        UserError: it contains one.
    """
    own = task_of(kind).recipe_type
    for group, keys in values.items():
        names: list[tuple[str, ...]] = [(group,)]
        if isinstance(keys, Mapping):
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
