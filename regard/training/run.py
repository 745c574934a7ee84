"""A recipe, carried out: data, model, loop, model folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard.errors import UserError
from regard.models.folder import recover_folder, replace_folder
from regard.runtime import Interruptions
from regard.training.checkpoint import Checkpoint, last_name, load_checkpoint, reporting_write_errors
from regard.training.distributed import Processes, check_accumulation, joined
from regard.training.families import family_of
from regard.training.family import Start
from regard.training.loop import RunResult, train
from regard.training.metrics_log import CHECKPOINTS, require_tensorboard
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.resume import DATA, RECIPE, check_settings, exclusive, is_run, is_unused, tidy, write_recipe
from regard.training.start import restore_start, save_start
from regard.training.task import Task


def run_recipe(recipe: Recipe, out: Path) -> RunResult:
    """Trains what the recipe says into the folder `out`; goes on where a run of the same recipe has begun there.

    Raises:
        UserError: the data or a setting is wrong, or the folder holds something else; a run that did not get to its
            first checkpoint or model leaves nothing behind.
    """
    if recipe.training.tensorboard:
        require_tensorboard()
    with joined(recipe.training.device) as processes, ExitStack() as held:
        with processes.agreeing():
            check_accumulation(recipe.optim.accumulate, processes.world)
        screen = None if processes.main else Console(quiet=True)
        progress = Progress(recipe.training.steps, screen, family_of(recipe.kind).unit)
        torch.manual_seed(recipe.training.seed)
        made = processes.on_main(lambda: _claim(out, held))
        stop = held.enter_context(Interruptions())
        if processes.on_main(lambda: is_run(out)):
            return _resume(recipe, out, progress, stop, processes)
        try:
            return _begin(recipe, out, progress, stop, processes)
        except BaseException:
            if processes.main and not (out / "last").exists() and not last_name(out / CHECKPOINTS):
                _clear(out, made)
            raise


def _begin(recipe: Recipe, out: Path, progress: Progress, stop: Interruptions, processes: Processes) -> RunResult:
    """Trains from the first step on."""
    family = family_of(recipe.kind)
    start: Start | None = None

    def settle() -> Recipe:
        nonlocal start
        start = None if recipe.init.folder is None else family.open_start(recipe)
        return recipe if start is None else start.settings

    recipe = processes.on_main(settle)
    recipe = family.settle(recipe, processes.device)

    def lead() -> Task[Any]:
        with reporting_write_errors(out, out / CHECKPOINTS):
            recover_folder(out / DATA)
            with replace_folder(out / DATA) as folder:
                family.gather(folder, recipe, progress, start)
            data = family.open(out / DATA, recipe, progress)
        task = build_task(recipe, processes.device, progress, data)
        with reporting_write_errors(out, out / CHECKPOINTS):
            if start is not None:
                said = start.fill(task)
                save_start(out / DATA, task.model)
                progress.print(said)
            write_recipe(out, recipe)  # with which the folder becomes a run
        return task

    task = processes.main_first(lead, lambda: _follow(recipe, out, processes.device, progress, None))
    with progress:
        return train(task, recipe.optim, recipe.training, out, progress, None, stop, processes)


def _resume(recipe: Recipe, out: Path, progress: Progress, stop: Interruptions, processes: Processes) -> RunResult:
    """Goes on from the last good checkpoint, or from the beginning where the run has none yet."""
    family = family_of(recipe.kind)
    recipe, checkpoint = processes.on_main(lambda: _check_resume(recipe, out, progress))
    step = checkpoint.step if checkpoint else 0
    unjudged = checkpoint is not None and checkpoint.facts.get("unjudged", False)
    if checkpoint and recipe.training.is_over(step, checkpoint.facts["stale"]) and not unjudged:
        facts, early = checkpoint.facts, step < recipe.training.steps
        bound = recipe.optim.schedule == "cosine" or recipe.training.average > 0  # to the number of steps it began with
        more = "a higher training.patience makes" if early else "" if bound else "more training.steps make"
        progress.print(f"{out}: this run is already done, at step {step}" + (f"; {more} it go on" if more else ""))
        return RunResult(step, facts["seconds"], facts["best_step"], facts["best_scores"], early)

    def lead() -> Task[Any]:
        family.check(out / DATA, recipe, f"the run in {out}")
        task = _prepare_again(recipe, out, processes.device, progress, checkpoint)
        with reporting_write_errors(out, out / CHECKPOINTS):
            write_recipe(out, recipe)
            tidy(out, step)
        return task

    task = processes.main_first(lead, lambda: _follow(recipe, out, processes.device, progress, checkpoint))
    progress.resume(step)
    with progress:
        return train(task, recipe.optim, recipe.training, out, progress, checkpoint, stop, processes)


def _check_resume(recipe: Recipe, out: Path, progress: Progress) -> tuple[Recipe, Checkpoint | None]:
    """The recipe with what was settled when the run began, and the checkpoint to go on from."""
    old = Recipe.load(out / RECIPE)
    if family_of(old.kind) is family_of(recipe.kind):
        recipe = family_of(old.kind).settle_again(recipe, old, out)
    checkpoint = load_checkpoint(out / CHECKPOINTS, progress.print)
    check_settings(old, recipe, checkpoint.step if checkpoint else 0, out)
    return recipe, checkpoint


def _follow(
    recipe: Recipe, out: Path, device: torch.device, progress: Progress, checkpoint: Checkpoint | None
) -> Task[Any]:
    """What every process but the main one does, once that has made the folder a run.

    Raises:
        UserError: this process does not see the folder.
    """
    if not is_run(out):
        raise UserError(f"{out}: not what the main process sees there; all machines must share the folder of a run")
    return _prepare_again(recipe, out, device, progress, checkpoint)


def _prepare_again(
    recipe: Recipe, out: Path, device: torch.device, progress: Progress, checkpoint: Checkpoint | None
) -> Task[Any]:
    """Build the task from the data in the run folder, with its initial weights if no checkpoint replaces them."""
    with reporting_write_errors(out, out / CHECKPOINTS):
        data = family_of(recipe.kind).open(out / DATA, recipe, progress)
    task = build_task(recipe, device, progress, data)
    if checkpoint is None and recipe.init.folder is not None:
        restore_start(out / DATA, task.model)
    return task


def build_task(recipe: Recipe, device: torch.device, progress: Progress, data: Any = None) -> Task[Any]:
    """Everything that a run needs before its first step; data that is not given is made, and gone with the task."""
    family = family_of(recipe.kind)
    if data is None:
        with tempfile.TemporaryDirectory() as name:  # what is mapped outlives its name
            family.gather(Path(name), recipe, progress, None)
            data = family.open(Path(name), recipe, progress)
    return family.prepare(recipe, device, progress, data)


def _claim(out: Path, held: ExitStack) -> list[Path]:
    """Makes the folder and keeps it to this run while `held` lasts; tells which folders were made, innermost first."""
    if not is_run(out) and not is_unused(out):
        raise UserError(f"{out}: already exists and is not an empty folder; choose another --out, or remove it first")
    made = _make_folder(out)
    held.enter_context(exclusive(out))
    return made


def _make_folder(out: Path) -> list[Path]:
    """Makes the folder and tells which folders were made for it, the innermost first."""
    made: list[Path] = []
    for path in (out, *out.parents):
        if path.exists():
            break
        made.append(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"{out} is read-only")
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error})") from None
    return made


def _clear(out: Path, made: list[Path]) -> None:
    """Takes away what the run wrote, and the folders made for it as far as nobody else has put anything there."""
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in made:
        try:
            path.rmdir()
        except OSError:
            return
