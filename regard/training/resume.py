"""What a run folder remembers of its beginning, and whether a command may go on with it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError
from regard.models.folder import recover_folder
from regard.training.checkpoint import replace_text
from regard.training.families import family_of
from regard.training.fingerprints import FINGERPRINTS
from regard.training.locks import locked
from regard.training.metrics_log import LOG
from regard.training.recipe import Recipe

RECIPE, DATA = "recipe.yaml", "data"
MAY_CHANGE = (
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
)


def is_run(out: Path) -> bool:
    """Whether a run began here that can go on."""
    return (out / RECIPE).is_file() and (out / DATA / FINGERPRINTS).is_file()


def is_unused(out: Path) -> bool:
    """Whether a run may begin here: there is nothing, or only what a run left that was killed before its first step."""
    if not out.exists():
        return True
    if not out.is_dir():
        return False
    names = {path.name for path in out.iterdir() if not path.name.startswith(f".{DATA}.")} - {f".{RECIPE}"}
    return not names or (names == {DATA} and (out / DATA / FINGERPRINTS).is_file())


def exclusive(out: Path) -> AbstractContextManager[None]:
    """Keeps the run folder to this process.

    Raises:
        UserError: another process trains here.
    """

    def refuse() -> None:
        raise UserError(f"{out}: another process is training here; wait for it or choose another --out")

    return locked(out, refuse)


def write_recipe(out: Path, recipe: Recipe) -> None:
    """Keeps the recipe, with all its defaults."""
    replace_text(out / RECIPE, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def tidy(out: Path, step: int) -> None:
    """Makes a run folder what it was after `step`: half-replaced models are back, later lines of the log are gone."""
    for name in ("best", "last", DATA):
        recover_folder(out / name)
    path = out / LOG
    if path.exists():
        # Only "\n" ends a line: the other line ends of Unicode may stand in a sample sentence.
        with path.open(encoding="utf-8", errors="replace", newline="\n") as log:
            kept = [line for line in log if line.endswith("\n") and _logged_step(line) <= step]
        replace_text(path, "".join(kept))


def check_settings(old: Recipe, new: Recipe, step: int, out: Path) -> None:
    """Refuses a recipe under which the steps already done would have been other ones.

    Raises:
        UserError: a setting differs; it is named with both values.
    """
    before, now = (family_of(recipe.kind).flatten(recipe) for recipe in (old, new))
    for key in sorted(before, key="model.kind".__ne__):  # which decides about what other keys there are
        if key == "training.steps" or key in MAY_CHANGE or before[key] == now[key]:
            continue
        raise UserError(
            f"{out}: the run began with {key}={_show(before[key])}, not {_show(now[key])}; go on with the old value or "
            "choose another --out"
        )
    if old.training.steps == new.training.steps:
        return
    said = f"{out}: training.steps cannot change from {old.training.steps} to {new.training.steps}"
    if old.optim.schedule == "cosine":
        raise UserError(f"{said}, since the cosine schedule of the steps already done depends on it")
    if old.training.average and step >= min(old.training.average_from, new.training.average_from):
        raise UserError(f"{said} at step {step}, since the weights are averaged from a step that depends on it")


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _logged_step(line: str) -> float:
    """The step of a line of the log; a line that was cut off in the middle belongs to none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
