"""The interface between the training loop and what is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers import Model
from regard.models.folder import unique_tensors
from regard.models.warmstart import copy_tensors
from regard.registry import Registry
from regard.training.optim import ADVICE
from regard.training.progress import Progress, Sample
from regard.training.state import DataPosition, DataShard, Positioned

if TYPE_CHECKING:
    from regard.training.recipe import Recipe

BatchT = TypeVar("BatchT")
HEAD = "head."
"""Prefix of the names of the tensors of a head."""
Step = int | Tensor
"""Number of a step; a tensor in a captured CUDA graph, because it changes from replay to replay."""


@dataclass(frozen=True)
class LossSum:
    """Loss of a batch as a sum over tokens, images or other units, see `Task.unit`.

    Attributes:
        total: The sum, a scalar tensor of shape () with its autograd graph.
        count: Number of units that it is a sum over.
        logged: Further sums for the metrics log, detached; all batches of a step have the same names.
    """

    total: Tensor
    count: int
    logged: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Validation:
    """Scores on the validation set and a few samples; the model with the highest `scores["score"]` is the best.

    Attributes:
        scores: Scores by name.
        samples: A few samples.
        details: Further groups of scores.json, as plain values.
        files: Further JSON files of the model folder by name, as plain values.
    """

    scores: dict[str, float]
    samples: list[Sample] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)


def sample_indices(number: int, total: int) -> list[int]:
    """Return the indices of at most `number` evenly spaced samples of `total` validation examples."""
    number = min(number, total)
    return [i * total // number for i in range(number)]


class DivergedError(UserError):
    """The validation loss is not finite, so that the model is not worth keeping."""

    def __init__(self, loss: float) -> None:
        super().__init__(f"the validation loss is {loss}, so the model has diverged; {ADVICE}, and start again")


@dataclass(frozen=True)
class InitialModel:
    """A trained model whose weights a run starts from (`init.from`)."""

    folder: Path
    recipe: Any  # completed with the settings of this model
    tensors: dict[str, Tensor]
    extras: Any  # what data preparation and `Task.initialise` need besides, such as its tokenizers


def copy_weights(model: nn.Module, initial: InitialModel, new_head: bool = False) -> str:
    """Copy the weights of a trained model into a new one, except the head if it is new; return a message about it."""
    prefixes = [name for name in unique_tensors(model) if not name.startswith(HEAD)] if new_head else [""]
    copy_tensors(model, initial.tensors, str(initial.folder), prefixes)
    return f"initialised with the weights of {initial.folder}" + (" and a new head" if new_head else "")


class Task(ABC, Generic[BatchT]):
    """How models of one kind are trained: data, model, batches, loss, validation and model folder.

    The class methods prepare a run; an object holds the model and the data and serves the training loop. After
    `regard.register`, a recipe selects a task by its name: `training: {task: NAME}`; the default is `Model.task`.

    Attributes:
        unit: What losses are summed over and speed is measured in, such as "tokens" or "images". The training loop
            and the metrics log count in these units.
        model_type: Base class of the models that it trains.
        width: Width of the model, for the Noam schedule.
    """

    registry: ClassVar[Registry[type[Task[Any]]]] = Registry("task", lambda cls: cls.name)
    name: ClassVar[str]
    model_type: ClassVar[type[Model]] = Model
    recipe_type: ClassVar[type[Recipe]]
    unit: ClassVar[str] = "tokens"
    model: nn.Module
    width: int

    # Preparation

    @classmethod
    def load_initial_model(cls, recipe: Any) -> InitialModel:
        """Load the model folder that `init.from` names.

        Raises:
            UserError: It is not a folder of such a model, or a setting of the recipe contradicts it.
        """
        raise NotImplementedError

    @classmethod
    def complete_recipe(cls, recipe: Any, progress: Progress) -> Any:
        """Return the recipe of a new run, completed with settings that are not given but follow from the data."""
        return recipe

    @classmethod
    def prepare_data(cls, folder: Path, recipe: Any, progress: Progress, initial: InitialModel | None) -> None:
        """Read the data that the recipe names and store it in an empty folder, together with fingerprints.json.

        Raises:
            UserError: A file cannot be read or has the wrong content.
        """
        raise NotImplementedError

    @classmethod
    def check_data(cls, folder: Path, recipe: Any, owner: str) -> None:
        """Check that the files that `prepare_data` read have not changed; they may have moved.

        Raises:
            UserError: A file was changed, added or removed since `owner` was created.
        """
        raise NotImplementedError

    @classmethod
    def open(cls, folder: Path, recipe: Any, device: torch.device, progress: Progress) -> Task[Any]:
        """Open the data that `prepare_data` stored and build a new model.

        Raises:
            UserError: The data has changed, or the model does not fit into memory.
        """
        raise NotImplementedError

    @classmethod
    def next_command(cls, out: Path) -> str:
        """Return the command to run after training."""
        raise NotImplementedError

    def initialise(self, initial: InitialModel) -> str:
        """Copy the weights of a trained model into the new one and return a message about it.

        Raises:
            UserError: A tensor does not fit.
        """
        raise NotImplementedError

    # Training

    @abstractmethod
    def batches(self, position: DataPosition, shard: DataShard) -> Generator[Positioned[BatchT], None, None]:
        """Iterate over training batches from a position on, without end, on the model's device.

        The sequence of batches depends only on the recipe and its seed; the shard selects those of one process.
        """

    @abstractmethod
    def largest_batch(self) -> BatchT:
        """Return a batch that needs as much memory as any training batch, on the model's device."""

    def count(self, batch: Any) -> int:
        """Return the number of units, such as tokens, that the loss of this batch is a sum over."""
        return len(batch)

    def size(self, batch: Any) -> int:
        """Return a number that grows with the memory that the batch needs."""
        return self.count(batch)

    @abstractmethod
    def split(self, batch: BatchT) -> tuple[BatchT, BatchT] | None:
        """Halve a batch; None for a single example. Losses, counts and gradients of the halves add up."""

    @abstractmethod
    def describe(self, batch: BatchT) -> str:
        """Describe a batch for messages, for example "64 sentences of up to 31 tokens"."""

    @abstractmethod
    def advise(self, batch: BatchT) -> str:
        """Return a setting that avoids batches as large as this one, which does not fit into memory."""

    def begin_step(self, step: int) -> None:
        """Prepare for a step, before its losses are computed; by default there is nothing to prepare."""

    def operations_key(self) -> Hashable:
        """Return what determines the operations of the loss in the current step, besides the shapes of the batch.

        An example is whether a phase of the training has begun. A CUDA graph is captured for each value.
        """
        return None

    @abstractmethod
    def loss(self, batch: BatchT, step: Step) -> LossSum:
        """Return the training loss of a batch."""

    @abstractmethod
    def validate(self, model: nn.Module) -> Validation:
        """Score a model on the validation set.

        Raises:
            DivergedError: The loss is not finite.
        """

    @abstractmethod
    def save(self, folder: Path, model: nn.Module) -> None:
        """Write a model folder; the training loop adds scores.json."""
