"""Everything that changes during training, as tensors and plain values, so that it can be saved and restored."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.training.distributed import Processes
from regard.training.optim import StepCheck

# Prefixes and names of tensors in a checkpoint.
MODEL, AVERAGE, OPTIMIZER = "model.", "average.", "optimizer."
RANDOM_CPU, RANDOM_CUDA, STEP_CHECK = "random.cpu", "random.cuda", "step_check"
PLAIN_VALUES = (
    "step", "units", "best_step", "best_scores", "stale", "validation_pending", "split_batches", "dropped_examples"
)  # fmt: skip
"""Attributes of `TrainingState` that are saved as they are."""
T = TypeVar("T")


@dataclass(frozen=True)
class DataPosition:
    """A position in the training data: the number of batches used of a window of an epoch.

    A task whose epochs are not divided into windows leaves `window` at 0.
    """

    epoch: int = 0
    batch: int = 0
    window: int = 0


@dataclass(frozen=True)
class Positioned(Generic[T]):
    """A batch, or what it is made from, such as the numbers of its rows, and the position in the data after it."""

    item: T
    after: DataPosition


@dataclass(frozen=True)
class DataShard:
    """The batches of one process: of every `world` consecutive batches, the one with index `rank`."""

    rank: int = 0
    world: int = 1

    def select(self, batches: Iterator[Positioned[T]]) -> Iterator[Positioned[T]]:
        """Select the batches of this process; all processes have the same position after each batch."""
        while group := list(islice(batches, self.world)):
            if len(group) == self.world:
                yield Positioned(group[self.rank].item, group[-1].after)


class LossMeter:
    """Running mean of the loss and other logged sums, and speed, since the last reading; sums stay on the device."""

    def __init__(self, device: torch.device, unit: str = "tokens") -> None:
        self.unit = unit
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.count = torch.zeros((), device=device, dtype=torch.float64)
        self.logged: dict[str, Tensor] = {}
        self.restart()

    def restart(self) -> None:
        self.total.zero_()
        self.count.zero_()
        self.logged.clear()
        self.timed_count = 0
        self.start_time = time.perf_counter()

    def add(self, total: Tensor, count: int, logged: Mapping[str, Tensor], taken: Tensor) -> None:
        """Add the loss of a step. A skipped step only counts for the speed."""
        self.total += torch.where(taken, total, 0)
        for name, value in logged.items():
            self._logged_sum(name).add_(torch.where(taken, value, 0))
        self.count += taken * count
        self.timed_count += count

    def read(self) -> dict[str, float]:
        """Return means and speed since the last reading; NaN if every step was skipped."""
        sums = {"loss": self.total} | self.logged
        means = {name: float(total / self.count) for name, total in sums.items()}
        speed = self.timed_count / (time.perf_counter() - self.start_time)
        self.restart()
        return means | {f"{self.unit}_per_second": speed}

    def sums(self) -> dict[str, Any]:
        """Return the arguments of `restore`."""
        logged = {name: float(value) for name, value in self.logged.items()}
        return {"total": float(self.total), "count": float(self.count), "logged": logged}

    def restore(self, total: float, count: float, logged: Mapping[str, float]) -> None:
        """Continue from earlier sums, which do not count for the speed."""
        self.restart()
        self.total += total
        self.count += count
        for name, value in logged.items():
            self._logged_sum(name).add_(value)

    def _logged_sum(self, name: str) -> Tensor:
        return self.logged.setdefault(name, torch.zeros_like(self.total))


class PhaseTimer:
    """Seconds of a run by phase; each moment belongs to one phase, the first of which is "start-up".

    Attributes:
        since: Time at which the current phase started.
    """

    def __init__(self) -> None:
        self.current, self.since = "start-up", time.perf_counter()
        self._seconds = dict.fromkeys(("start-up", "steps", "validation", "saving"), 0.0)

    def switch(self, name: str) -> str:
        """Start a phase and return the previous one."""
        now, previous = time.perf_counter(), self.current
        self._seconds[previous] += now - self.since
        self.current, self.since = name, now
        return previous

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Count the time of the block to a phase."""
        previous = self.switch(name)
        try:
            yield
        finally:
            self.switch(previous)

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        self.switch(self.current)
        return dict(self._seconds)

    def add(self, earlier: Mapping[str, float]) -> None:
        """Add the seconds of the run before it was resumed."""
        for name, seconds in earlier.items():
            self._seconds[name] += seconds


class TrainingState:
    """Weights, optimizer, averaged weights, random states, position in the data, best scores and counters of a run.

    Args:
        model: The module whose parameters are trained.
        optimizer: The optimizer of these parameters.
        skip_above: Gradient norm above which steps are skipped; see `StepCheck` for the default.
        ema: Decay of an exponential moving average of the weights; 0 for a plain mean.
        processes: All processes of the run; a single one by default.
        unit: What losses are summed over, such as "tokens".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        skip_above: float | None = None,
        ema: float = 0.0,
        processes: Processes | None = None,
        unit: str = "tokens",
    ) -> None:
        self.model, self.optimizer, self.ema, self.processes = model, optimizer, ema, processes or Processes()
        self.device = next(model.parameters()).device
        self.average: WeightAverage | None = None
        self.meter = LossMeter(self.device, unit)
        self.step_check = StepCheck(self.device, skip_above)
        self.split_batches = 0  # batches that were split into microbatches
        self.dropped_examples = 0  # examples that do not fit into memory
        self.step = 0
        self.units = 0  # of all steps, such as tokens
        self.position = DataPosition()
        self.best_step = 0
        self.best_scores: dict[str, float] = {}
        self.stale = 0  # validations since the best one
        self.validation_pending = False  # whether the validation of this step failed
        self.phases = PhaseTimer()
        self._start_time = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Duration of the run, including the time before it was resumed."""
        return time.perf_counter() - self._start_time

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to a phase of the run, without that of steps that the GPU still has to run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        with self.phases.during(name):
            yield

    def finish_step(self, units: int, position: DataPosition, update_average: bool) -> None:
        """Count a step over some units, after which training continues from a position in the data.

        Args:
            units: Number of tokens, images, … of the step, over all processes.
            position: Position in the data after its batches.
            update_average: Whether to add the weights after the step to the average.
        """
        if update_average:
            self.update_average()
        self.step += 1
        self.units += units
        self.position = position

    def update_average(self) -> None:
        """Add the current weights to the average."""
        if self.average is None:
            self.average = WeightAverage(self.model, self.ema)
        self.average.update()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; shared tensors occur once."""
        named = {MODEL + name: tensor for name, tensor in unique_tensors(self.model).items()}
        if self.average is not None:
            named |= {AVERAGE + name: tensor for name, tensor in unique_tensors(self.average.module).items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            named |= {f"{OPTIMIZER}{index}.{key}": tensor.contiguous() for key, tensor in values.items()}
        named[STEP_CHECK] = self.step_check.counters
        for rank, states in enumerate(self.processes.gather(self._random_states())):
            named |= {_with_rank(name, rank): state for name, state in states.items()}
        return named

    def reference(self, name: str) -> Tensor | None:
        """Return the weight that a saved tensor has the shape and sharding of."""
        kind, _, rest = name.partition(".")
        if f"{kind}." == OPTIMIZER:
            parameters: list[Tensor] = [p for group in self.optimizer.param_groups for p in group["params"]]
            return parameters[int(rest.partition(".")[0])]
        return unique_tensors(self.model).get(rest)

    def values(self) -> dict[str, Any]:
        """Return everything that is not a tensor, by name."""
        return {name: getattr(self, name) for name in PLAIN_VALUES} | {
            "position": asdict(self.position),
            "averaged": 0 if self.average is None else self.average.updates,
            "meter": self.meter.sums(),
            "reported_skips": self.step_check.reported,
            "seconds": self.seconds,
            "phases": self.phases.read(),
            "processes": self.processes.world,
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore everything that `tensors` and `values` returned."""
        _load_weights(self.model, model_tensors(tensors))
        if values["averaged"]:
            self.average = WeightAverage(self.model, self.ema)
            _load_weights(self.average.module, _with_prefix(tensors, AVERAGE))
            self.average.updates = values["averaged"]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix(tensors, OPTIMIZER).items():
            index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = tensor.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        for name in PLAIN_VALUES:
            setattr(self, name, values[name])
        self.position = DataPosition(**values["position"])
        self.meter.restore(**values["meter"])
        self.step_check.counters = tensors[STEP_CHECK].to(self.device)
        self.step_check.reported = values["reported_skips"]
        self._start_time = time.perf_counter() - values["seconds"]
        self.phases.add(values.get("phases", {}))
        if values["processes"] == self.processes.world:
            self._restore_random_states(tensors)

    def seed_processes(self, seed: int) -> None:
        """Seed each process differently; the random numbers depend only on the seed, the step and the rank."""
        if self.processes.rank or self.step:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.step, self.processes.rank]).generate_state(1)[0]))

    def _random_states(self) -> dict[str, Tensor]:
        on_gpu = {RANDOM_CUDA: torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        return {RANDOM_CPU: torch.get_rng_state()} | on_gpu

    def _restore_random_states(self, tensors: dict[str, Tensor]) -> None:
        cpu, cuda = (_with_rank(name, self.processes.rank) for name in (RANDOM_CPU, RANDOM_CUDA))
        torch.set_rng_state(tensors[cpu])
        if self.device.type == "cuda" and cuda in tensors:
            torch.cuda.set_rng_state(tensors[cuda], self.device)


def _with_rank(name: str, rank: int) -> str:
    """Return the name of the random state of a process; that of the main process has no suffix."""
    return f"{name}.{rank}" if rank else name


def model_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights among the tensors of a checkpoint."""
    return _with_prefix(tensors, MODEL)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = unique_tensors(model)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape:
            raise UserError(f"tensor {name} of the checkpoint does not fit this version's model; start a new run")
    model.load_state_dict(tensors, strict=False)  # only duplicate names of shared tensors are missing


class WeightAverage:
    """A copy of a model with a running mean or an exponential moving average of its weights.

    A decay of 0 selects the mean of all updates. Updates do not synchronise with the device, in contrast to torch's
    AveragedModel, which copies its update count to the device.
    """

    def __init__(self, model: nn.Module, decay: float = 0.0) -> None:
        self.module, self.decay, self.updates = deepcopy(model), decay, 0
        # Listed once, because traversing modules takes longer than a step.
        self._averages, self._current = ([p.detach() for p in one.parameters()] for one in (self.module, model))
        pairs = zip(self.module.modules(), model.modules(), strict=True)
        self._buffers = [
            (copy, module, name) for copy, module in pairs for name, _ in module.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights of the model to the average. Buffers are copied."""
        weight = 1 - self.decay if self.decay else 1 / (self.updates + 1)
        if self.updates:
            torch._foreach_lerp_(self._averages, self._current, weight)
        else:
            for average, parameter in zip(self._averages, self._current, strict=True):
                average.copy_(parameter)  # foreach does not take sharded tensors
        for copy, module, name in self._buffers:
            _copy_buffer(copy, module, name)
        self.updates += 1


def _copy_buffer(copy: nn.Module, model: nn.Module, name: str) -> None:
    """Copy a buffer, reallocating it if it has grown (position tables) or was created in inference mode."""
    ours, theirs = copy.get_buffer(name), model.get_buffer(name)
    if ours.shape == theirs.shape and not ours.is_inference():
        ours.copy_(theirs)
    else:
        setattr(copy, name, theirs.clone())
