"""Training losses by name, as recipes select them: `objective: {kind: NAME, ...}`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

from pydantic import WrapValidator

from regard.config import Settings
from regard.errors import UserError
from regard.registry import Registry, name_of_settings
from regard.training.task import LossSum, Step

OBJECTIVES: "Registry[type[ObjectiveSettings]]" = Registry("objective", name_of_settings)


class Objective(ABC):
    """Base class of training losses; its settings, `ObjectiveSettings`, build it."""

    def begin_step(self, step: int) -> None:  # noqa: B027
        """Prepare for the losses of a step; see `Task.begin_step`."""

    def operations_key(self) -> Hashable:
        """Return what determines the operations of the loss in the current step; see `Task.operations_key`."""
        return None

    @abstractmethod
    def loss(self, model: Any, batch: Any, step: Step) -> LossSum:
        """Return the loss of a batch as a sum over its tokens, images or pairs."""


class ObjectiveSettings(Settings):
    """Base class of the settings of a training loss; a subclass declares its name and keys.

    Its name is a field such as `kind: Literal["focal"] = "focal"`. Decorate the subclass with `regard.register`.

    Attributes:
        task: Name of the task whose batches the loss is for.
    """

    registry: ClassVar[Registry[type["ObjectiveSettings"]]] = OBJECTIVES
    task: ClassVar[str]

    kind: str

    def check_model(self, config: Any) -> None:
        """Check that the loss supports a model with this configuration.

        Raises:
            UserError: It does not.
        """

    @abstractmethod
    def build(self, recipe: Any, config: Any) -> Objective:
        """Build the loss.

        Args:
            recipe: Recipe of the run.
            config: Configuration of the model.
        """


def select_objective(default: type[ObjectiveSettings]) -> WrapValidator:
    """Return a validator of a field of type `default` that accepts other objectives for the same task.

    The field is given as an instance of settings, or as a mapping whose `kind` selects the type of settings.
    """

    def parse(value: Any, parse_default: Callable[[Any], ObjectiveSettings]) -> ObjectiveSettings:
        if isinstance(value, ObjectiveSettings):
            if value.task != default.task:
                raise ValueError(f"must be for the task {default.task}, found {value.kind} for {value.task}")
            return value
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind is None or kind == name_of_settings(default):
            return parse_default(value)  # rejects what is not a mapping
        if not isinstance(kind, str) or kind not in OBJECTIVES or OBJECTIVES[kind].task != default.task:
            known = [name for name, objective in OBJECTIVES.items() if objective.task == default.task]
            raise ValueError(f"kind must be {OBJECTIVES.explain(kind, known)}, found {kind!r}")
        try:
            return OBJECTIVES[kind].parse(value, kind)
        except UserError as error:
            raise ValueError(str(error)) from None

    return WrapValidator(parse)
