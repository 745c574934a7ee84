"""What the training loop needs to know of the thing that is trained, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from regard.errors import UserError
from regard.training.state import DataShard, Position, Positioned

B = TypeVar("B")
Step = int | Tensor
"""The number of a step; a tensor while it is recorded, since it is another one whenever the recording is replayed."""


@dataclass(frozen=True)
class LossSum:
    """The summed loss of a batch, with its graph; and how many tokens (or other units) it is a sum over.

    `parts`, without graphs, are for the log alone: what the loss is made of and what else is worth knowing, each a sum
    like it; those of one step have the same names.
    """

    total: Tensor
    count: int
    parts: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """What a model makes of something, beside what it should have made of it."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Validation:
    """Scores on the validation set; "score", higher is better, decides which model is the best. And a few samples."""

    scores: dict[str, float]
    samples: list[Sample] = field(default_factory=list)


class DivergedError(UserError):
    """A model that has learned nothing worth keeping."""


class Task(Protocol[B]):
    """Something that can be trained."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    @property
    def width(self) -> int:
        """Of the model, for schedules that follow it."""

    def batches(self, position: Position, share: DataShard) -> Iterator[Positioned[B]]:
        """Our share of the training batches from a position on, without end, already on the model's device.

        Which batches there are, and their order, depends on the recipe and its seed alone; the share only picks.
        """

    def largest(self) -> B:
        """A batch that needs as much memory as any that training will meet, on the model's device."""

    def count(self, batch: B) -> int:
        """How many tokens the loss of this batch is a sum over."""

    def size(self, batch: B) -> int:
        """What the memory that a batch needs grows with."""

    def split(self, batch: B) -> tuple[B, B] | None:
        """Two halves, whose losses and counts add up to those of the batch; None where it cannot be halved."""

    def describe(self, batch: B) -> str:
        """A batch in words, such as "64 sentences of up to 31 tokens"."""

    def advise(self, batch: B) -> str:
        """What to set so that no batch is as large as this one, which does not fit into memory."""

    def loss(self, batch: B, step: Step) -> LossSum:
        """The loss of a batch."""

    def validate(self, model: nn.Module) -> Validation:
        """How good the model is, on the validation set."""

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        """Writes a model folder."""
