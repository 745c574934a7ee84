"""The mean of a model's weights over its training, or a moving average of them, kept beside it."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


class Average:
    """A copy of a model whose weights are an average; nothing that it does waits for the device.

    That is why it is not torch's AveragedModel, which brings its count to the device at every update.

    Args:
        model: whose weights are averaged; until the first update they are just these.
        decay: of the moving average; where it is 0, the average is a mean.
    """

    def __init__(self, model: nn.Module, decay: float = 0.0) -> None:
        self.module, self.decay, self.updates = deepcopy(model), decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Takes the present weights in; what learns in the forward pass itself is taken as it is."""
        share = 1 - self.decay if self.decay else 1 / (self.updates + 1)
        ours, theirs = _detached(self.module), _detached(model)
        if self.updates:
            torch._foreach_lerp_(ours, theirs, share)
        else:
            _copy(ours, theirs)
        _fit_buffers(self.module, model)
        _copy(list(self.module.buffers()), list(model.buffers()))
        self.updates += 1


def _copy(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """One by one, as weights that are divided among processes want it."""
    for our, their in zip(ours, theirs, strict=True):
        our.copy_(their)


def _detached(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def _fit_buffers(copy: nn.Module, model: nn.Module) -> None:
    """Gives a copy room for tables that have grown since it was made, such as that of the positions."""
    for ours, theirs in zip(copy.modules(), model.modules(), strict=True):
        for name, buffer in theirs.named_buffers(recurse=False):
            if ours.get_buffer(name).shape != buffer.shape:
                setattr(ours, name, torch.empty_like(buffer))
