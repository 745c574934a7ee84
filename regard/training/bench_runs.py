"""Training runs that are benchmarked: their recipes and validation data."""

from collections.abc import Sequence
from pathlib import Path

from regard.data.text.readers import read_jsonl
from regard.errors import UserError
from regard.training.recipe import Recipe
from regard.training.resume import DATA, RECIPE, is_run
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.translation.data import VALID, take_evenly
from regard.training.tasks.translation.recipe import TranslationRecipe


def find_run(path: Path) -> Path | None:
    """Return the run at `path`, or the run of the model folder at `path`; None if there is no run."""
    for folder in (path, path.parent) if path.name in ("best", "last") else (path,):
        if is_run(folder):
            return folder
    return None


def open_run(path: Path, changes: Sequence[str] = ()) -> tuple[Path, Recipe]:
    """Return the folder of a run and its recipe with changed settings, each written KEY=VALUE."""
    folder = find_run(path)
    if folder is None:
        problem = "no such run" if not path.exists() else f"not a run ({RECIPE} and its data are missing)"
        raise UserError(f"{path}: {problem}; training steps are defined by a recipe, so give the folder of a run")
    return folder, load_recipe(folder / RECIPE, changes)


def validation_sentences(path: Path, most: int) -> list[str]:
    """Return at most `most` source sentences of a run's validation set, evenly spaced; none if it has no such set."""
    if find_run(path) is None:
        return []
    folder, recipe = open_run(path)
    if not isinstance(recipe, TranslationRecipe):
        return []
    file = (recipe.data.store or folder / DATA) / VALID
    if not file.is_file():
        return []
    sentences = [pair.source for pair in read_jsonl(file) if pair.source.strip()]
    return list(take_evenly(sentences, len(sentences), most))
