"""Weights of one model as the beginning of another: tensors copied by name, and vocabularies that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.models.transformer import EncoderDecoder

Model = TypeVar("Model", bound=EncoderDecoder)

ENCODER = ("source_embedding.", "encoder.", "encoder_norm.")
"""How the names of an encoder's tensors begin, in every model that has one."""

NOISE = 0.01
"""Of the spread of a table's rows: enough that two new words of the same letters do not stay alike."""


@torch.no_grad()
def copy_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], where: str, beginnings: Sequence[str] = ("",)
) -> None:
    """Copies tensors into the model by name, all or those whose names begin so; the model's others stay as they are.

    Models of different classes fit where their tensors bear the same names.

    Raises:
        UserError: a tensor with such a name is missing on either side, or has another shape; nothing is copied then.
    """
    meant = tuple(beginnings)
    own = {name: tensor for name, tensor in unique_tensors(model).items() if name.startswith(meant)}
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(meant)}
    for name in sorted(own.keys() | given.keys()):
        if name not in given:
            raise UserError(f"{where} has no tensor {name}, which this model needs; they are built differently")
        if name not in own:
            raise UserError(f"{where} has a tensor {name}, which this model lacks; they are built differently")
        if own[name].shape != given[name].shape:
            raise UserError(
                f"tensor {name} is {list(given[name].shape)} in {where}, but {list(own[name].shape)} in this model"
            )
    state = model.state_dict()
    for name in own:
        state[name].copy_(given[name])


@torch.no_grad()
def grow_vocabulary(
    model: Model, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], seed: int = 0
) -> Model:
    """A copy of the model with more words, which says of the old ones what it said before.

    Args:
        model: what is copied; it stays as it is.
        source: for every new source word, the old words that spelled it: its row begins as the mean of theirs.
        target: the same for new target words; where both sides share one table, `source` counts for both.
        seed: of the small noise on new rows.
    """
    config = model.config
    if config.tie == "all":
        target = source
    sizes = {"source_vocab": config.source_vocab + len(source), "target_vocab": config.target_vocab + len(target)}
    with torch.random.fork_rng(devices=[]):  # the first weights of the copy are thrown away
        grown = type(model)(config.changed(**sizes)).to(model.target_embedding.weight)
    random = torch.Generator().manual_seed(seed)
    spelled = {"source_embedding.weight": source, "target_embedding.weight": target}
    spelled |= {"output": target, "output_bias": target}
    tensors = unique_tensors(model)
    for name, pieces in spelled.items():
        if name in tensors:  # a table that is shared has only its first name
            tensors[name] = torch.cat([tensors[name], *_new_rows(tensors[name], pieces, random)])
    copy_tensors(grown, tensors, "the grown model")
    return grown.train(model.training)


def _new_rows(table: Tensor, spelled: Sequence[Sequence[int]], random: torch.Generator) -> list[Tensor]:
    spread = NOISE * table.std()
    noise = torch.randn(len(spelled), *table.shape[1:], generator=random).to(table)
    return [
        table[torch.tensor(pieces, device=table.device)].mean(0, keepdim=True) + spread * noise[None, row]
        for row, pieces in enumerate(spelled)
    ]
