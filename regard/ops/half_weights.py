"""Weights in half precision for products that learn, all rounded at once."""

from __future__ import annotations

import threading
from types import TracebackType

import torch
from torch import Tensor, nn


def round_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in this precision: rounded already, where this thread has those of its model in use."""
    rounded = _in_use.rounded
    return weight.to(dtype) if rounded is None else rounded.find(weight, dtype)


class RoundedWeights:
    """While entered, products of this model that learn find their weights in half precision, all rounded at once.

    Hundreds of small weights, each rounded where it is needed, take longer to launch than to round.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._places: dict[int, Tensor] = {}

    def __enter__(self) -> None:
        if not self._weights:
            self._set_up()
        if self._weights:
            torch._foreach_copy_(self._copies, self._weights)
        _in_use.rounded = self

    def _set_up(self) -> None:
        modules = [module for module in self._model.modules() if isinstance(module, nn.Linear)]
        self._weights = [part.detach() for module in modules for part in module.parameters()]
        self._copies = [
            torch.empty_like(part, dtype=torch.get_autocast_dtype(part.device.type)) for part in self._weights
        ]
        self._places = {part.data_ptr(): copy for part, copy in zip(self._weights, self._copies, strict=True)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_use.rounded = None

    def find(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A weight, or a part of one, in half precision; one that is not of this model is rounded now."""
        whole = weight if weight._base is None else weight._base
        copy = self._places.get(whole.data_ptr())
        if copy is None or copy.dtype != dtype or copy.shape != whole.shape:
            return weight.to(dtype)
        return copy.as_strided(weight.shape, weight.stride(), weight.storage_offset() - whole.storage_offset())


class _InUse(threading.local):
    rounded: RoundedWeights | None = None


_in_use = _InUse()
