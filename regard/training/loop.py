"""The training loop, which knows nothing of what it trains: a `Task` gives it batches, losses and scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.interruption import Interruptions
from regard.models.folder import replacing
from regard.training.checkpoint import Checkpoint, reporting_write_errors, save_checkpoint
from regard.training.journal import CHECKPOINTS, Journal
from regard.training.memory import Gathered, Pieces, explain_too_large, is_out_of_memory, read_peak
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, TrainingSettings
from regard.training.schedule import build_schedule
from regard.training.skips import ADVICE
from regard.training.state import Placed, Share, TrainingState
from regard.training.task import B, Loss, Task


@dataclass
class Outcome:
    """What came of a run."""

    steps: int
    seconds: float
    best_step: int
    scores: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False  # for want of a better validation


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
        UserError: the model or a single sentence does not fit into memory, too many steps in a row were skipped, or
            something cannot be written; the last good checkpoint is still there.
        Interrupted: the run was asked to stop; its last step has been saved.
    """
    stop = stop or Interruptions()
    loop = _Loop(task, optim, training, out, progress)
    state = loop.state
    if checkpoint is not None:
        state.restore(checkpoint.tensors(), checkpoint.facts)
    with loop.journal.open(state.step):
        loop.rehearse()
        loop.run(stop)
    early = state.step < training.steps
    if early:
        progress.say(f"stopped at step {state.step}: {state.stale} validations without a better one")
    return Outcome(state.step, state.seconds, state.best_step, state.best_scores, early)


class _Loop(Generic[B]):
    """A run, and its parts: rehearse; then for each step advance, and where due check_skips, log, validate, save."""

    def __init__(
        self, task: Task[B], optim: OptimSettings, training: TrainingSettings, out: Path, progress: Progress
    ) -> None:
        self.task, self.optim, self.training, self.out, self.progress = task, optim, training, out, progress
        self.checkpoints = out / CHECKPOINTS
        self.journal = Journal(out, training.tensorboard)
        self.schedule = build_schedule(optim, training.steps, task.width)
        self.state = TrainingState(task.model, build_optimiser(task.model, optim), optim.skip_above, training.ema)
        self.pieces = Pieces(task, self._backward)

    def run(self, stop: Interruptions) -> None:
        """All steps that are left, unless it is asked to stop or its patience ends."""
        state, training = self.state, self.training
        batches = self.task.batches(state.position, Share())
        stop.patient = True
        while not training.is_over(state.step, state.stale):
            norm = self.advance(batches)
            if any(map(self.due, (self.optim.max_skips, training.log_every, training.validate_every))):
                self.check_skips()
            if self.due(training.log_every):
                self.log(norm)
            if self.due(training.validate_every):
                self.validate()
            over = training.is_over(state.step, state.stale)
            if self.due(training.checkpoint_every) or over or stop.made:
                self.save()
            if stop.made and not over:
                self.progress.say(f"saved at step {state.step}; the same command goes on from there")
                stop.obey()
        stop.patient = False

    def due(self, every: int) -> bool:
        """Whether something that is done every so many steps, and at the end, is done now."""
        return self.state.step % every == 0 or self.state.step == self.training.steps

    def rehearse(self) -> None:
        """Tries the largest batch, so that memory runs short now and not hours later. Nothing that is learned moves.

        Raises:
            UserError: the model, or a single sentence, does not fit.
        """
        device, task = self.state.device, self.task
        task.model.train()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            room = self._room_for_later()
            tried = self.pieces.gather([task.largest()], self.state.step + 1)
            del room
        task.model.zero_grad(set_to_none=True)
        for batch in tried.left_out:
            raise UserError(f"{task.describe(batch)} does not fit into memory; try {task.advise(batch)}")
        if tried.failed:
            self._note_memory(tried, "the largest batch does not fit into memory", self.state.step)

    def advance(self, batches: Iterator[Placed[B]]) -> Tensor:
        """One step of the optimiser, unless it must be skipped; returns the norm that the gradient had."""
        state, model, optimiser = self.state, self.task.model, self.state.optimiser
        step = state.step + 1
        model.train()
        for group in optimiser.param_groups:
            group["lr"] = self.schedule(step)
        parts = [next(batches) for _ in range(self.optim.accumulate)]
        gathered = self.pieces.gather([part.batch for part in parts], step)
        loss = self._sum(gathered.losses)
        norm = nn.utils.clip_grad_norm_(model.parameters(), self.optim.clip or float("inf")).to(state.device)
        taken = state.skips.judge(step, loss.total / loss.count, norm)
        # The optimiser itself leaves weights and moments alone where this is 1, without our waiting for the device.
        optimiser.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        state.meter.add(loss.total, loss.count, loss.parts, taken)
        if step >= self.training.average_from:
            state.update_average()
        state.step, state.position = step, parts[-1].after
        state.tokens += loss.count
        state.split += gathered.split
        state.left_out += len(gathered.left_out)
        if gathered.failed:
            self._note_memory(gathered, "out of memory", step)
        for batch in gathered.left_out:
            self._note(step, f"{self.task.describe(batch)} does not fit into memory even alone and was left out")
        return norm

    def check_skips(self) -> None:
        """Says what was skipped of late.

        Raises:
            UserError: so many steps in a row were that it cannot go on like this.
        """
        skipped = self.state.skips.read()
        if skipped is None:
            return
        several = f"{skipped.steps} steps, the last of them " if skipped.steps > 1 else ""
        self._note(self.state.step, f"skipped {several}step {skipped.last}: {skipped.why}")
        if skipped.in_a_row >= self.optim.max_skips:
            raise UserError(
                f"{skipped.in_a_row} steps in a row were skipped, the last of them step {skipped.last}: {skipped.why}; "
                f"{ADVICE}, and begin anew"
            )

    def log(self, norm: Tensor) -> None:
        state = self.state
        report = state.meter.read() | {"lr": self.schedule(state.step), "gradient_norm": float(norm)}
        report["memory"] = read_peak(state.device)
        counts = {"skipped": state.skips.total, "split": state.split, "left_out": state.left_out}
        self.progress.step(state.step, report)
        self._write(report | {name: count for name, count in counts.items() if count})

    def validate(self) -> None:
        """Scores the model, or the average once there is one, and saves it."""
        state, step = self.state, self.state.step
        judged = self.task.model if state.average is None else state.average.module
        assert isinstance(judged, nn.Module)
        with autocast(state.device, self.training.precision):
            validation = self.task.validate(judged)
        scores, samples = validation.scores, validation.samples
        self.progress.validated(step, scores, samples)
        self._write({"validation": scores} | ({"samples": [asdict(sample) for sample in samples]} if samples else {}))
        better = not state.best_scores or scores["score"] > state.best_scores["score"]
        for name in ("last", "best") if better else ("last",):
            place = self.out / name
            with reporting_write_errors(place, self.checkpoints), replacing(place) as folder:
                self.task.save(folder, judged, {"step": step, "validation": scores})
        state.stale = 0 if better else state.stale + 1
        if better:
            state.best_scores, state.best_step = scores, step
        state.meter.restart()

    def save(self) -> None:
        """Saves a checkpoint."""
        state, keep = self.state, self.training.keep_checkpoints
        save_checkpoint(self.checkpoints, state.step, state.tensors(), state.facts(), keep)

    def _backward(self, batch: B, tokens: int, step: int) -> Loss:
        with autocast(self.state.device, self.training.precision):
            loss = self.task.loss(batch, step)
        (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())

    def _sum(self, losses: list[Loss]) -> Loss:
        """The loss of a whole step; that of nothing is no number."""
        if not losses:
            return Loss(torch.full((), float("nan"), device=self.state.device), 1)
        total = torch.stack([loss.total for loss in losses]).sum()
        parts = {name: torch.stack([loss.parts[name] for loss in losses]).sum() for name in losses[0].parts}
        return Loss(total, sum(loss.count for loss in losses), parts)

    def _room_for_later(self) -> list[Tensor]:
        """As much memory as the optimiser's moments and the average will take, where they are not there yet."""
        parameters = list(self.task.model.parameters())
        copies = 0 if self.state.optimiser.state else 2
        copies += (self.training.average > 0 or self.training.ema > 0) and self.state.average is None
        try:
            return [torch.empty_like(parameter) for parameter in parameters for _ in range(copies)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        raise explain_too_large(self.task.model, 2 + copies)

    def _note_memory(self, gathered: Gathered[B], what: str, step: int) -> None:
        first, least = gathered.failed[0], gathered.failed[-1]
        self._note(
            step,
            f"{what} ({self.task.describe(first)}): batches of that size go through in pieces, which changes no "
            f"result; {self.task.advise(least)} would avoid it",
        )

    def _note(self, step: int, text: str) -> None:
        """Something out of the ordinary, on the screen and in the log."""
        self.progress.say(f"step {step}: {text}")
        self._write({"step": step, "event": text})

    def _write(self, entry: dict[str, Any]) -> None:
        state = self.state
        self.journal.write({"step": state.step, "seconds": round(state.seconds, 3), "tokens": state.tokens} | entry)


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
