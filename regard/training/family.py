"""What a run needs to know of a family of models: their recipe, their data, their task; translation is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.task import Task


class Start(Protocol):
    """What a run begins with in place of random weights."""

    @property
    def settings(self) -> Recipe:
        """The recipe with all that follows from it."""

    def fill(self, task: Task[Any]) -> str:
        """Gives the task's new model its weights, and says so in a sentence for whoever watches.

        Raises:
            UserError: they do not fit.
        """


R = TypeVar("R", bound=Recipe)
S = TypeVar("S", bound=Start)
Data = TypeVar("Data")


class Family(Protocol[R, S, Data]):
    """How the recipes of some kinds of model are carried out."""

    @property
    def recipe(self) -> type[R]:
        """What a run of such a model is told."""

    @property
    def unit(self) -> str:
        """What a loss is a sum over and speed is counted in, in the plural, such as "tokens"."""

    def open_start(self, recipe: R) -> S:
        """Reads the folder that the recipe begins with.

        Raises:
            UserError: it is no such model folder, or a setting of the recipe contradicts it.
        """

    def settle(self, recipe: R, device: torch.device) -> R:
        """The recipe with what it leaves to the machine, decided now and for all that follows."""

    def settle_again(self, recipe: R, old: R, out: Path) -> R:
        """The recipe with what was decided when the run in `out` began, whose recipe is `old`.

        Raises:
            UserError: it contradicts that.
        """

    def flatten(self, recipe: R) -> dict[str, Any]:
        """Every setting that must stay as it is while a run goes on, by its full name, as plain values."""

    def gather(self, folder: Path, recipe: R, progress: Progress, start: S | None) -> None:
        """Makes the data of a run into an empty folder, which has fingerprints.json then.

        Raises:
            UserError: a file cannot be read or does not hold what it should.
        """

    def check(self, folder: Path, recipe: R, owner: str) -> None:
        """Refuses files that are not those of which `gather` made what is in the folder; where they lie is all one.

        Raises:
            UserError: one has changed, come or gone; it is named, and so is the `owner` of the folder.
        """

    def open(self, folder: Path, recipe: R, progress: Progress) -> Data:
        """Opens what `gather` made, in this process or long before.

        Raises:
            UserError: it is not what it was.
        """

    def prepare(self, recipe: R, device: torch.device, progress: Progress, data: Data) -> Task[Any]:
        """A new model and all else that a run needs before its first step; says what it is."""

    def suggest(self, out: Path) -> str:
        """The command that comes next, once a run has ended."""


AnyFamily = Family[Any, Any, Any]
