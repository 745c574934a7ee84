"""Training runs: prepare data and model from a recipe, train, and resume interrupted runs."""

import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
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
        # In a function of its own, so that its locals, such as the model, are freed before the process group.
        return _begin_or_resume(recipe, out, processes)


def _begin_or_resume(recipe: Recipe, out: Path, processes: Processes) -> RunResult:
    with ExitStack() as stack:
        with processes.sync_errors():
            check_accumulation(recipe.optim.accumulate, processes.world)
        console = None if processes.main else Console(quiet=True)
        progress = Progress(recipe.training.steps, console, task_of(recipe).unit)
        torch.manual_seed(recipe.training.seed)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        created = processes.on_main(lambda: _claim(out, stack))
        interruptions = stack.enter_context(Interruptions())
        resumed = processes.on_main(lambda: is_run(out))
        preparation = RunPreparation(out, progress, processes)
        try:
            prepared = preparation.resume(recipe) if resumed else preparation.begin(recipe)
            return prepared if isinstance(prepared, RunResult) else prepared.train(interruptions)
        except BaseException:
            has_results = resumed or (out / "last").exists() or last_name(out / CHECKPOINTS)
            if processes.main and not has_results:
                _remove_run(out, created)
            raise


@dataclass(frozen=True)
class Run:
    """A run that is ready to train, as seen from one of its processes."""

    recipe: Recipe  # completed
    task: Task[Any]
    checkpoint: Checkpoint | None  # from which training continues; None for the first step
    out: Path
    progress: Progress
    processes: Processes
    started: float  # time at which its preparation started

    def train(self, interruptions: Interruptions) -> RunResult:
        """Train from the checkpoint, or from the first step if there is none."""
        recipe, device, progress = self.recipe, self.processes.device, self.progress
        if device.type == "cuda":
            progress.print(recipe.describe_execution(device))
        else:
            progress.print(describe_threads(torch.get_num_threads()))
        loop = TrainingLoop(self.task, recipe.optim, recipe.training, self.out, progress, self.processes, self.started)
        with progress:
            return loop.train(interruptions, self.checkpoint)


class RunPreparation:
    """Prepares the run in the folder `out`, in each of its processes; the main process writes the files.

    A new run is prepared in this order:

    1. `Task.load_initial_model` loads the model of `init.from`, if any, and adds its settings to the recipe.
    2. `Task.complete_recipe` adds what follows from the data, such as the languages.
    3. `Recipe.resolve` decides what depends on the device, such as CUDA graphs and the batch layout.
    4. `fix_threads` adds the number of threads on a CPU.
    5. `Task.prepare_data` stores the data, `Task.open` builds the model, and `Task.initialise` copies the weights of
       the initial model into it.
    6. The completed recipe is written, which makes the folder a run.

    A resumed run takes the decisions of the first four steps from the recipe in its folder, and its weights from the
    checkpoint.
    """

    def __init__(self, out: Path, progress: Progress, processes: Processes) -> None:
        self.out, self.progress, self.processes = out, progress, processes
        self.started = time.perf_counter()

    def begin(self, recipe: Recipe) -> Run:
        """Prepare the run folder, the data and a new model."""
        with self.processes.sync_errors():
            initial = self._load_initial_model(recipe) if self.processes.main else None
        completed = self.processes.on_main(lambda: self._complete_recipe(recipe, initial))
        completed = fix_threads(completed.resolve(self.processes.device), self.processes.device)
        set_threads(completed)
        task = self.processes.main_first(
            lambda: self._create(completed, initial), lambda: self._open_after_main(completed, None)
        )
        return self._ready(completed, task, None)

    def resume(self, recipe: Recipe) -> Run | RunResult:
        """Open the run and its last valid checkpoint; return the result if the run is already finished."""
        completed, checkpoint = self.processes.on_main(lambda: self._load_checkpoint(recipe))
        if checkpoint is not None and (result := self._finished_result(completed, checkpoint)):
            return result
        completed = fix_threads(completed, self.processes.device)
        set_threads(completed)
        task = self.processes.main_first(
            lambda: self._reopen(completed, checkpoint), lambda: self._open_after_main(completed, checkpoint)
        )
        self.progress.resume(0 if checkpoint is None else checkpoint.step)
        return self._ready(completed, task, checkpoint)

    def _ready(self, recipe: Recipe, task: Task[Any], checkpoint: Checkpoint | None) -> Run:
        return Run(recipe, task, checkpoint, self.out, self.progress, self.processes, self.started)

    # Steps of `begin`

    def _load_initial_model(self, recipe: Recipe) -> InitialModel | None:
        if recipe.init.folder is None:
            return None
        with torch.random.fork_rng(devices=[]):  # a resumed run does not load the model: draw the same numbers
            return task_of(recipe).load_initial_model(recipe)

    def _complete_recipe(self, recipe: Recipe, initial: InitialModel | None) -> Recipe:
        """Return the recipe with what the initial model and the data determine."""
        recipe = recipe if initial is None else initial.recipe
        completed: Recipe = task_of(recipe).complete_recipe(recipe, self.progress)
        return completed

    def _create(self, recipe: Recipe, initial: InitialModel | None) -> Task[Any]:
        """Prepare the data, build the model, and write the recipe, which makes the folder a run."""
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            recover_folder(self.out / DATA)
            with replace_folder(self.out / DATA) as folder:
                task_of(recipe).prepare_data(folder, recipe, self.progress, initial)
            task = self._open(recipe)
            if initial is not None:
                message = task.initialise(initial)
                save_initial_weights(self.out / DATA, task.model)
                self.progress.print(message)
            write_recipe(self.out, recipe, task)
        return task

    # Steps of `resume`

    def _load_checkpoint(self, recipe: Recipe) -> tuple[Recipe, Checkpoint | None]:
        """Return the recipe with what was decided when the run began, and the checkpoint to resume from."""
        old = cast(Recipe, load_recipe(self.out / RECIPE))
        if recipe.kind == old.kind and type(recipe) is type(old):
            recipe = recipe.resolve_resumed(old, self.out).keep_machine_settings(old)
        checkpoint = load_checkpoint(self.out / CHECKPOINTS, self.progress.print)
        check_settings(old, recipe, checkpoint.step if checkpoint else 0, self.out)
        return recipe, checkpoint

    def _finished_result(self, recipe: Recipe, checkpoint: Checkpoint) -> RunResult | None:
        """Return the result of a run that is already finished, with a message how to continue it; None otherwise."""
        training, values, step = recipe.training, checkpoint.values, checkpoint.step
        if not training.is_over(step, values["stale"]) or values["validation_pending"]:
            return None
        stopped_early = step < training.steps
        depends_on_steps = recipe.optim.schedule == "cosine" or training.average > 0
        advice = ""
        if stopped_early:
            advice = "; raise training.patience to continue it"
        elif not depends_on_steps:
            advice = "; raise training.steps to continue it"
        self.progress.print(f"{self.out}: this run is already finished, at step {step}{advice}")
        results = values["seconds"], values["best_step"], values["best_scores"], stopped_early
        return RunResult(step, *results, values.get("phases", {}))

    def _reopen(self, recipe: Recipe, checkpoint: Checkpoint | None) -> Task[Any]:
        """Check the data, open it, and rewind the run folder to the checkpoint."""
        task_of(recipe).check_data(self.out / DATA, recipe, f"the run in {self.out}")
        task = self._open_with_weights(recipe, checkpoint)
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            write_recipe(self.out, recipe, task)
            rewind(self.out, 0 if checkpoint is None else checkpoint.step)
        return task

    # Steps of both

    def _open(self, recipe: Recipe) -> Task[Any]:
        with reporting_write_errors(self.out, self.out / CHECKPOINTS):
            return task_of(recipe).open(self.out / DATA, recipe, self.processes.device, self.progress)

    def _open_with_weights(self, recipe: Recipe, checkpoint: Checkpoint | None) -> Task[Any]:
        """Open a run; without a checkpoint, the model gets the weights of the initial model, if any."""
        task = self._open(recipe)
        if checkpoint is None and recipe.init.folder is not None:
            load_initial_weights(self.out / DATA, task.model)
        return task

    def _open_after_main(self, recipe: Recipe, checkpoint: Checkpoint | None) -> Task[Any]:
        """Open the run in a process other than the main one, which must see the run folder."""
        if not is_run(self.out):
            raise UserError(f"{self.out}: does not contain the run; all machines must share the run folder")
        return self._open_with_weights(recipe, checkpoint)


def set_threads(recipe: Recipe) -> None:
    """Set the number of CPU threads of this process."""
    torch.set_num_threads(recipe.training.threads or default_threads())


def fix_threads(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with the number of threads on a CPU, where a run keeps it: the order of sums depends on it."""
    if device.type != "cpu":
        return recipe
    return recipe.with_group("training", threads=recipe.training.threads or default_threads())


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
