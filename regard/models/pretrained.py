"""Model folders by the conventions of model hubs, without a hub: everything in one folder, with a card to read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from regard.errors import UserError
from regard.models.base import Model
from regard.models.card import CARD, FINGERPRINTS, SCORES, build_card, find_fingerprints
from regard.models.folder import CONFIG, WEIGHTS, replace_folder, unique_tensors


def save_pretrained(folder: Path, save: Callable[[Path], None], model: Model, home: Path | None) -> None:
    """Writes a model folder with its card.

    Args:
        folder: a new one, an empty one, or a model folder, which is replaced.
        save: writes the model's own files into an existing folder.
        model: as it is saved.
        home: the folder from which it was loaded, whose scores and data go with it as long as its weights are the same.

    Raises:
        UserError: the folder holds something else, or the model's weights are not here.
    """
    if any(tensor.is_meta for tensor in model.parameters()):
        raise UserError("the weights are in another engine; load the model with the engine regard to save it")
    _check_free(folder)
    with replace_folder(folder) as fresh:
        save(fresh)
        if home is not None and _is_as_saved(model, home):
            _carry(home, fresh)
        (fresh / CARD).write_text(build_card(fresh), encoding="utf-8")


def _check_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: a file; choose another name for the folder")
    inside = list(folder.iterdir())
    if inside and not ((folder / CONFIG).is_file() and all(path.is_file() for path in inside)):
        raise UserError(f"{folder}: holds more than a model folder does; choose another, or empty it first")


def _is_as_saved(model: Model, home: Path) -> bool:
    """Whether the model still has the weights of its folder: scores are true of no others."""
    try:
        saved = safetensors.torch.load_file(home / WEIGHTS)
    except (OSError, safetensors.SafetensorError):
        return False
    now = unique_tensors(model)
    return now.keys() == saved.keys() and all(torch.equal(now[name].cpu(), saved[name]) for name in saved)


def _carry(home: Path, fresh: Path) -> None:
    """What a folder, or the run round it, says of its model, as files of the new folder."""
    known = {SCORES: home / SCORES, FINGERPRINTS: find_fingerprints(home)}
    for name, path in known.items():
        if path.is_file():
            shutil.copyfile(path, fresh / name)
