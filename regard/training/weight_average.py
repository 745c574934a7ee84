"""An average of a model's weights during training: a running mean or an exponential moving average."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class WeightAverage:
    """A copy of a model that holds averaged weights. Updates do not synchronise with the device.

    torch's AveragedModel copies its update count to the device at every update, which does synchronise. A decay of 0
    selects the mean of all updates.
    """

    def __init__(self, model: nn.Module, decay: float = 0.0) -> None:
        self.module, self.decay, self.updates = deepcopy(model), decay, 0
        self._model, self._pairs = model, _pair(self.module, model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the current weights to the average. Buffers are copied."""
        weight = 1 - self.decay if self.decay else 1 / (self.updates + 1)
        if model is not self._model:
            self._model, self._pairs = model, _pair(self.module, model)
        averages, current, buffers = self._pairs
        if self.updates:
            torch._foreach_lerp_(averages, current, weight)
        else:
            for average, parameter in zip(averages, current, strict=True):  # foreach does not take sharded tensors
                average.copy_(parameter)
        for copy, original, name in buffers:
            _copy_buffer(copy, original, name)
        self.updates += 1


Pairs = tuple[list[Tensor], list[Tensor], list[tuple[nn.Module, nn.Module, str]]]


def _pair(copy: nn.Module, model: nn.Module) -> Pairs:
    """Parameters of both models, and the modules with buffers. Done once: traversing modules is slower than a step."""
    modules = zip(copy.modules(), model.modules(), strict=True)
    buffers = [(ours, theirs, name) for ours, theirs in modules for name, _ in theirs.named_buffers(recurse=False)]
    return _detached(copy), _detached(model), buffers


def _detached(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def _copy_buffer(copy: nn.Module, model: nn.Module, name: str) -> None:
    """Copy a buffer, reallocating it if it has grown (position tables) or was created in inference mode."""
    ours, theirs = copy.get_buffer(name), model.get_buffer(name)
    if ours.shape == theirs.shape and not ours.is_inference():
        ours.copy_(theirs)
    else:
        setattr(copy, name, theirs.clone())
