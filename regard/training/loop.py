"""The training loop. It knows nothing about what it trains: a `Task` provides batches, losses and scores."""

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic

import torch
from torch import Tensor, nn

from regard.console import Interrupted, Interruptions
from regard.errors import UserError
from regard.training.checkpoint import Checkpoint
from regard.training.cuda_graph import StepGraph
from regard.training.distributed import Processes
from regard.training.memory import is_out_of_memory, model_too_large
from regard.training.metrics_log import Reporter
from regard.training.optim import build_optimizer, learning_rate
from regard.training.parallelism import autocast, build_strategy
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, TrainingSettings
from regard.training.saving import Saver
from regard.training.state import DataShard, Positioned, TrainingState
from regard.training.task import BatchT, DivergedError, LossSum, Task, Validation

EARLY_LOGS = (1, 2, 5, 10, 20)
"""Steps that are logged if the interval is longer, so that a new run shows its loss and speed within seconds."""


@dataclass(frozen=True)
class SummedLosses:
    """Losses of a step: sums over its batches, of this process or of all."""

    total: Tensor
    logged: dict[str, Tensor]


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step, in tensors, so that a CUDA graph can return it."""

    losses: SummedLosses
    norm: Tensor  # gradient norm before clipping
    taken: Tensor  # boolean on the device; False if the step was skipped


@dataclass
class RunResult:
    """Result of a run."""

    steps: int
    seconds: float
    best_step: int
    scores: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False  # because validations did not improve
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each phase


class TrainingLoop(Generic[BatchT]):
    """Trains and validates a model, and saves checkpoints, the best and the last model in the run folder `out`.

    On a GPU, files are written by a thread while training continues. `started` is the time at which the run started.
    """

    background_devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(
        self,
        task: Task[BatchT],
        optim: OptimSettings,
        training: TrainingSettings,
        out: Path,
        progress: Progress,
        processes: Processes | None = None,
        started: float | None = None,
    ) -> None:
        self.task, self.optim, self.training, self.progress = task, optim, training, progress
        self.processes = processes = processes or Processes()
        self.strategy = build_strategy(task, processes, training)
        weights = self.strategy.weights
        optimizer = build_optimizer(weights, optim)
        self.state = TrainingState(weights, optimizer, optim.skip_above, training.ema, processes, progress.unit)
        self.state.phases.since = started or time.perf_counter()
        self.reporter = Reporter(out, task, self.state, processes, progress, training.tensorboard)
        background = self.state.device.type in self.background_devices and not self.strategy.sharded
        self.saver = Saver(
            out, task, self.state, processes, training.keep_checkpoints, self.strategy.sharded, background
        )
        # Numbers that change from step to step are tensors, so that a CUDA graph reads their current values.
        device = self.state.device
        self.rate = torch.zeros((), device=device)
        self.step_number = torch.zeros((), device=device, dtype=torch.float64)
        self.step_graph: StepGraph[BatchT, StepResult] | None = None
        if training.uses_cuda_graph and processes.launched:
            self.step_graph = StepGraph(
                [self._capturable_gradients, self._capturable_update], device, between=self._all_reduce
            )
        elif training.uses_cuda_graph:
            self.step_graph = StepGraph([self._capturable_step], device)

    def train(self, interruptions: Interruptions | None = None, checkpoint: Checkpoint | None = None) -> RunResult:
        """Train from a checkpoint, or from the first step, to the last step or until validations stop improving.

        Raises:
            UserError: The model or a single example does not fit into memory, too many consecutive steps were skipped,
                a data worker was killed, or a file cannot be written; the last checkpoint remains valid.
            Interrupted: The run was interrupted; a checkpoint of its last step has been saved.
        """
        state, training = self.state, self.training
        interruptions = interruptions or Interruptions()
        self._restore(checkpoint)
        shard = DataShard(self.processes.rank, self.processes.world)
        with (
            closing(self.saver),
            _deterministic_convolutions(),
            self.reporter.open(),
            closing(self.task.batches(state.position, shard)) as batches,
        ):
            self.try_largest_batch()
            interruptions.deferred = True
            state.phases.switch("steps")
            if state.validation_pending:
                self.validate()
                self.saver.save_checkpoint()
            while not training.is_over(state.step, state.stale):
                norm = self.take_step(batches)
                log_due = self._log_due()
                if log_due or any(map(self._due, (self.optim.max_skips, training.validate_every))):
                    self.reporter.report_skipped_steps(self.optim.max_skips)
                if log_due:
                    self.reporter.report_metrics(self._learning_rate(state.step), norm)
                    self.saver.check()
                if self._due(training.validate_every):
                    self.validate()
                self._save_if_due(interruptions)
            self.saver.wait()
            interruptions.deferred = False
            self.reporter.report_phases()
        stopped_early = state.step < training.steps
        if stopped_early:
            self.progress.print(f"stopped at step {state.step}: {state.stale} validations without improvement")
        return RunResult(
            state.step, state.seconds, state.best_step, state.best_scores, stopped_early, state.phases.read()
        )

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        """Restore a checkpoint, which may be of another number of processes, and seed the processes."""
        state, now = self.state, self.processes.world
        if checkpoint is not None:
            with self.processes.sync_errors():
                reference = state.reference if self.strategy.sharded else None
                state.restore(checkpoint.tensors(reference), checkpoint.values)
            if checkpoint.processes == now:
                return
            self.progress.print(
                f"resuming with {now} instead of {checkpoint.processes} processes: the batches remain the same, but "
                "dropout draws other random numbers"
            )
        state.seed_processes(self.training.seed)

    def _due(self, every: int) -> bool:
        """Return whether an action with this interval is due; at the last step every action is."""
        return self.state.step % every == 0 or self.state.step == self.training.steps

    def _log_due(self) -> bool:
        step, every = self.state.step, self.training.log_every
        return self._due(every) or (step in EARLY_LOGS and step < every)

    def _save_if_due(self, interruptions: Interruptions) -> None:
        state, training = self.state, self.training
        over, signal = training.is_over(state.step, state.stale), self.processes.max(interruptions.received or 0)
        if self._due(training.checkpoint_every) or over or signal:
            self.saver.save_checkpoint(wait=bool(signal))
        if signal and not over:
            self.progress.print(f"saved at step {state.step}; the same command resumes from there")
            raise Interrupted(signal)

    def try_largest_batch(self) -> None:
        """Run the largest batch without updating anything, so that lack of memory shows now and not hours later."""
        device, task, step = self.state.device, self.task, self.state.step + 1
        task.model.train()
        buffers = [(buffer, buffer.clone()) for buffer in task.model.buffers()]  # a forward pass may update buffers
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            reserved = self._reserve_memory()
            batches = [task.largest_batch()]
            task.begin_step(step)
            tried = self.strategy.accumulate(batches, self.strategy.count_units(batches), step)
            del reserved
        task.model.zero_grad(set_to_none=True)
        for buffer, before in buffers:
            buffer.copy_(before)
        if tried.dropped:
            example = tried.dropped[0]
            raise UserError(f"{task.describe(example)} does not fit into memory; try {task.advise(example)}")
        if tried.failed:
            self.reporter.report_split_batches(tried, "the largest batch does not fit into memory", self.state.step)

    def _reserve_memory(self) -> list[Tensor]:
        """Allocate as much memory as the optimizer and the averaged weights will take, if they do not exist yet."""
        parameters = list(self.task.model.parameters())
        copies = 0 if self.state.optimizer.state else 2
        copies += (self.training.average > 0 or self.training.ema > 0) and self.state.average is None
        try:
            return [torch.empty_like(parameter) for parameter in parameters for _ in range(copies)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        raise model_too_large(self.task.model, 2 + copies)

    # One step

    def take_step(self, batches: Iterator[Positioned[BatchT]]) -> Tensor:
        """Take one optimizer step, unless it is skipped; return the gradient norm."""
        state, model = self.state, self.task.model
        step = state.step + 1
        if not model.training:
            model.train()
        self._set_step(step)
        positioned = self._next_batches(batches)
        step_batches = [batch.item for batch in positioned]
        self.task.begin_step(step)
        units = self.strategy.count_units(step_batches)
        result = self._replayed_step(step_batches, units, step, self.task.operations_key())
        if result is None:
            result, units = self._eager_step(step_batches, units, step)
        state.meter.add(result.losses.total, units, result.losses.logged, result.taken)
        state.finish_step(units, positioned[-1].after, update_average=step >= self.training.average_from)
        return result.norm

    def _next_batches(self, batches: Iterator[Positioned[BatchT]]) -> list[Positioned[BatchT]]:
        """Return the batches of this process for a step; if any process cannot prepare them, save and stop all."""
        failure, items = "", []
        try:
            items = [next(batches) for _ in range(self.optim.accumulate // self.processes.world)]
        except UserError as error:
            failure = str(error)
        if self.processes.max(bool(failure)):
            advice = "this was before the first step, so start again"
            if self.state.step:
                self.saver.save_checkpoint(wait=True)
                advice = f"saved at step {self.state.step}; the same command resumes from there"
            with self.processes.sync_errors():  # an error of one process is raised in all of them
                if failure:
                    raise UserError(f"{failure}; {advice}")
        return items

    def _set_step(self, step: int) -> None:
        """Set the learning rate and the tensors that depend on the step."""
        rate = self._learning_rate(step)
        if self.step_graph is not None:
            self.rate.fill_(rate)
        for group in self.state.optimizer.param_groups:
            group["lr"] = rate if self.step_graph is None else self.rate
        self.step_number.fill_(step)

    def _learning_rate(self, step: int) -> float:
        return learning_rate(self.optim, step, self.training.steps, self.task.width)

    def _eager_step(self, batches: list[BatchT], units: int, step: int) -> tuple[StepResult, int]:
        """Take a step in as many microbatches as memory requires.

        Returns:
            The result, and the number of units of the step without those of examples that do not fit into memory.
        """
        state = self.state
        with nullcontext() if self.step_graph is None else self.step_graph.eager():
            accumulated = self.strategy.accumulate(batches, units, step)
            losses = self._sum(accumulated.losses)
            self.strategy.collect_gradients()
            self._all_reduce(losses)
            result = self._update_weights(losses, losses.total / accumulated.units)
        state.split_batches += accumulated.split
        state.dropped_examples += len(accumulated.dropped)
        if accumulated.failed:
            self.reporter.report_split_batches(accumulated, "out of memory", step)
        for batch in accumulated.dropped:
            self.reporter.report_event(
                step, f"{self.task.describe(batch)} does not fit into memory even alone and was dropped"
            )
        return result, accumulated.units

    def _replayed_step(
        self, batches: list[BatchT], units: int, step: int, operations_key: Hashable
    ) -> StepResult | None:
        """Take a step by replaying a CUDA graph of the same operations, see `Task.operations_key`.

        Returns:
            The result; None if the step must run eagerly.
        """
        if self.step_graph is None or not all(map(self.strategy.fits, batches)):
            return None
        self.strategy.set_divisor(units)
        try:
            return self.step_graph.try_replay(batches, operations_key)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.task.model.zero_grad(set_to_none=True)
            self.step_graph.disable()
            self.reporter.report_failed_capture(batches[0], step)
            return None

    # The functions that `StepGraph` captures; on a device without CUDA it calls them in each step. All numbers that
    # change from step to step are in tensors.

    def _capturable_step(self, batches: Sequence[BatchT]) -> StepResult:
        """Take a step with complete batches."""
        return self._capturable_update(self._capturable_gradients(batches))

    def _capturable_gradients(self, batches: Sequence[BatchT]) -> SummedLosses:
        """Compute the gradients of the batches of this process, and return their losses."""
        losses = self._sum([self.strategy.add_gradients(batch, self.step_number) for batch in batches])
        self.strategy.collect_gradients()
        return losses

    def _capturable_update(self, losses: SummedLosses) -> StepResult:
        """Update the weights with the gradients of the step."""
        groups, on_gpu = self.state.optimizer.param_groups, self.state.device.type == "cuda"
        try:
            for group in groups:
                group["capturable"] = on_gpu  # the optimizer requires it for capture, and warns about it otherwise
            return self._update_weights(losses, losses.total / self.strategy.divisor)
        finally:
            for group in groups:
                group["capturable"] = False

    # What eager and captured steps have in common

    def _all_reduce(self, losses: SummedLosses) -> None:
        """Sum losses and gradients over all processes; a single process has nothing to sum."""
        self.strategy.all_reduce_gradients()
        self.processes.sum_tensors_([losses.total, *losses.logged.values()])

    def _update_weights(self, losses: SummedLosses, mean: Tensor) -> StepResult:
        """Clip the gradients and update the weights, unless the mean loss or the gradient norm forbid it."""
        optimizer = self.state.optimizer
        norm = self.strategy.clip(self.optim.clip or float("inf")).to(self.state.device)
        taken = self.state.step_check.check(self.step_number, mean, norm)
        # If this is 1, the fused optimizer leaves weights and moments unchanged, without synchronising.
        optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return StepResult(losses, norm, taken)

    def _sum(self, losses: list[LossSum]) -> SummedLosses:
        """Return the losses of the batches of this process; NaN if there are none."""
        if not losses:
            return SummedLosses(torch.full((), float("nan"), device=self.state.device), {})
        total = torch.stack([loss.total for loss in losses]).sum()
        logged = {name: torch.stack([loss.logged[name] for loss in losses]).sum() for name in losses[0].logged}
        return SummedLosses(total, logged)

    # Validation

    def validate(self) -> None:
        """Score the model, or the averaged weights if there are any, and save the model folder."""
        state, step = self.state, self.state.step
        weights = state.model if state.average is None else state.average.module
        state.validation_pending = False
        try:
            # Validation batches have other shapes, for which nothing should be compiled.
            stance = torch.compiler.set_stance("force_eager")
            with state.phase("validation"), self.strategy.full_model(weights) as model, stance:
                validation = self.processes.on_main(lambda: self._validate(model))
                scores = validation.scores
                best = state.best_scores
                is_best = self.training.keeps_newest or not best or _rank(scores) > _rank(best)
                names = ("last", "best") if is_best else ("last",)
                self.processes.on_main(lambda: self.saver.save_model(model, validation, names))
        except DivergedError:
            raise
        except UserError:
            state.validation_pending = True
            with suppress(UserError):  # report why the validation failed, not why the checkpoint did
                self.saver.save_checkpoint(wait=True)
            raise
        state.stale = 0 if is_best else state.stale + 1
        if is_best:
            state.best_scores, state.best_step = scores, step
        state.meter.restart()

    def _validate(self, model: nn.Module) -> Validation:
        with autocast(self.state.device, self.training.precision):
            validation = self.task.validate(model)
        self.reporter.report_validation(validation)
        return validation


@contextmanager
def _deterministic_convolutions() -> Iterator[None]:
    """Let cuDNN use only algorithms that add in a fixed order, so that a resumed run has bit-identical weights."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _rank(scores: dict[str, float]) -> tuple[float, float]:
    """Rank validations by their score, and by the loss if the scores are equal, such as a BLEU of 0 at first."""
    return scores["score"], -scores.get("loss", 0.0)
