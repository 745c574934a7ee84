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
        self._model, self._pairs = model, _pair(self.module, model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Takes the present weights in; what learns in the forward pass itself is taken as it is."""
        share = 1 - self.decay if self.decay else 1 / (self.updates + 1)
        if model is not self._model:
            self._model, self._pairs = model, _pair(self.module, model)
        ours, theirs, buffers = self._pairs
        if self.updates:
            torch._foreach_lerp_(ours, theirs, share)
        else:
            _copy(ours, theirs)
        for copy, original, name in buffers:
            _take_buffer(copy, original, name)
        self.updates += 1


Pairs = tuple[list[Tensor], list[Tensor], list[tuple[nn.Module, nn.Module, str]]]


def _pair(copy: nn.Module, model: nn.Module) -> Pairs:
    """The weights of both, and where both keep buffers: looked for once, since that takes a host longer than a step."""
    modules = zip(copy.modules(), model.modules(), strict=True)
    buffers = [(ours, theirs, name) for ours, theirs in modules for name, _ in theirs.named_buffers(recurse=False)]
    return _detached(copy), _detached(model), buffers


def _detached(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def _copy(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """One by one, as weights that are divided among processes want it."""
    for our, their in zip(ours, theirs, strict=True):
        our.copy_(their)


def _take_buffer(copy: nn.Module, model: nn.Module, name: str) -> None:
    """A copy gets new room for a table that has grown since it was made, such as that of the positions.

    So it does where its own has grown in inference mode, after which nothing may be written there.
    """
    ours, theirs = copy.get_buffer(name), model.get_buffer(name)
    if ours.shape == theirs.shape and not ours.is_inference():
        ours.copy_(theirs)
    else:
        setattr(copy, name, theirs.clone())
