"""Everything that changes while training, as tensors and plain values, so that it can be saved and put back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.training.distributed import Processes
from regard.training.meter import Meter
from regard.training.skip import StepCheck
from regard.training.weight_average import WeightAverage

MODEL, AVERAGE, OPTIMISER = "model.", "average.", "optimiser."
RANDOM_CPU, RANDOM_CUDA, SKIPS = "random.cpu", "random.cuda", "skips"
B = TypeVar("B")


@dataclass(frozen=True)
class Position:
    """A place in the training data: how many batches of which window of which epoch have been used."""

    epoch: int = 0
    batch: int = 0
    window: int = 0


@dataclass(frozen=True)
class Positioned(Generic[B]):
    """A batch, or the plan of one, and the position in the data behind it."""

    batch: B
    after: Position


@dataclass(frozen=True)
class DataShard:
    """Which batches of the common plan are this process's: of every `world` in a row, number `rank`."""

    rank: int = 0
    world: int = 1

    def pick(self, planned: Iterator[Positioned[B]]) -> Iterator[Positioned[B]]:
        """Ours, each with the position behind all `world`, so that every process is at the same place."""
        while group := list(islice(planned, self.world)):
            if len(group) == self.world:
                yield Positioned(group[self.rank].batch, group[-1].after)


class TrainingState:
    """Where a run stands: weights, optimiser, average, random numbers, position in the data, best score, log, mishaps.

    Args:
        model: what is trained.
        optimiser: of its parameters.
        skip_above: steps with a gradient of a larger norm are skipped.
        ema: decay of the moving average; where it is 0, an average is a mean.
        processes: those that train the model together; each has random numbers of its own.
        unit: what the loss is a sum over, for the log.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        skip_above: float | None = None,
        ema: float = 0.0,
        processes: Processes | None = None,
        unit: str = "tokens",
    ) -> None:
        self.model, self.optimiser, self.ema, self.processes = model, optimiser, ema, processes or Processes()
        self.device = next(model.parameters()).device
        self.average: WeightAverage | None = None
        self.meter = Meter(self.device, unit)
        self.skips = StepCheck(self.device, skip_above)
        self.split = 0  # batches that went through in pieces
        self.left_out = 0  # sentences too long for the memory
        self.step = 0
        self.tokens = 0  # seen in training, all steps together
        self.position = Position()
        self.best_step = 0
        self.best_scores: dict[str, float] = {}
        self.stale = 0  # validations since the best one
        self.unjudged = False  # whether the validation of this step failed
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has taken, all its parts together."""
        return time.perf_counter() - self._started

    def update_average(self) -> None:
        """Takes the present weights into the mean, or the moving average; the first time it is just these."""
        if self.average is None:
            self.average = WeightAverage(self.model, self.ema)
        self.average.update(self.model)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; shared ones stand once."""
        named = {MODEL + name: tensor for name, tensor in unique_tensors(self.model).items()}
        if self.average is not None:
            named |= {AVERAGE + name: tensor for name, tensor in unique_tensors(self.average.module).items()}
        for index, values in self.optimiser.state_dict()["state"].items():
            named |= {f"{OPTIMISER}{index}.{key}": tensor.contiguous() for key, tensor in values.items()}
        named[SKIPS] = self.skips.record
        for rank, states in enumerate(self.processes.gather(self._random_states())):
            named |= {_of_rank(name, rank): state for name, state in states.items()}
        return named

    def like(self, name: str) -> Tensor | None:
        """The weight whose shape a saved tensor of that name has, and like which it is divided among processes."""
        kind, _, rest = name.partition(".")
        if f"{kind}." == OPTIMISER:
            parameters: list[Tensor] = [p for group in self.optimiser.param_groups for p in group["params"]]
            return parameters[int(rest.partition(".")[0])]
        return unique_tensors(self.model).get(rest)

    def facts(self) -> dict[str, Any]:
        """All plain values by name."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "position": asdict(self.position),
            "averaged": 0 if self.average is None else self.average.updates,
            "best_step": self.best_step,
            "best_scores": self.best_scores,
            "stale": self.stale,
            "unjudged": self.unjudged,
            "meter": self.meter.sums(),
            "skips_told": self.skips.told,
            "split": self.split,
            "left_out": self.left_out,
            "seconds": self.seconds,
            "processes": self.processes.world,
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Puts everything back as `tensors` and `facts` described it.

        Raises:
            UserError: the tensors belong to another model.
        """
        _load_weights(self.model, model_tensors(tensors))
        if facts["averaged"]:
            self.average = WeightAverage(self.model, self.ema)
            _load_weights(self.average.module, _part(tensors, AVERAGE))
            self.average.updates = facts["averaged"]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(tensors, OPTIMISER).items():
            index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = tensor.clone()
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.step, self.tokens, self.position = facts["step"], facts["tokens"], Position(**facts["position"])
        self.best_step, self.best_scores = facts["best_step"], facts["best_scores"]
        self.stale, self.unjudged = facts["stale"], facts.get("unjudged", False)
        self.meter.restore(**facts["meter"])
        self.skips.record, self.skips.told = tensors[SKIPS].to(self.device), facts["skips_told"]
        self.split, self.left_out = facts["split"], facts["left_out"]
        self._started = time.perf_counter() - facts["seconds"]
        if facts.get("processes", 1) == self.processes.world:
            self._restore_random_states(tensors)

    def draw_apart(self, seed: int) -> None:
        """Gives each process random numbers of its own, which depend on the seed and the step alone."""
        if self.processes.rank or self.step:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.step, self.processes.rank]).generate_state(1)[0]))

    def _random_states(self) -> dict[str, Tensor]:
        states = {RANDOM_CPU: torch.get_rng_state()}
        if self.device.type == "cuda":
            states[RANDOM_CUDA] = torch.cuda.get_rng_state(self.device)
        return states

    def _restore_random_states(self, tensors: dict[str, Tensor]) -> None:
        cpu, cuda = (_of_rank(name, self.processes.rank) for name in (RANDOM_CPU, RANDOM_CUDA))
        torch.set_rng_state(tensors[cpu])
        if self.device.type == "cuda" and cuda in tensors:
            torch.cuda.set_rng_state(tensors[cuda], self.device)


def _of_rank(name: str, rank: int) -> str:
    """The name of another process's random state; the main one's is plain."""
    return f"{name}.{rank}" if rank else name


def model_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights among what `TrainingState.tensors` gave."""
    return _part(tensors, MODEL)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = unique_tensors(model)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape:
            raise UserError(f"tensor {name} of the checkpoint does not fit this version's model; begin a new run")
    model.load_state_dict(tensors, strict=False)  # only the further names of shared tensors are missing
