"""The tasks by the kind of model that a recipe selects, and how recipes are loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import Settings
from regard.errors import UserError
from regard.models.folder import MODELS
from regard.registry import EXTENSIONS, check_extensions, register
from regard.training.recipe import DEFAULT_KIND, Recipe, kind_of, read_recipe_values
from regard.training.task import Task
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.croco import CroCoTask
from regard.training.tasks.nat import NATTask
from regard.training.tasks.translation.task import TranslationTask

for task_type in (TranslationTask, NATTask, ClassificationTask, CroCoTask):
    register(task_type)
TASKS = Task.registry


def task_of(recipe: Recipe) -> type[Task[Any]]:
    """Return the task that a recipe is for."""
    return find_task(recipe.kind, recipe.training.task)


def find_task(kind: str, name: str | None = None) -> type[Task[Any]]:
    """Return the task with this name, by default the one that usually trains this kind of model."""
    if kind not in MODELS or not (name or MODELS[kind].task):
        trained = [known for known, model in MODELS.items() if model.task]
        raise UserError(f"model.kind: {kind!r} is not {MODELS.explain(kind, trained)}")
    name = name or str(MODELS[kind].task)
    if name not in TASKS:
        raise UserError(f"training.task: {name!r} is not {TASKS.explain(name)}")
    if not issubclass(MODELS[kind], TASKS[name].model_type):
        kinds = [known for known, model in MODELS.items() if issubclass(model, TASKS[name].model_type)]
        raise UserError(f"training.task: {name} is for model.kind={' or '.join(kinds)}, not {kind}")
    return TASKS[name]


def load_recipe(
    path: Path | None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    expected: type[Recipe] = Recipe,
) -> Any:
    """Read a recipe from a file or by the name of a built-in one, and change some of its values.

    Args:
        path: The file or name; None for an empty recipe.
        overrides: Changes of the form `group.key=value` with a YAML value, applied last.
        given: Values by `group.key`.
        expected: The type of recipe that the caller needs and gets.
    """
    where = str(path) if path else "settings"
    values = read_recipe_values(path, overrides, given or {})
    check_extensions(values.pop(EXTENSIONS, None), where)
    model, training = values.get("model"), values.get("training")
    kind = kind_of(model) if isinstance(model, dict) else DEFAULT_KIND
    name = training.get("task") if isinstance(training, dict) else None
    recipe_type = find_task(kind, None if name is None else str(name)).recipe_type
    check_groups(recipe_type, kind, values, where)
    recipe = recipe_type.parse(values, where)
    if not isinstance(recipe, expected):
        raise UserError(f"{where}: a recipe for model.kind={kind} cannot be used here")
    if recipe.init.folder is None:  # otherwise the folder determines the keys that are not given
        recipe.check_model()
    return recipe


def check_groups(own: type[Recipe], kind: str, values: Mapping[str, Any], where: str) -> None:
    """Check that a recipe contains no group and no key that only other kinds of model have.

    Names that no kind has are not reported here; `Recipe.parse` rejects them.
    """
    # A copy of MODELS, because TASKS[...] may import an extension, which also registers models.
    recipes = {known: TASKS[model.task].recipe_type for known, model in list(MODELS.items()) if model.task}
    for group, keys in values.items():
        names: list[tuple[str, str | None]] = [(group, None)]
        is_registered_objective = group == "objective" and isinstance(keys, Mapping) and "kind" in keys
        # A registered objective has keys of its own; for `search`, the error of its settings names the model.
        if isinstance(keys, Mapping) and group != "search" and not is_registered_objective:
            names += [(group, key) for key in keys]
        for group_name, key in names:
            if _has(own, group_name, key):
                continue
            if others := [other for other, recipe in recipes.items() if _has(recipe, group_name, key)]:
                name = group_name if key is None else f"{group_name}.{key}"
                raise UserError(f"{where}: {name} is for model.kind={' or '.join(others)}, not {kind}")


def _has(recipe: type[Recipe], group: str, key: str | None = None) -> bool:
    field = recipe.model_fields.get(group)
    if field is None or key is None:
        return field is not None
    settings = field.annotation
    return isinstance(settings, type) and issubclass(settings, Settings) and key in settings.model_fields
