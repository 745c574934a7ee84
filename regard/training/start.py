"""The weights that a run begins with, kept in its folder: what they were taken from may be gone when it goes on."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import nn

from regard.errors import UserError
from regard.models.folder import fsync, unique_tensors
from regard.models.warmstart import copy_tensors

WEIGHTS = "start.safetensors"


def save_start(folder: Path, model: nn.Module) -> None:
    """Keeps the weights that a run begins with."""
    safetensors.torch.save_file(unique_tensors(model), folder / WEIGHTS)
    fsync(folder / WEIGHTS)


def restore_start(folder: Path, model: nn.Module) -> None:
    """Gives the model the weights that the run began with.

    Raises:
        UserError: they are missing, damaged, or of another model.
    """
    path = folder / WEIGHTS
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: missing or damaged ({error}), so the run cannot go on; begin a new one") from None
    copy_tensors(model, tensors, str(path))
