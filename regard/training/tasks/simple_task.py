"""`SimpleTask`: the base of tasks that make each batch from its number, which leaves little to write for a new task."""

from abc import abstractmethod
from collections.abc import Generator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.config import Settings
from regard.errors import UserError
from regard.layers import Model
from regard.models.folder import find_model_folder, load_model, save_model, unique_tensors
from regard.training.memory import build_model, describe_size
from regard.training.prepared_data import check_files, fingerprint_files, read_fingerprints, write_fingerprints
from regard.training.progress import Progress, counted
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings
from regard.training.state import DataPosition, DataShard, Positioned
from regard.training.task import InitialModel, Task, copy_weights


class TensorBatch:
    """Base of dataclasses whose fields are tensors with one row per example."""

    def __len__(self) -> int:
        return len(self._tensors()[0])

    def part(self, rows: slice) -> Self:
        """Return a batch of some of the examples."""
        return type(self)(*(tensor[rows] for tensor in self._tensors()))

    def halves(self) -> tuple[Self, Self] | None:
        """Return both halves of a batch; None for a single example."""
        half = len(self) // 2
        return (self.part(slice(0, half)), self.part(slice(half, None))) if half else None

    def _tensors(self) -> list[Tensor]:
        return list(vars(self).values())


P = TypeVar("P", bound=TensorBatch)


class SizeSettings(Settings):
    """Size of batches."""

    size: int = Field(64, gt=0, description="examples per batch")


class SimpleRecipe(Recipe):
    """Settings of a `SimpleTask`; a subclass adds groups of its own, such as `data`."""

    init: InitSettings = InitSettings()
    model: dict[str, Any] = Field({}, description="kind and any key of the model")
    optim: OptimSettings = OptimSettings()
    batch: SizeSettings = SizeSettings()
    training: TrainingSettings = TrainingSettings()

    def model_settings(self, **derived: Any) -> Any:
        """Return the configuration of the model; `derived` are keys that follow from the data, such as a vocabulary."""
        return self._build_config(**derived)


class SimpleTask(Task[P]):
    """Base class of tasks whose batch n is `make(n)`, a dataclass of tensors; a subclass defines what is abstract.

    Args:
        model: The model to train.
        recipe: Settings of the run.
        device: Device of the model and its batches.
    """

    recipe_type: ClassVar[type[Recipe]] = SimpleRecipe
    unit = "examples"

    def __init__(self, model: Any, recipe: Any, device: torch.device) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        if recipe.training.compile:
            model.compile()
        self.width: int = getattr(model.config, "width", 1)

    @abstractmethod
    def make(self, number: int) -> P:
        """Return a training batch on the device; the same for the same number and recipe, so that runs can resume."""

    # Preparation

    @classmethod
    def files(cls, recipe: Any) -> Mapping[str, Path]:
        """Return the data files by name; a run is resumed only if they are unchanged."""
        return {}

    @classmethod
    def prepare_data(cls, folder: Path, recipe: Any, progress: Progress, initial: InitialModel | None) -> None:
        """Store only the fingerprints of the files; batches are made during training."""
        write_fingerprints(folder, {"files": fingerprint_files(cls.files(recipe)), "settings": {}, "skipped": {}})

    @classmethod
    def check_data(cls, folder: Path, recipe: Any, owner: str) -> None:
        check_files(cls.files(recipe), read_fingerprints(folder)["files"], owner)

    @classmethod
    def open(cls, folder: Path, recipe: Any, device: torch.device, progress: Progress) -> "SimpleTask[Any]":
        model = build_model(recipe.model_settings(), device, recipe.training.sharding)
        progress.print(describe_size(model, device))
        return cls(model, recipe, device)

    @classmethod
    def load_initial_model(cls, recipe: Any) -> InitialModel:
        folder, model = load_model_of(cls, recipe)
        return InitialModel(folder, recipe, unique_tensors(model), None)

    def initialise(self, initial: InitialModel) -> str:
        return copy_weights(self.model, initial)

    @classmethod
    def next_command(cls, out: Path) -> str:
        return f"regard plot {out}"

    # Training

    def batches(self, position: DataPosition, shard: DataShard) -> Generator[Positioned[P], None, None]:
        numbers = (Positioned(number, DataPosition(batch=number + 1)) for number in count(position.batch))
        return (Positioned(self.make(planned.item), planned.after) for planned in shard.select(numbers))

    def largest_batch(self) -> P:
        """Return the first batch; to be overridden if others may need more memory."""
        return self.make(0)

    def split(self, batch: P) -> tuple[P, P] | None:
        return batch.halves()

    def describe(self, batch: P) -> str:
        return counted(len(batch), self.unit.removesuffix("s"))

    def advise(self, batch: P) -> str:
        return f"batch.size={len(batch) // 2}" if len(batch) > 1 else "a smaller model"

    def save(self, folder: Path, model: nn.Module) -> None:
        assert isinstance(model, Model)
        save_model(folder, model, {})


def load_model_of(task: type[Task[Any]], recipe: Any) -> tuple[Path, Any]:
    """Return the folder of `init.from` and its model, which the task can train."""
    folder = find_model_folder(recipe.init.folder)
    model, _ = load_model(folder)
    if not isinstance(model, task.model_type):
        raise UserError(f"init.from: {folder} contains a model of kind {model.config.kind}, not {recipe.kind}")
    return folder, model
