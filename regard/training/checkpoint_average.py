"""Average the weights of several models or of the last checkpoints of a run, as in "Attention Is All You Need"."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.folder import find_model_folder, replace_folder, unique_tensors
from regard.pipelines.translator import Translator
from regard.training.checkpoint import load_checkpoints
from regard.training.metrics_log import CHECKPOINTS
from regard.training.state import model_tensors


def average_models(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write the mean weights of several models, or of all checkpoints of one run; return the folders averaged."""
    if out.exists():
        raise UserError(f"{out}: already exists; choose another --out, or remove it first")
    if len(paths) == 1 and (paths[0] / CHECKPOINTS).is_dir():
        return _average_run(paths[0], out)
    folders = [find_model_folder(path) for path in paths]
    if len(paths) == 1:
        raise UserError(f"{paths[0]}: a single model cannot be averaged; give several, or a run with checkpoints")
    first = Translator.load(folders[0])
    _save(first, _weights(first, folders), out)
    return folders


def _weights(first: Translator, folders: Sequence[Path]) -> Iterator[dict[str, Tensor]]:
    """The weights of all models; every model must have the same tokenizer and configuration as the first."""
    yield unique_tensors(first.model)
    for folder in folders[1:]:
        other = Translator.load(folder)
        for what, same in (
            ("tokenizer", other.vocabularies.fingerprint() == first.vocabularies.fingerprint()),
            ("config.json", other.model.config == first.model.config),
        ):
            if not same:
                raise UserError(f"{folder}: its {what} differs from that of {folders[0]}; averages need the same")
        yield unique_tensors(other.model)


def _average_run(run: Path, out: Path) -> list[Path]:
    checkpoints = load_checkpoints(run / CHECKPOINTS)
    if len(checkpoints) < 2:
        raise UserError(
            f"{run / CHECKPOINTS}: fewer than two checkpoints to average; train with a higher training.keep_checkpoints"
        )
    translator = Translator.load(find_model_folder(run))
    _save(translator, (model_tensors(checkpoint.tensors()) for checkpoint in checkpoints), out)
    return [checkpoint.path for checkpoint in checkpoints]


def _save(translator: Translator, models: Iterable[dict[str, Tensor]], out: Path) -> None:
    """Write the translator with the mean of the weights, summed in float64."""
    sums: dict[str, Tensor] = {}
    number = 0
    for tensors in models:
        number += 1
        for name, tensor in tensors.items():
            sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    own = unique_tensors(translator.model)
    for name, total in sums.items():
        own[name].copy_(total / number)
    with replace_folder(out) as folder:
        translator.save(folder)
