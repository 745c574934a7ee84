"""Initialise a model with the weights of another one, and extend its vocabulary."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.models.transformer import EncoderDecoder

Model = TypeVar("Model", bound=EncoderDecoder)

ENCODER = ("source_embedding.", "encoder.", "encoder_norm.")
"""Prefixes of the names of all tensors of an encoder."""
NOISE = 0.01
"""Noise on new embeddings relative to the standard deviation of all, so that equal ones can become different."""


@torch.no_grad()
def copy_tensors(model: nn.Module, tensors: Mapping[str, Tensor], where: str, prefixes: Sequence[str] = ("",)) -> None:
    """Copy the tensors whose names have one of the prefixes into a model; all tensors by default.

    The model may be of another class than that of the tensors if the names are the same. Errors state their origin,
    `where`.
    """
    own = {name: tensor for name, tensor in unique_tensors(model).items() if name.startswith(tuple(prefixes))}
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(tuple(prefixes))}
    for name in sorted(own.keys() | given.keys()):
        if name not in given:
            raise UserError(f"{where} lacks tensor {name} of this model; their architectures differ")
        if name not in own:
            raise UserError(f"{where} has a tensor {name}, which this model lacks; their architectures differ")
        if own[name].shape != given[name].shape:
            raise UserError(
                f"tensor {name} has shape {list(given[name].shape)} in {where}, "
                f"but {list(own[name].shape)} in this model"
            )
    state = model.state_dict()
    for name in own:
        state[name].copy_(given[name])


@torch.no_grad()
def grow_vocabulary(
    model: Model, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], seed: int = 0
) -> Model:
    """Return a copy of a model with additional tokens. The logits of the old tokens do not change.

    Args:
        model: The model.
        source: For every new source token, the old tokens it consists of; its embedding is the mean of theirs.
        target: The same for new target tokens. Ignored if source and target share one embedding.
        seed: Seed of the noise on new embeddings.
    """
    config = model.config
    if config.tie == "all":
        target = source
    sizes = {"source_vocab": config.source_vocab + len(source), "target_vocab": config.target_vocab + len(target)}
    with torch.random.fork_rng(devices=[]):  # the initial weights of the copy are overwritten
        grown = type(model)(config.changed(**sizes)).to(model.target_embedding.weight)
    generator = torch.Generator().manual_seed(seed)
    new_tokens = {"source_embedding.weight": source, "target_embedding.weight": target}
    new_tokens |= {"output": target, "output_bias": target}
    tensors = unique_tensors(model)
    for name, parts in new_tokens.items():
        if name in tensors:  # a shared tensor has its first name only
            tensors[name] = torch.cat([tensors[name], *_new_rows(tensors[name], parts, generator)])
    copy_tensors(grown, tensors, "the grown model")
    return grown.train(model.training)


def _new_rows(table: Tensor, parts: Sequence[Sequence[int]], generator: torch.Generator) -> list[Tensor]:
    noise = NOISE * table.std() * torch.randn(len(parts), *table.shape[1:], generator=generator).to(table)
    return [
        table[torch.tensor(tokens, device=table.device)].mean(0, keepdim=True) + noise[None, row]
        for row, tokens in enumerate(parts)
    ]
