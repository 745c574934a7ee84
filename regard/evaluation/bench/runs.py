"""The runs that are to be timed: whether they are there, what they read, what they have kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from regard.errors import UserError
from regard.evaluation.bench.speed import split_options
from regard.models.folder import find_model_folder, model_input_type
from regard.models.registry import InputType
from regard.pipelines.loading import is_exported
from regard.training.recipe import Recipe
from regard.training.resume import RECIPE, is_run


def check_runs(runs: Sequence[str], what: Literal["answers", "training", "attention"]) -> str:
    """What the models of all runs read, where `what` can be timed of them.

    Raises:
        UserError: one is missing, is not for that, or reads other things than the first.
    """
    if what == "training":
        for run in runs:
            open_run(Path(run))
        return "recipes"
    first, *others = [(text, _what_is_read(split_options(text)[0])) for text in runs]
    for text, reads in others:
        if what == "attention":
            raise UserError(f"{text}: --attention is for the heads of one model; give one run")
        if reads != first[1]:
            raise UserError(f"{text} reads {reads}, and {first[0]} {first[1]}; time them one after the other")
    if what == "answers" and first[1] not in ("text", "images"):
        raise UserError(
            f"{first[0]}: what a model that reads {first[1]} answers is not timed; --training times its steps"
        )
    return first[1]


def _what_is_read(path: Path) -> InputType:
    return "text" if is_exported(path) else model_input_type(find_model_folder(path))


def find_run(path: Path) -> Path | None:
    """The run that a path is, or that the model folder there belongs to; None: no run has been there."""
    for folder in (path, path.parent) if path.name in ("best", "last") else (path,):
        if is_run(folder):
            return folder
    return None


def open_run(path: Path, changes: Sequence[str] = ()) -> tuple[Path, Recipe]:
    """The folder of a run and its recipe, with changes laid over it.

    Raises:
        UserError: there is no run, or its recipe cannot be that.
    """
    folder = find_run(path)
    if folder is None:
        found = (
            f"{path}: no such run" if not path.exists() else f"{path}: not a run ({RECIPE} and its data are missing)"
        )
        raise UserError(f"{found}; steps of training are those of a recipe, so give the folder of a run")
    return folder, Recipe.load(folder / RECIPE, changes)
