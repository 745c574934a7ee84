"""Everything that changes while training, as tensors and plain values, so that it can be saved and put back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from regard.errors import UserError
from regard.models.folder import distinct_tensors
from regard.training.meter import Meter
from regard.training.skips import Skips

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
class Placed(Generic[B]):
    """A batch, or the plan of one, and the position in the data behind it."""

    batch: B
    after: Position


@dataclass(frozen=True)
class Share:
    """Which batches of the common plan are this process's: of every `world` in a row, number `rank`."""

    rank: int = 0
    world: int = 1

    def pick(self, planned: Iterator[Placed[B]]) -> Iterator[Placed[B]]:
        """Ours, each with the position behind all `world`, so that every process is at the same place."""
        while group := list(islice(planned, self.world)):
            if len(group) == self.world:
                yield Placed(group[self.rank].batch, group[-1].after)


class TrainingState:
    """Where a run stands: weights, optimiser, average, random numbers, position in the data, best score, log, mishaps.

    Args:
        model: what is trained.
        optimiser: of its parameters.
        skip_above: steps with a gradient of a larger norm are skipped.
        ema: decay of the moving average; where it is 0, an average is a mean.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        skip_above: float | None = None,
        ema: float = 0.0,
    ) -> None:
        self.model, self.optimiser, self.ema = model, optimiser, ema
        self.device = next(model.parameters()).device
        self.average: AveragedModel | None = None
        self.meter = Meter(self.device)
        self.skips = Skips(self.device, skip_above)
        self.split = 0  # batches that went through in pieces
        self.left_out = 0  # sentences too long for the memory
        self.step = 0
        self.tokens = 0  # seen in training, all steps together
        self.position = Position()
        self.best_step = 0
        self.best_scores: dict[str, float] = {}
        self.stale = 0  # validations since the best one
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has taken, all its parts together."""
        return time.perf_counter() - self._started

    def update_average(self) -> None:
        """Takes the present weights into the mean, or the moving average; the first time it is just these."""
        if self.average is None:
            self.average = self._new_average()
        self.average.update_parameters(self.model)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; shared ones stand once."""
        named = {MODEL + name: tensor for name, tensor in distinct_tensors(self.model).items()}
        if self.average is not None:
            named |= {AVERAGE + name: tensor for name, tensor in distinct_tensors(self.average.module).items()}
        for index, values in self.optimiser.state_dict()["state"].items():
            named |= {f"{OPTIMISER}{index}.{key}": tensor.contiguous() for key, tensor in values.items()}
        named[SKIPS] = self.skips.record
        named[RANDOM_CPU] = torch.get_rng_state()
        if self.device.type == "cuda":
            named[RANDOM_CUDA] = torch.cuda.get_rng_state(self.device)
        return named

    def facts(self) -> dict[str, Any]:
        """All plain values by name."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "position": asdict(self.position),
            "averaged": 0 if self.average is None else int(self.average.n_averaged),
            "best_step": self.best_step,
            "best_scores": self.best_scores,
            "stale": self.stale,
            "meter": self.meter.sums(),
            "skips_told": self.skips.told,
            "split": self.split,
            "left_out": self.left_out,
            "seconds": self.seconds,
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Puts everything back as `tensors` and `facts` described it.

        Raises:
            UserError: the tensors belong to another model.
        """
        _load_weights(self.model, model_tensors(tensors))
        if facts["averaged"]:
            self.average = self._new_average()
            _load_weights(self.average.module, _part(tensors, AVERAGE))
            self.average.n_averaged.fill_(facts["averaged"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(tensors, OPTIMISER).items():
            index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = tensor.clone()
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        torch.set_rng_state(tensors[RANDOM_CPU])
        if self.device.type == "cuda" and RANDOM_CUDA in tensors:
            torch.cuda.set_rng_state(tensors[RANDOM_CUDA], self.device)
        self.step, self.tokens, self.position = facts["step"], facts["tokens"], Position(**facts["position"])
        self.best_step, self.best_scores = facts["best_step"], facts["best_scores"]
        self.stale = facts["stale"]
        self.meter.restore(**facts["meter"])
        self.skips.record, self.skips.told = tensors[SKIPS].to(self.device), facts["skips_told"]
        self.split, self.left_out = facts["split"], facts["left_out"]
        self._started = time.perf_counter() - facts["seconds"]

    def _new_average(self) -> AveragedModel:
        how = get_ema_multi_avg_fn(self.ema) if self.ema else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        return AveragedModel(self.model, multi_avg_fn=how)


def model_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights among what `TrainingState.tensors` gave."""
    return _part(tensors, MODEL)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = distinct_tensors(model)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape:
            raise UserError(f"tensor {name} of the checkpoint does not fit this version's model; begin a new run")
    model.load_state_dict(tensors, strict=False)  # only the further names of shared tensors are missing
