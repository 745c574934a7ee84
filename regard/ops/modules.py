"""The parts of a model, for whoever asks at every call and must not wait for the answer."""

from __future__ import annotations

from torch import Tensor, nn


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Every module, the model itself first; one that several others hold comes as often.

    `modules()` looks out for those, and takes ten times as long.
    """
    found = [model]
    for module in found:  # which grows meanwhile
        if held := module._modules:
            found += [part for part in held.values() if part is not None]
    return found


def list_tensors(model: nn.Module) -> list[Tensor]:
    """Every parameter and buffer; one that several modules hold comes as often."""
    found: list[Tensor | None] = []
    for module in list_modules(model):
        found += module._parameters.values()
        found += module._buffers.values()
    return [tensor for tensor in found if tensor is not None]
