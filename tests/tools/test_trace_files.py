"""Commands pass through few files of regard, so that a reader can follow one sentence or one image."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.pipelines import translator
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from tests.conftest import Command, build_task
from tests.images import image_recipe
from tools.trace_files import HOME, FileTracer


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


Function = tuple[str, str]
"""Qualified name and file, relative to regard/."""


def documented_chain(command: str) -> list[Function]:
    """Return the call chain in docs/design.md that starts with a command."""
    design = (HOME.parent / "docs" / "design.md").read_text(encoding="utf-8")
    (rows,) = re.findall(rf"^(\| `{command}` \|.*?)\n\n", design, re.M | re.S)
    return re.findall(r"\| `(.*)` \| `(.*)` \|", rows)


def record_calls(monkeypatch: pytest.MonkeyPatch, chain: list[Function]) -> list[bool]:
    """Patch the last function of a chain to record, at each call, whether the others are on the stack in this order."""
    *callers, (method, file) = chain
    class_name, _, name = method.partition(".")
    owner = getattr(import_module(f"regard.{file.removesuffix('.py').replace('/', '.')}"), class_name)
    original, calls = getattr(owner, name), []

    def record(*args: Any, **options: Any) -> Any:
        stack: list[Function] = []
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            stack.insert(0, (frame.f_code.co_qualname, frame.f_code.co_filename))
            frame = frame.f_back
        called = iter(stack)
        calls.append(all((function, str(HOME / path)) in called for function, path in callers))
        return original(*args, **options)

    monkeypatch.setattr(owner, name, record)
    return calls


def test_translating_calls_the_documented_functions(
    make_recipe: Callable[..., Recipe], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_untrained(make_recipe(), tmp_path / "run")
    calls = record_calls(monkeypatch, documented_chain("translate"))
    assert command("translate", run, "I love apples").code == 0
    assert all(calls) and calls


def test_docstring_of_the_translator_starts_with_the_documented_functions() -> None:
    chain = documented_chain("translate")[1:]
    assert re.findall(r"^    (\S+) +(\S+\.py) ", translator.__doc__ or "", re.M)[: len(chain)] == chain


def test_training_calls_the_documented_functions(
    toy: Path, small_settings: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_calls(monkeypatch, documented_chain("train"))
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh", "--out", tmp_path / "run")
    assert command("train", *files, *small_settings, "--set", "training.steps=1").code == 0
    assert any(calls)  # the first call tries the largest batch without taking a step


def test_translate_enters_at_most_22_files_and_the_check_of_the_language(
    make_recipe: Callable[..., Recipe], command: Command, tmp_path: Path
) -> None:
    run = save_untrained(make_recipe(), tmp_path / "run")
    files = traced_files(command, "translate", run, "I love apples")
    assert {"models/transformer.py", "decoding/beam.py"} <= set(files)
    assert len(set(files) - {"data/text/languages.py"}) <= 22, files


def test_classify_enters_at_most_15_files(painted: Path, command: Command, tmp_path: Path) -> None:
    recipe = image_recipe(painted)
    image = min((painted / "test").rglob("*.png"))
    files = traced_files(command, "classify", save_untrained(recipe, tmp_path / "run"), image)
    assert "models/vit.py" in files
    assert len(files) <= 15, files
