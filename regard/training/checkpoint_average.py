"""One model out of several: the mean of their weights, as the paper takes it over its last checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.folder import distinct_tensors, find_model, replacing
from regard.pipelines.translator import Translator
from regard.training.checkpoint import load_checkpoints
from regard.training.metrics_log import CHECKPOINTS
from regard.training.state import model_tensors


def average_models(paths: Sequence[Path], out: Path) -> list[Path]:
    """Writes a model folder with the mean weights of several models, or of the checkpoints that one run has kept.

    Returns:
        The folders that went into it.

    Raises:
        UserError: there is only one, they do not belong together, or `out` exists already.
    """
    if out.exists():
        raise UserError(f"{out}: already exists; choose another --out, or remove it first")
    if len(paths) == 1 and (paths[0] / CHECKPOINTS).is_dir():
        return _average_run(paths[0], out)
    if len(paths) == 1:
        raise UserError(f"{paths[0]}: one model has no average; give several, or a run with checkpoints")
    folders = [find_model(path) for path in paths]
    first = Translator.load(folders[0])
    _save(first, _weights(first, folders), out)
    return folders


def _weights(first: Translator, folders: Sequence[Path]) -> Iterator[dict[str, Tensor]]:
    """Those of every model, the first of which is loaded already; each must be of the same make as that one."""
    yield distinct_tensors(first.model)
    for folder in folders[1:]:
        other = Translator.load(folder)
        for what, same in (
            ("tokenizer", other.vocabularies.fingerprint() == first.vocabularies.fingerprint()),
            ("config.json", other.model.config == first.model.config),
        ):
            if not same:
                raise UserError(f"{folder}: its {what} differs from that of {folders[0]}; an average needs one for all")
        yield distinct_tensors(other.model)


def _average_run(run: Path, out: Path) -> list[Path]:
    checkpoints = load_checkpoints(run / CHECKPOINTS)
    if len(checkpoints) < 2:
        raise UserError(
            f"{run / CHECKPOINTS}: fewer than two checkpoints, so there is no average; "
            "train with a higher training.keep_checkpoints"
        )
    translator = Translator.load(find_model(run))
    _save(translator, (model_tensors(checkpoint.tensors()) for checkpoint in checkpoints), out)
    return [checkpoint.path for checkpoint in checkpoints]


def _save(translator: Translator, models: Iterable[dict[str, Tensor]], out: Path) -> None:
    """Writes the translator with the mean of these weights, summed in double precision."""
    sums: dict[str, Tensor] = {}
    number = 0
    for tensors in models:
        number += 1
        for name, tensor in tensors.items():
            sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    own = distinct_tensors(translator.model)
    for name, total in sums.items():
        own[name].copy_(total / number)
    with replacing(out) as folder:
        translator.save(folder)
