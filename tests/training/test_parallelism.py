from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.training.distributed import Processes
from regard.training.parallelism import DataParallel
from regard.training.recipe import TrainingSettings
from regard.training.task import LossSum, Step
from tests.training.test_loop import Line, points
from tests.training.test_memory import LimitedLine


class Three(Processes):
    """Rank 0 of three processes; the other two have ten tokens in total."""

    def sum(self, number: int) -> int:
        return number + 10


class Recording(DataParallel[Any]):
    """Records (size, divisor, is last) of every backward pass instead of communicating."""

    def __init__(self, task: Line) -> None:
        self.passed: list[tuple[int, float, bool]] = []
        super().__init__(task, TrainingSettings(), Three(0, 3))

    def _wrap(self) -> None:
        pass

    def add_gradients(self, batch: Any, step: Step, last: bool = True) -> LossSum:
        loss = self.task.loss(batch, step)
        loss.total.backward()  # type: ignore[no-untyped-call]
        self.passed.append((len(batch[0]), float(self.divisor), last))
        return loss


def gather(task: Line, *sizes: int) -> tuple[Any, list[tuple[int, float, bool]]]:
    """Gather batches of these sizes; also return what was recorded."""
    strategy = Recording(task)
    batches = points(*sizes)
    return strategy.accumulate(batches, strategy.count_units(batches), 1), strategy.passed


def test_gradients_are_averaged_over_the_tokens_of_all_processes() -> None:
    gathered, passed = gather(Line([]), 5, 3)
    assert gathered.units == 18
    assert [loss.count for loss in gathered.losses] == [5, 3]
    assert passed == [(5, 6, False), (3, 6, True)]


def test_out_of_memory_is_an_error_with_advice() -> None:
    with pytest.raises(UserError, match=r"out of memory \(5 points\); try points=2 and a higher optim.accumulate"):
        gather(LimitedLine([], limit=4), 3, 5)


def test_other_errors_are_not_reported_as_out_of_memory() -> None:
    task = Line([])
    task.model = torch.nn.Linear(7, 1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gather(task, 2)
