"""Commands pass through few files of regard, so that a reader can follow one sentence or one image."""

from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from regard.training.progress import Progress
from regard.training.recipe import Recipe
from tests.conftest import Command, build_task
from tests.images import image_recipe
from tools.trace_files import FileTracer


def save_untrained(recipe: Recipe, folder: Path) -> Path:
    folder.mkdir()
    task = build_task(recipe, torch.device("cpu"), Progress(1, Console(quiet=True)))
    task.save(folder, task.model)
    return folder


def traced_files(command: Command, *words: object) -> list[str]:
    tracer = FileTracer()
    tracer.start()
    try:
        result = command(*words)
    finally:
        tracer.stop()
    assert result.code == 0, result.err
    return tracer.files()


def test_translate_enters_at_most_22_files_and_3_helpers(
    make_recipe: Callable[..., Recipe], command: Command, tmp_path: Path
) -> None:
    run = save_untrained(make_recipe(), tmp_path / "run")
    files = traced_files(command, "translate", run, "I love apples")
    assert {"models/transformer.py", "decoding/beam.py"} <= set(files)
    assert len(set(files) - {"config.py", "console.py", "files.py"}) <= 22, files


def test_classify_enters_at_most_15_files(painted: Path, command: Command, tmp_path: Path) -> None:
    recipe = image_recipe(painted)
    image = min((painted / "test").rglob("*.png"))
    files = traced_files(command, "classify", save_untrained(recipe, tmp_path / "run"), image)
    assert "models/vit.py" in files
    assert len(files) <= 15, files
