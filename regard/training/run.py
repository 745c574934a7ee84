"""Training runs: prepare data and model from a recipe, train, and resume interrupted runs."""

import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from regard.console import Interruptions
from regard.errors import UserError
from regard.models.folder import recover_folder, replace_folder
from regard.threads import available_cpus, describe_threads
from regard.training.checkpoint import Checkpoint, last_name, load_checkpoint, reporting_write_errors
from regard.training.distributed import Processes, check_accumulation, join_processes
from regard.training.loop import RunResult, TrainingLoop
from regard.training.metrics_log import CHECKPOINTS, require_tensorboard
from regard.training.prepared_data import FINGERPRINTS
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run_folder import (
    DATA,
    RECIPE,
    check_settings,
    is_run,
    is_unused,
    load_initial_weights,
    lock_run,
    rewind,
    save_initial_weights,
    write_recipe,
)
from regard.training.task import InitialModel, Task
from regard.training.tasks.registry import load_recipe, task_of


def run_recipe(recipe: Recipe, out: Path) -> RunResult:
    """Train in the folder `out`, or resume the run of the same recipe in it.

    Raises:
        UserError: The data or a setting is wrong, or the folder contains something else. A run that fails before its
            first checkpoint or model removes what it wrote.
    """
    if recipe.training.tensorboard:
        require_tensorboard()
    with join_processes(recipe.training.device) as processes:
        return _run(recipe, out, processes)  # its locals, such as the model, are freed before the process group


def _run(recipe: Recipe, out: Path, processes: Processes) -> RunResult:
    with ExitStack() as stack:
        with processes.sync_errors():
            check_accumulation(recipe.optim.accumulate, processes.world)
        console = None if processes.main else Console(quiet=True)
        progress = Progress(recipe.training.steps, console, task_of(recipe).unit)
        torch.manual_seed(recipe.training.seed)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        created = processes.on_main(lambda: _claim(out, stack))
        run = Run(recipe, out, progress, stack.enter_context(Interruptions()), processes)
        resumed = processes.on_main(lambda: is_run(out))
        try:
            if not resumed:
                run.begin()
            elif finished := run.resume():
                return finished
            return run.train()
        except BaseException:
            has_results = resumed or (out / "last").exists() or last_name(out / CHECKPOINTS)
            if processes.main and not has_results:
                _remove_run(out, created)
            raise


class Run:
    """A training run in the folder `out`, as seen from one of its processes.

    docs/design.md lists the order in which its recipe is completed.
    """

    def __init__(
        self, recipe: Recipe, out: Path, progress: Progress, interruptions: Interruptions, processes: Processes
    ) -> None:
        self.recipe, self.out, self.progress = recipe, out, progress
        self.interruptions, self.processes = interruptions, processes
        self.started = time.perf_counter()
        self.task_type = task_of(recipe)
        self.initial: InitialModel | None = None  # in the main process
        self.checkpoint: Checkpoint | None = None
        self.task: Task[Any]

    def begin(self) -> None:
        """Prepare the run folder, the data and a new model."""
        recipe = self.processes.on_main(self._complete_recipe)
        self.recipe = recipe.resolve(self.processes.device)
        self._set_threads()
        self.task = self.processes.main_first(self._create, self._open_after_main)

    def resume(self) -> RunResult | None:
        """Open the run and its last valid checkpoint; return the result if the run is already finished."""
        self.recipe, self.checkpoint = self.processes.on_main(self._load_checkpoint)
        if self.checkpoint is not None and (result := self._finished_result(self.checkpoint)):
            return result
        self._set_threads()
        self.task = self.processes.main_first(self._reopen, self._open_after_main)
        self.progress.resume(0 if self.checkpoint is None else self.checkpoint.step)
        return None

    def train(self) -> RunResult:
        """Train from the checkpoint, or from the first step if there is none."""
        recipe, device = self.recipe, self.processes.device
        if device.type == "cuda":
            self.progress.print(recipe.describe_execution(device))
        else:
            self.progress.print(describe_threads(torch.get_num_threads()))
        loop = TrainingLoop(
            self.task, recipe.optim, recipe.training, self.out, self.progress, self.processes, self.started
        )
        with self.progress:
            return loop.run(self.interruptions, self.checkpoint)

    def _set_threads(self) -> None:
        """Set the number of CPU threads. On a CPU the run keeps it, because the order of sums depends on it."""
        training, on_cpu = self.recipe.training, self.processes.device.type == "cpu"
        threads = training.threads or default_threads()
        torch.set_num_threads(threads)
        self.recipe = self.recipe.with_group("training", threads=threads if on_cpu else training.threads)

    # Steps of `begin`

    def _complete_recipe(self) -> Recipe:
        """Return the recipe with what the initial model and the data determine."""
        if self.recipe.init.folder is not None:
            with torch.random.fork_rng(devices=[]):  # a resumed run does not load the model: draw the same numbers
                self.initial = self.task_type.load_initial_model(self.recipe)
        recipe = self.recipe if self.initial is None else self.initial.recipe
        completed: Recipe = self.task_type.complete_recipe(recipe, self.progress)
        return completed

    def _create(self) -> Task[Any]:
        """Prepare the data, build the model, and write the recipe, which makes the folder a run."""
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            recover_folder(self.out / DATA)
            with replace_folder(self.out / DATA) as folder:
                self.task_type.prepare_data(folder, self.recipe, self.progress, self.initial)
            task = self._open()
            if self.initial is not None:
                message = task.initialise(self.initial)
                save_initial_weights(self.out / DATA, task.model)
                self.progress.print(message)
                self.initial = None  # frees its weights
            write_recipe(self.out, self.recipe, task)
        return task

    def _open(self) -> Task[Any]:
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            return self.task_type.open(self.out / DATA, self.recipe, self.processes.device, self.progress)

    def _open_after_main(self) -> Task[Any]:
        """Open the run in a process other than the main one, which must see the run folder."""
        if not is_run(self.out):
            raise UserError(f"{self.out}: does not contain the run; all machines must share the run folder")
        return self._open_with_weights()

    def _open_with_weights(self) -> Task[Any]:
        task = self._open()
        if self.checkpoint is None and self.recipe.init.folder is not None:
            load_initial_weights(self.out / DATA, task.model)
        return task

    # Steps of `resume`

    def _load_checkpoint(self) -> tuple[Recipe, Checkpoint | None]:
        """Return the recipe with what was decided when the run began, and the checkpoint to resume from."""
        recipe, old = self.recipe, cast(Recipe, load_recipe(self.out / RECIPE))
        if recipe.kind == old.kind and type(recipe) is type(old):
            recipe = recipe.resolve_resumed(old, self.out).keep_machine_settings(old)
        checkpoint = load_checkpoint(self.out / CHECKPOINTS, self.progress.print)
        check_settings(old, recipe, checkpoint.step if checkpoint else 0, self.out)
        return recipe, checkpoint

    def _finished_result(self, checkpoint: Checkpoint) -> RunResult | None:
        """Return the result of a run that is already finished, with a message how to continue it; None otherwise."""
        training, values, step = self.recipe.training, checkpoint.values, checkpoint.step
        if not training.is_over(step, values["stale"]) or values["validation_pending"]:
            return None
        stopped_early = step < training.steps
        depends_on_steps = self.recipe.optim.schedule == "cosine" or training.average > 0
        advice = ""
        if stopped_early:
            advice = "; raise training.patience to continue it"
        elif not depends_on_steps:
            advice = "; raise training.steps to continue it"
        self.progress.print(f"{self.out}: this run is already finished, at step {step}{advice}")
        results = values["seconds"], values["best_step"], values["best_scores"], stopped_early
        return RunResult(step, *results, values.get("phases", {}))

    def _reopen(self) -> Task[Any]:
        """Check the data, open it, and rewind the run folder to the checkpoint."""
        self.task_type.check_data(self.out / DATA, self.recipe, f"the run in {self.out}")
        task = self._open_with_weights()
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            write_recipe(self.out, self.recipe, task)
            rewind(self.out, 0 if self.checkpoint is None else self.checkpoint.step)
        return task


def default_threads() -> int:
    """Return the number of CPU threads of a process: that of torch, but no more than it has CPUs.

    OMP_NUM_THREADS and MKL_NUM_THREADS, from which torch takes its number, are not limited.
    """
    if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        return torch.get_num_threads()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(torch.get_num_threads(), available_cpus() // processes))


def _claim(out: Path, stack: ExitStack) -> list[Path]:
    """Create and lock the run folder; return the folders that were created, innermost first."""
    if not is_run(out) and not is_unused(out):
        if last_name(out / CHECKPOINTS):
            missing = RECIPE if not (out / RECIPE).is_file() else f"{DATA}/{FINGERPRINTS}"
            raise UserError(
                f"{out}: has checkpoints, but {missing} is missing, so the run cannot be resumed; restore it or choose "
                "another --out"
            )
        raise UserError(f"{out}: already exists and is not an empty folder; choose another --out, or remove it first")
    created = _create_folder(out)
    stack.enter_context(lock_run(out))
    return created


def _create_folder(out: Path) -> list[Path]:
    """Create the run folder; return the folders that did not exist, innermost first."""
    created: list[Path] = []
    for path in (out, *out.parents):
        if path.exists():
            break
        created.append(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"{out} is read-only")
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error})") from None
    return created


def _remove_run(out: Path, created: list[Path]) -> None:
    """Empty a run folder, then remove the folders that were `created` for it, innermost first, while they are empty."""
    if not out.is_dir():  # deleted during the run
        return
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in created:
        try:
            path.rmdir()
        except OSError:  # not empty, so the folders around it are not empty either
            return
