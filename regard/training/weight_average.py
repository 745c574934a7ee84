"""An average of a model's weights during training: a running mean or an exponential moving average."""

from copy import deepcopy

import torch
from torch import nn


class WeightAverage:
    """A copy of a model that holds averages of its weights. Updates do not synchronise with the device.

    torch's AveragedModel copies its update count to the device at every update, which does synchronise. A decay of 0
    selects the mean of all updates.
    """

    def __init__(self, model: nn.Module, decay: float = 0.0) -> None:
        self.module, self.decay, self.updates = deepcopy(model), decay, 0
        # Listed once, because traversing modules takes longer than a step.
        self._averages, self._current = ([p.detach() for p in one.parameters()] for one in (self.module, model))
        pairs = zip(self.module.modules(), model.modules(), strict=True)
        self._buffers = [
            (copy, module, name) for copy, module in pairs for name, _ in module.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights of the model to the average. Buffers are copied."""
        weight = 1 - self.decay if self.decay else 1 / (self.updates + 1)
        if self.updates:
            torch._foreach_lerp_(self._averages, self._current, weight)
        else:
            for average, parameter in zip(self._averages, self._current, strict=True):
                average.copy_(parameter)  # foreach does not take sharded tensors
        for copy, module, name in self._buffers:
            _copy_buffer(copy, module, name)
        self.updates += 1


def _copy_buffer(copy: nn.Module, model: nn.Module, name: str) -> None:
    """Copy a buffer, reallocating it if it has grown (position tables) or was created in inference mode."""
    ours, theirs = copy.get_buffer(name), model.get_buffer(name)
    if ours.shape == theirs.shape and not ours.is_inference():
        ours.copy_(theirs)
    else:
        setattr(copy, name, theirs.clone())
