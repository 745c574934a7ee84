"""The training loop, which knows nothing of what it trains: a `Task` gives it batches, losses and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import replace_folder
from regard.ops.linear import RoundedWeights
from regard.runtime import Interrupted, Interruptions
from regard.training.checkpoint import Checkpoint, reporting_write_errors, save_checkpoint, save_sharded_checkpoint
from regard.training.cuda_graph import StepGraph
from regard.training.distributed import Processes
from regard.training.memory import Accumulated, Microbatches, explain_too_large, is_out_of_memory, read_peak
from regard.training.metrics_log import CHECKPOINTS, MetricsLog
from regard.training.parallelism import DistributedStep, build_strategy
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, TrainingSettings
from regard.training.schedule import build_schedule
from regard.training.state import DataShard, Positioned, TrainingState
from regard.training.task import B, DivergedError, LossSum, Step, Task

NEVER_DECAYED = ("embedding", "positions", "class_token", "registers", ".table")
"""Parts of the names of tables, each row of which stands for a word, a place or a token of its own."""
NUMBERS = (torch.float32, torch.float64, torch.float64)
"""What the learning rate, the number of a step and that of its tokens are kept in."""


@dataclass(frozen=True)
class StepResult:
    """A step of the optimiser, unless it was skipped."""

    loss: LossSum
    norm: Tensor  # that the gradient had
    done: Tensor  # a truth value on the device


@dataclass
class RunResult:
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
    processes: Processes | None = None,
) -> RunResult:
    """Trains, validates, and keeps the best and the last model in `out`, with checkpoints from which it can go on.

    Raises:
        UserError: the model or a single sentence does not fit into memory, too many steps in a row were skipped, or
            something cannot be written; the last good checkpoint is still there.
        Interrupted: the run was asked to stop; its last step has been saved.
    """
    stop, processes = stop or Interruptions(), processes or Processes()
    loop = _Loop(task, optim, training, out, progress, processes)
    state = loop.state
    if checkpoint is not None:
        loop.restore(checkpoint)
    if checkpoint is None or checkpoint.processes != processes.world:
        state.draw_apart(training.seed)
    with loop.metrics.open(state.step):
        loop.rehearse()
        loop.run(stop)
    early = state.step < training.steps
    if early:
        progress.print(f"stopped at step {state.step}: {state.stale} validations without a better one")
    return RunResult(state.step, state.seconds, state.best_step, state.best_scores, early)


class _Loop(Generic[B]):
    """A run, and its parts: rehearse; then for each step advance, and where due check_skips, log, validate, save."""

    def __init__(
        self,
        task: Task[B],
        optim: OptimSettings,
        training: TrainingSettings,
        out: Path,
        progress: Progress,
        processes: Processes,
    ) -> None:
        self.task, self.optim, self.training, self.out, self.progress = task, optim, training, out, progress
        self.processes = processes
        self.checkpoints = out / CHECKPOINTS
        self.metrics = MetricsLog(out, training.tensorboard and processes.main)
        self.schedule = build_schedule(optim, training.steps, task.width)
        self.strategy = build_strategy(task, processes, training.sharding)
        weights = self.strategy.weights
        optimiser = build_optimiser(weights, optim)
        self.state = TrainingState(weights, optimiser, optim.skip_above, training.ema, processes, progress.unit)
        self.pieces = (
            DistributedStep(task, self._backward, processes)
            if processes.launched
            else Microbatches(task, self._backward)
        )
        # What changes from step to step, where a recording finds it.
        device = self.state.device
        self.rate, self.number, self.tokens = (torch.zeros((), device=device, dtype=dtype) for dtype in NUMBERS)
        self.rounded = round_weights(task.model, device, training) if not processes.launched else nullcontext()
        records = training.uses_cuda_graph and not processes.launched
        self.recorder = StepGraph(self._take_recorded, device) if records else None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on from a checkpoint, of whatever number of processes."""
        state, before, now = self.state, checkpoint.processes, self.processes.world
        with self.processes.agreeing():
            state.restore(checkpoint.tensors(state.like if self.strategy.sharded else None), checkpoint.facts)
        if before != now:
            self.progress.print(
                f"there were {before} processes and there are {now}: the batches stay the same, but dropout draws "
                "other random numbers from here on"
            )

    def run(self, stop: Interruptions) -> None:
        """All steps that are left, unless it is asked to stop or its patience ends."""
        state, training = self.state, self.training
        batches = self.task.batches(state.position, DataShard(self.processes.rank, self.processes.world))
        stop.deferred = True
        if state.unjudged:
            self.validate()
            self.save()
        while not training.is_over(state.step, state.stale):
            norm = self.advance(batches)
            if any(map(self.due, (self.optim.max_skips, training.log_every, training.validate_every))):
                self.check_skips()
            if self.due(training.log_every):
                self.log(norm)
            if self.due(training.validate_every):
                self.validate()
            over, stopped_by = training.is_over(state.step, state.stale), self.processes.max(stop.received or 0)
            if self.due(training.checkpoint_every) or over or stopped_by:
                self.save()
            if stopped_by and not over:
                self.progress.print(f"saved at step {state.step}; the same command goes on from there")
                raise Interrupted(stopped_by)
        stop.deferred = False

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
        before = [(buffer, buffer.clone()) for buffer in task.model.buffers()]  # some learn in the forward pass itself
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            room = self._room_for_later()
            tried = self.pieces.gather([task.largest()], self.state.step + 1)
            del room
        task.model.zero_grad(set_to_none=True)
        for buffer, old in before:
            buffer.copy_(old)
        for batch in tried.left_out:
            raise UserError(f"{task.describe(batch)} does not fit into memory; try {task.advise(batch)}")
        if tried.failed:
            self._note_memory(tried, "the largest batch does not fit into memory", self.state.step)

    def advance(self, batches: Iterator[Positioned[B]]) -> Tensor:
        """One step of the optimiser, unless it must be skipped; returns the norm that the gradient had."""
        state, model = self.state, self.task.model
        step = state.step + 1
        if not model.training:
            model.train()
        self._set_numbers(step)
        parts = [next(batches) for _ in range(self.optim.accumulate // self.processes.world)]
        taken = self._repeat([part.batch for part in parts]) or self._take([part.batch for part in parts], step)
        state.meter.add(taken.loss.total, taken.loss.count, taken.loss.parts, taken.done)
        if step >= self.training.average_from:
            state.update_average()
        state.step, state.position = step, parts[-1].after
        state.tokens += taken.loss.count
        return taken.norm

    def _set_numbers(self, step: int) -> None:
        rate = self.schedule(step)
        if self.recorder is not None:
            self.rate.fill_(rate)
        for group in self.state.optimiser.param_groups:
            group["lr"] = rate if self.recorder is None else self.rate
        self.number.fill_(step)

    def _take(self, batches: list[B], step: int) -> StepResult:
        """A step in as many pieces as memory needs."""
        state = self.state
        with nullcontext() if self.recorder is None else self.recorder.plainly():
            gathered = self.pieces.gather(batches, step)
            loss = self._sum(gathered.losses, gathered.tokens)
            taken = self._move(loss, loss.total / loss.count)
        state.split += gathered.split
        state.left_out += len(gathered.left_out)
        if gathered.failed:
            self._note_memory(gathered, "out of memory", step)
        for batch in gathered.left_out:
            self._note(step, f"{self.task.describe(batch)} does not fit into memory even alone and was left out")
        return taken

    def _repeat(self, batches: list[B]) -> StepResult | None:
        """A step from its recording; None where there is none, and none can be made yet."""
        if self.recorder is None or not all(map(self.pieces.fits, batches)):
            return None
        count = sum(map(self.task.count, batches))
        self.tokens.fill_(count)
        taken = self.recorder.repeat(batches)
        return None if taken is None else replace(taken, loss=replace(taken.loss, count=count))

    def _take_recorded(self, batches: Sequence[B]) -> StepResult:
        """A step whose numbers are all in tensors; it is as if every batch went through whole."""
        groups, on_gpu = self.state.optimiser.param_groups, self.state.device.type == "cuda"
        loss = self._sum([self._pass(batch, self.number) for batch in batches], 1)
        for group in groups:
            group["capturable"] = on_gpu  # the optimiser refuses to be recorded otherwise, and warns where it is not
        taken = self._move(loss, loss.total / self.tokens)
        for group in groups:
            group["capturable"] = False
        return taken

    def _move(self, loss: LossSum, mean: Tensor) -> StepResult:
        """Moves the weights by their gradients, unless these or the mean loss are such that the step is skipped."""
        optimiser = self.state.optimiser
        norm = self.strategy.clip(self.optim.clip or float("inf")).to(self.state.device)
        done = self.state.skips.judge(self.number, mean, norm)
        # The optimiser itself leaves weights and moments alone where this is 1, without our waiting for the device.
        optimiser.found_inf = (~done).float()  # type: ignore[attr-defined]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return StepResult(loss, norm, done)

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
        with self.processes.agreeing():
            if skipped.in_a_row >= self.optim.max_skips:
                raise UserError(
                    f"{skipped.in_a_row} steps in a row were skipped, the last of them step {skipped.last}: "
                    f"{skipped.why}; {skipped.advice}, and begin anew"
                )

    def log(self, norm: Tensor) -> None:
        state = self.state
        report = state.meter.read() | {"lr": self.schedule(state.step), "gradient_norm": float(norm)}
        report["memory"] = read_peak(state.device)
        counts = {"skipped": state.skips.total, "split": state.split, "left_out": state.left_out}
        self.progress.step(state.step, report)
        self._write(report | {name: count for name, count in counts.items() if count})

    def validate(self) -> None:
        """Scores the model, or the average once there is one, and saves it; where that fails, what it learned is kept.

        Raises:
            UserError: it cannot be scored or saved; going on begins with another try, unless the model is worthless.
        """
        state, step = self.state, self.state.step
        weights = state.model if state.average is None else state.average.module
        state.unjudged = False
        try:
            with (
                self.strategy.full_model(weights) as judged,
                torch.compiler.set_stance("force_eager"),
            ):  # in other shapes
                scores = self.processes.on_main(lambda: self._score(judged))
                newest = self.training.keeps_newest or not state.best_scores
                better = newest or _rank(scores) > _rank(state.best_scores)
                self.processes.on_main(lambda: self._keep(judged, scores, ("last", "best") if better else ("last",)))
        except DivergedError:
            raise
        except UserError:
            state.unjudged = True
            with suppress(UserError):  # what is said is why there was no validation
                self.save()
            raise
        state.stale = 0 if better else state.stale + 1
        if better:
            state.best_scores, state.best_step = scores, step
        state.meter.restart()

    def save(self) -> None:
        """Saves a checkpoint."""
        state, keep = self.state, self.training.keep_checkpoints
        tensors, facts = state.tensors(), state.facts()
        if self.strategy.sharded:
            save_sharded_checkpoint(self.checkpoints, state.step, tensors, facts, keep, self.processes)
        else:
            self.processes.on_main(lambda: save_checkpoint(self.checkpoints, state.step, tensors, facts, keep))

    def _score(self, judged: nn.Module) -> dict[str, float]:
        with autocast(self.state.device, self.training.precision):
            validation = self.task.validate(judged)
        scores, samples = validation.scores, validation.samples
        self.progress.validated(self.state.step, scores, samples)
        self._record({"validation": scores} | ({"samples": [asdict(sample) for sample in samples]} if samples else {}))
        return scores

    def _keep(self, judged: nn.Module, scores: dict[str, float], names: tuple[str, ...]) -> None:
        for name in names:
            place = self.out / name
            with reporting_write_errors(place, self.checkpoints), replace_folder(place) as folder:
                self.task.save(folder, judged, {"step": self.state.step, "validation": scores})

    def _backward(self, batch: B, tokens: float, step: int, last: bool = True) -> LossSum:
        self.tokens.fill_(tokens)
        return self._pass(batch, step, last)

    def _pass(self, batch: B, step: Step, last: bool = True) -> LossSum:
        """The loss of a batch, whose gradients, divided by the step's tokens, are added to those of the weights."""
        with autocast(self.state.device, self.training.precision), self.rounded:
            loss = self.strategy.loss(batch, step, last)
        (loss.total / self.tokens.to(loss.total.dtype)).backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())

    def _sum(self, losses: list[LossSum], tokens: int) -> LossSum:
        """The loss of a whole step, of all processes; that of nothing is no number."""
        if not losses:
            return LossSum(torch.full((), float("nan"), device=self.state.device), 1)
        total = torch.stack([loss.total for loss in losses]).sum()
        parts = {name: torch.stack([loss.parts[name] for loss in losses]).sum() for name in losses[0].parts}
        total, *sums = self.processes.sum_tensors([total, *parts.values()])
        return LossSum(total, tokens, dict(zip(parts, sums, strict=True)))

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

    def _note_memory(self, gathered: Accumulated[B], what: str, step: int) -> None:
        first, least = gathered.failed[0], gathered.failed[-1]
        self._note(
            step,
            f"{what} ({self.task.describe(first)}): batches of that size go through in pieces, which changes no "
            f"result; {self.task.advise(least)} would avoid it",
        )

    def _note(self, step: int, text: str) -> None:
        """Something out of the ordinary, on the screen and in the log."""
        self.progress.print(f"step {step}: {text}")
        self._write({"step": step, "event": text})

    def _write(self, entry: dict[str, Any]) -> None:
        self.processes.on_main(lambda: self._record(entry))

    def _record(self, entry: dict[str, Any]) -> None:
        state, seen = self.state, {self.progress.unit: self.state.tokens}
        self.metrics.write({"step": state.step, "seconds": round(state.seconds, 3)} | seen | entry)


def _rank(scores: dict[str, float]) -> tuple[float, float]:
    """What makes one validation better than another: its score and, between equals (a BLEU of 0 at first), the loss."""
    return scores["score"], -scores.get("loss", 0.0)


def build_optimiser(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    """AdamW; vectors (norms, biases) and what stands for words and places are not decayed."""
    parameters = list(model.named_parameters())
    spared = {name for name, p in parameters if p.dim() <= 1 or any(part in name for part in NEVER_DECAYED)}
    decayed = [p for name, p in parameters if name not in spared]
    kept = [p for name, p in parameters if name in spared]
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 matrix products where asked for, or by default on a GPU; weights and sums stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if _is_half(device, precision) else nullcontext()


def round_weights(model: nn.Module, device: torch.device, training: TrainingSettings) -> AbstractContextManager[Any]:
    """Rounds the weights of a step all at once, where our own products are what will ask for them."""
    wanted = device.type == "cuda" and _is_half(device, training.precision) and not training.compile
    return RoundedWeights(model) if wanted else nullcontext()


def _is_half(device: torch.device, precision: str) -> bool:
    return device.type == "cuda" if precision == "auto" else precision == "bfloat16"
