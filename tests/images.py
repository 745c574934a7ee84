"""Coloured images, and recipes of small image models that learn them within a second."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from regard.training.recipe import Recipe
from regard.training.tasks.registry import load_recipe

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}
SHORT = {
    "optim.lr": 1e-2,
    "optim.warmup": 3,
    "batch.images": 12,
    "training.steps": 40,
    "training.validate_every": 20,
    "training.log_every": 10,
    "training.device": "cpu",
}
TINY = SHORT | {
    "model.kind": "vit",
    "model.preset": "micro",
    "model.width": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.hidden": 32,
    "data.size": 8,
}
WINDOWED = SHORT | {
    "model.kind": "swin",
    "model.preset": "mini",
    "model.width": 8,
    "model.layers": [2, 2],
    "model.heads": [2, 4],
    "model.window": 2,
    "data.size": 16,
}


def paint(folder: Path, number: int, seed: int, size: int = 8, classes: dict[str, tuple[int, ...]] = COLOURS) -> Path:
    """Write a folder per class with `number` images of one colour with noise; return the parent folder."""
    rng = np.random.default_rng(seed)
    for name, colour in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(number):
            pixels = np.array(colour) + rng.normal(0, 40, (size, size, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:03}.png")
    return folder


def image_recipe(images: Path, model: Mapping[str, object] = TINY, **changes: object) -> Recipe:
    """Return the recipe of a small model; changes are written group__key=value."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(None, [], {**model, "data.images": str(images), **named})
