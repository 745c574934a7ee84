"""What could be set otherwise for the same training to go faster or slower on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.ops.quantization import supports
from regard.training.recipe import Recipe
from regard.training.tasks.translation.recipe import TranslationRecipe

Changes = tuple[str, ...]
"""Settings, each written key=value."""
AS_IT_IS: Changes = ()


def ways_to_train(recipe: Recipe, device: torch.device) -> Iterator[Changes]:
    """The recipe as it is, then whatever of layout, precision, recording and compiling it does not have yet."""
    yield AS_IT_IS
    training, pack = recipe.training, AS_IT_IS
    if isinstance(recipe, TranslationRecipe) and not training.fixed_shapes:
        other = "padded" if recipe.batch.layout == "packed" else "packed"
        pack = ("batch.layout=packed",) if other == "packed" else AS_IT_IS
        yield (f"batch.layout={other}",)
    if device.type == "cuda":
        yield from _ways_on_gpu(recipe, pack)
    elif training.precision != "bfloat16" and supports("bfloat16"):
        yield ("training.precision=bfloat16",)


def _ways_on_gpu(recipe: Recipe, pack: Changes) -> Iterator[Changes]:
    training, half = recipe.training, AS_IT_IS
    yield (f"training.precision={'bfloat16' if training.precision == 'float32' else 'float32'}",)
    if isinstance(recipe, TranslationRecipe) and training.precision != "float32":
        half = () if recipe.training.residual_dtype == "bfloat16" else ("training.residual_dtype=bfloat16",)
        if half:
            yield half
    if not training.uses_cuda_graph:
        yield (*pack, "training.cuda_graph=true")
        if half:
            yield (*pack, "training.cuda_graph=true", *half)
    if not training.compile:
        yield (*pack, "training.compile=true")


def as_peers_train(recipe: Recipe) -> Changes:
    """What a model of another program, which reads padded batches and is not recorded, needs of a recipe."""
    training = recipe.training
    found = [f"training.{key}=false" for key in ("cuda_graph", "compile") if getattr(training, key)]
    if isinstance(recipe, TranslationRecipe):
        found += ["batch.layout=padded"] if recipe.batch.layout != "padded" else []
        found += ["training.residual_dtype=float32"] if recipe.training.residual_dtype != "float32" else []
    return tuple(found)
