"""The training loop, which knows nothing of what it trains: a `Task` gives it batches, losses and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.interruption import Interruptions
from regard.models.folder import replacing
from regard.training.checkpoint import Checkpoint, reporting_write_errors, save_checkpoint
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, TrainingSettings
from regard.training.schedule import build_schedule
from regard.training.state import Placed, Position, Share, TrainingState

CHECKPOINTS, LOG = "checkpoints", "log.jsonl"
B = TypeVar("B")


@dataclass(frozen=True)
class Loss:
    """The summed loss of a batch, with its graph; and how many tokens (or other units) it is a sum over."""

    total: Tensor
    count: int


class Task(Protocol[B]):
    """What the loop needs to know of the thing that is trained."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    @property
    def width(self) -> int:
        """Of the model, for schedules that follow it."""

    def batches(self, position: Position, share: Share) -> Iterator[Placed[B]]:
        """Our share of the training batches from a position on, without end, already on the model's device.

        Which batches there are, and their order, depends on the recipe and its seed alone; the share only picks.
        """

    def count(self, batch: B) -> int:
        """How many tokens the loss of this batch is a sum over."""

    def loss(self, batch: B, step: int) -> Loss:
        """The loss of a batch."""

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Scores on the validation set; "score", higher is better, decides which model is the best."""

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        """Writes a model folder."""


@dataclass
class Outcome:
    """What came of a run."""

    steps: int
    seconds: float
    best_step: int
    scores: dict[str, float] = field(default_factory=dict)


def train(
    task: Task[B],
    optim: OptimSettings,
    training: TrainingSettings,
    out: Path,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
    stop: Interruptions | None = None,
) -> Outcome:
    """Trains, validates, and keeps the best and the last model in `out`, with checkpoints from which it can go on.

    Raises:
        UserError: something cannot be written; the last good checkpoint is still there.
        Interrupted: the run was asked to stop; its last step has been saved.
    """
    stop = stop or Interruptions()
    loop = _Loop(task, optim, training, out, progress)
    state = loop.state
    if checkpoint is not None:
        state.restore(checkpoint.tensors(), checkpoint.facts)
    batches = task.batches(state.position, Share())
    stop.patient = True
    while state.step < training.steps:
        norm = loop.advance(batches)
        if loop.due(training.log_every):
            loop.log(norm)
        if loop.due(training.validate_every):
            loop.validate()
        if loop.due(training.checkpoint_every) or stop.made:
            loop.save()
        if stop.made and state.step < training.steps:
            progress.say(f"saved at step {state.step}; the same command goes on from there")
            stop.obey()
    stop.patient = False
    return Outcome(state.step, state.seconds, state.best_step, state.best_scores)


class _Loop(Generic[B]):
    """The parts of a step: advance, log, validate, save."""

    def __init__(
        self, task: Task[B], optim: OptimSettings, training: TrainingSettings, out: Path, progress: Progress
    ) -> None:
        self.task, self.optim, self.training, self.out, self.progress = task, optim, training, out, progress
        self.checkpoints = out / CHECKPOINTS
        self.schedule = build_schedule(optim, training.steps, task.width)
        self.state = TrainingState(task.model, build_optimiser(task.model, optim))

    def due(self, every: int) -> bool:
        """Whether something that is done every so many steps, and at the end, is done now."""
        return self.state.step % every == 0 or self.state.step == self.training.steps

    def advance(self, batches: Iterator[Placed[B]]) -> Tensor:
        """One step of the optimiser; returns the norm that the gradient had."""
        state, model, optimiser = self.state, self.task.model, self.state.optimiser
        step = state.step + 1
        model.train()
        for group in optimiser.param_groups:
            group["lr"] = self.schedule(step)
        parts = [next(batches) for _ in range(self.optim.accumulate)]
        tokens = sum(self.task.count(part.batch) for part in parts)
        for part in parts:
            with autocast(state.device, self.training.precision):
                loss = self.task.loss(part.batch, step)
            (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
            state.meter.add(loss.total, loss.count)
        norm = nn.utils.clip_grad_norm_(model.parameters(), self.optim.clip or float("inf"))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step >= self.training.average_from:
            state.update_average()
        state.step, state.position = step, parts[-1].after
        return norm

    def log(self, norm: Tensor) -> None:
        step = self.state.step
        report = self.state.meter.read() | {"lr": self.schedule(step), "gradient_norm": float(norm)}
        if not math.isfinite(report["loss"]):
            raise UserError(
                f"the loss is no longer finite at step {step}; lower optim.lr or lengthen optim.warmup, and begin anew"
            )
        self.progress.step(step, report)
        self._write(report)

    def validate(self) -> None:
        """Scores the model, or the average once there is one, and saves it."""
        state, step = self.state, self.state.step
        judged = self.task.model if state.average is None else state.average.module
        assert isinstance(judged, nn.Module)
        with autocast(state.device, self.training.precision):
            scores = self.task.validate(judged)
        self.progress.validated(step, scores)
        self._write({"validation": scores})
        better = not state.best_scores or scores["score"] > state.best_scores["score"]
        for name in ("last", "best") if better else ("last",):
            place = self.out / name
            with reporting_write_errors(place, self.checkpoints), replacing(place) as folder:
                self.task.save(folder, judged, {"step": step, "validation": scores})
        if better:
            state.best_scores, state.best_step = scores, step
        state.meter.restart()

    def save(self) -> None:
        """Saves a checkpoint."""
        state, keep = self.state, self.training.keep_checkpoints
        save_checkpoint(self.checkpoints, state.step, state.tensors(), state.facts(), keep)

    def _write(self, entry: dict[str, Any]) -> None:
        path = self.out / LOG
        entry = {"step": self.state.step, "seconds": round(self.state.seconds, 3)} | entry
        with reporting_write_errors(path, self.checkpoints), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def build_optimiser(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    """AdamW; vectors (norms, biases) and embeddings are not decayed."""
    parameters = list(model.named_parameters())
    decayed = [p for name, p in parameters if p.dim() > 1 and "embedding" not in name]
    kept = [p for name, p in parameters if p.dim() <= 1 or "embedding" in name]
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 matrix products where asked for, or by default on a GPU; weights and sums stay float32."""
    wanted = device.type == "cuda" if precision == "auto" else precision == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()
