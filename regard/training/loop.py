"""The training loop, which knows nothing of what it trains: a `Task` gives it batches, losses and scores."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from regard.models.folder import replacing
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, TrainingSettings
from regard.training.schedule import build_schedule

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

    def batches(self) -> Iterator[B]:
        """Training batches without end, epoch after epoch, already on the model's device."""

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


def train(task: Task[B], optim: OptimSettings, training: TrainingSettings, out: Path, progress: Progress) -> Outcome:
    """Trains, validates, and keeps the best and the last model in `out`."""
    model = task.model
    device = next(model.parameters()).device
    optimiser = build_optimiser(model, optim)
    schedule = build_schedule(optim, training.steps, task.width)
    average_from = training.steps - int(training.average * training.steps) + 1
    average: AveragedModel | None = None
    batches = task.batches()
    outcome = Outcome(0, 0.0, 0)
    meter = _Meter(device)
    started = time.perf_counter()
    for step in range(1, training.steps + 1):
        model.train()
        for group in optimiser.param_groups:
            group["lr"] = schedule(step)
        parts = [next(batches) for _ in range(optim.accumulate)]
        tokens = sum(task.count(part) for part in parts)
        for part in parts:
            with autocast(device, training.precision):
                loss = task.loss(part, step)
            (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
            meter.add(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), optim.clip or float("inf"))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if training.average and step >= average_from:
            average = average or AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())  # type: ignore[no-untyped-call]
            average.update_parameters(model)
        if step % training.log_every == 0 or step == training.steps:
            report = meter.read() | {"lr": schedule(step), "gradient_norm": float(norm)}
            progress.step(step, report)
            _log(out, {"step": step, "seconds": round(time.perf_counter() - started, 3)} | report)
        if step % training.validate_every == 0 or step == training.steps:
            judged = model if average is None else average.module
            assert isinstance(judged, nn.Module)
            with autocast(device, training.precision):
                scores = task.validate(judged)
            progress.validated(step, scores)
            _log(out, {"step": step, "seconds": round(time.perf_counter() - started, 3), "validation": scores})
            record = {"step": step, "validation": scores}
            with replacing(out / "last") as folder:
                task.save(folder, judged, record)
            if not outcome.scores or scores["score"] > outcome.scores["score"]:
                outcome.scores, outcome.best_step = scores, step
                with replacing(out / "best") as folder:
                    task.save(folder, judged, record)
            meter.restart()
    outcome.steps, outcome.seconds = training.steps, time.perf_counter() - started
    return outcome


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


class _Meter:
    """Mean loss and speed since the last reading. The loss stays on the device until it is read."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.restart()

    def restart(self) -> None:
        self.total.zero_()
        self.count = 0
        self.since = time.perf_counter()

    def add(self, loss: Loss) -> None:
        self.total += loss.total.detach()
        self.count += loss.count

    def read(self) -> dict[str, float]:
        mean = float(self.total) / max(1, self.count)
        speed = self.count / (time.perf_counter() - self.since)
        self.restart()
        return {"loss": mean, "tokens_per_second": speed}


def _log(out: Path, entry: dict[str, Any]) -> None:
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
