"""Training losses by name, as recipes select them: `objective: {kind: NAME, ...}`."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import WrapValidator

from regard.config import Settings
from regard.errors import UserError
from regard.registry import Registry, name_of_settings
from regard.training.task import LossSum, Step

OBJECTIVES: "Registry[type[Objective]]" = Registry("objective", name_of_settings)


class Objective(Settings):
    """Base class of training losses: a subclass declares its name, its settings and `loss`.

    Its name is a field such as `kind: Literal["focal"] = "focal"`. Decorate the subclass with `regard.register`.

    Attributes:
        task: Name of the task whose batches the loss is for.
    """

    registry: ClassVar[Registry[type["Objective"]]] = OBJECTIVES
    task: ClassVar[str]

    kind: str

    def check_model(self, config: Any) -> None:
        """Check that the loss supports a model with this configuration.

        Raises:
            UserError: It does not.
        """

    def build(self, recipe: Any, config: Any) -> Any:
        """Return the object that computes the loss: this one, unless it has state or needs the recipe.

        Args:
            recipe: Recipe of the run.
            config: Configuration of the model.
        """
        return self

    def loss(self, model: Any, batch: Any, step: Step) -> LossSum:
        """Return the loss of a batch as a sum over its tokens, images or pairs."""
        raise NotImplementedError


def select_objective(default: type[Objective]) -> WrapValidator:
    """Return a validator of a field of type `default` that accepts other objectives for the same task by `kind`."""

    def parse(value: Any, parse_default: Callable[[Any], Objective]) -> Objective:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind is None or kind == name_of_settings(default):
            return value if isinstance(value, Objective) else parse_default(value)
        if not isinstance(kind, str) or kind not in OBJECTIVES or OBJECTIVES[kind].task != default.task:
            known = [name for name, objective in OBJECTIVES.items() if objective.task == default.task]
            raise ValueError(f"kind must be {OBJECTIVES.explain(kind, known)}, found {kind!r}")
        try:
            return OBJECTIVES[kind].parse(value, kind)
        except UserError as error:
            raise ValueError(str(error)) from None

    return WrapValidator(parse)
