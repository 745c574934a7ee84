"""Fixtures of the training tests."""

import os
from collections.abc import Callable

import pytest
import torch

from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.tasks.translation.task import TranslationTask
from tests.conftest import build_task

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported, to run its kernels on a CPU


@pytest.fixture
def build(make_recipe: Callable[..., Recipe]) -> Callable[..., TranslationTask]:
    """Build a translation task on the toy corpus; changes are written group__key=value."""

    def make(**changes: object) -> TranslationTask:
        recipe = make_recipe(**changes)
        torch.manual_seed(1)
        return build_task(recipe, torch.device("cpu"), Progress(1))

    return make
