"""The run folder: whether a run can start or resume in it, and what it stores besides checkpoints and models."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml
from torch import nn

from regard.errors import UserError
from regard.files import check_regular, parse_json
from regard.models.folder import classes_of, fsync, read_safetensors, recover_folder, unique_tensors
from regard.models.warmstart import copy_tensors
from regard.registry import EXTENSIONS, find_extensions
from regard.training.checkpoint import replace_text
from regard.training.metrics_log import LOG
from regard.training.prepared_data import FINGERPRINTS, lock_folder
from regard.training.recipe import Recipe
from regard.training.task import Task

RECIPE, DATA, INITIAL_WEIGHTS = "recipe.yaml", "data", "initial.safetensors"
CHANGEABLE = (
    "optim.max_skips",
    "training.log_every",
    "training.validate_every",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.samples",
    "training.tensorboard",
    "training.device",
    "training.sharding",
    "training.patience",
    "training.workers",
    "training.threads",
)
"""Settings that may change when a run is resumed."""
FIRST = ("model.kind", "training.task")
"""Compared first, because they determine which other settings exist."""


def is_run(out: Path) -> bool:
    """Return whether the folder contains a run that can be resumed."""
    return (out / RECIPE).is_file() and (out / DATA / FINGERPRINTS).is_file()


def is_unused(out: Path) -> bool:
    """Return whether a run may start: the folder is missing, empty, or left by a run killed before its first step."""
    if not out.exists():
        return True
    if not out.is_dir():
        return False
    names = {path.name for path in out.iterdir() if not path.name.startswith(f".{DATA}.")} - {f".{RECIPE}"}
    return not names or (names == {DATA} and (out / DATA / FINGERPRINTS).is_file())


def lock_run(out: Path) -> AbstractContextManager[None]:
    """Lock the run folder against other processes."""

    def refuse() -> None:
        raise UserError(f"{out}: another process is training here; wait for it or choose another --out")

    return lock_folder(out, refuse)


def write_recipe(out: Path, recipe: Recipe, task: Task[Any]) -> None:
    """Write the recipe including its defaults, and the extensions that it needs."""
    values = recipe.model_dump(mode="json")
    if extensions := find_extensions([type(task), type(getattr(recipe, "objective", None)), *classes_of(task.model)]):
        values[EXTENSIONS] = extensions
    replace_text(out / RECIPE, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def rewind(out: Path, step: int) -> None:
    """Restore the state of the run folder after a step: recover model folders and remove later lines of the log."""
    for name in ("best", "last", DATA):
        recover_folder(out / name)
    path = out / LOG
    if path.exists():
        check_regular(path)
        # Only "\n" ends a line: sample sentences may contain other Unicode line separators.
        with path.open(encoding="utf-8", errors="replace", newline="\n") as log:
            kept = [line for line in log if line.endswith("\n") and _logged_step(line) <= step]
        replace_text(path, "".join(kept))


def check_settings(old: Recipe, new: Recipe, step: int, out: Path) -> None:
    """Check that the steps taken so far would have been the same with the new recipe."""
    before, now = old.fixed_settings(), new.fixed_settings()
    for key in sorted(before, key=lambda key: key not in FIRST):
        if key == "training.steps" or key in CHANGEABLE or before[key] == now[key]:
            continue
        raise UserError(
            f"{out}: the run started with {key}={show_value(before[key])}, not {show_value(now[key])}; resume with the "
            "old value or choose another --out"
        )
    if old.training.steps == new.training.steps:
        return
    refusal = f"{out}: training.steps cannot change from {old.training.steps} to {new.training.steps}"
    if old.optim.schedule == "cosine":
        raise UserError(f"{refusal}, because the cosine schedule depends on it")
    if old.training.average and step >= min(old.training.average_from, new.training.average_from):
        raise UserError(f"{refusal} at step {step}, because the first averaged step depends on it")


def show_value(value: Any) -> str:
    """Format a setting for an error message."""
    return value if isinstance(value, str) else json.dumps(value)


def _logged_step(line: str) -> float:
    """Return the step of a line of the log; infinity if the line is damaged."""
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return float("inf")


def save_initial_weights(folder: Path, model: nn.Module) -> None:
    """Save the weights that a run was initialised with, because their folder may be gone when the run is resumed."""
    safetensors.torch.save_file(unique_tensors(model), folder / INITIAL_WEIGHTS)
    fsync(folder / INITIAL_WEIGHTS)


def load_initial_weights(folder: Path, model: nn.Module) -> None:
    """Load the weights that a run was initialised with."""
    path = folder / INITIAL_WEIGHTS
    try:
        tensors = read_safetensors(path)
    except UserError as error:
        raise UserError(f"{error}, so the run cannot be resumed; start a new one") from None
    copy_tensors(model, tensors, str(path))
