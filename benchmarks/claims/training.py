"""The trained translators that several experiments share, and their tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard import Translator
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

STEPS, ALL_STEPS = 250, 700
"""Steps of most models, which still make mistakes, and those of the recipe."""
SCHEDULES = {STEPS: {"start": 40, "half_life": 100}, ALL_STEPS: {"start": 100, "half_life": 300}}
"""Scheduled sampling: predictions replace inputs from `start` on, and half of them after `half_life` further steps."""


def train(runs: Path, seed: int, sampling: bool = False, steps: int = STEPS) -> Translator:
    """Train the demo recipe, or load it if it has been trained in this folder before."""
    settings = [f"training.{key}" for key in (f"seed={seed}", f"steps={steps}", f"validate_every={steps}")]
    if sampling:
        schedule = SCHEDULES[steps] | {"decay": "linear"}
        settings += [f"objective.scheduled_sampling.{key}={value}" for key, value in schedule.items()]
    run = runs / f"{'scheduled-sampling' if sampling else 'teacher-forcing'}-{steps}-{seed}"
    run_recipe(load_recipe(Path("demo"), settings), run)
    return Translator.load(run)


def decoder_inputs(translator: Translator, source: str, target: str) -> tuple[Tensor, Tensor]:
    """Return the tokens of a sentence pair as a model gets them, each (1, T)."""
    config, vocabularies = translator.model.config, translator.vocabularies
    english = config.source_tokens(vocabularies.source.encode(source))
    return torch.tensor([english]), torch.tensor([[config.bos, *vocabularies.target.encode(target)]])
