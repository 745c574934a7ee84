"""Weights in the order that the processor likes best, for the small products of decoding on a CPU."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PackedWeights(TorchFunctionMode):
    """While active, products of float32 vectors with weights on an x86 CPU use a copy of the weight made for that.

    Otherwise the weight is brought into the processor's favourite order in every product, which for the few rows of a
    decoding step costs more than the product itself: with one packed copy steps are up to twice as fast.
    """

    available = (
        platform.machine() in ("x86_64", "AMD64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # not a public operation, so perhaps not for ever
    )

    def __init__(self) -> None:
        super().__init__()
        # By address and shape: the weight, a sample of its numbers when it was packed, and the packed copy. Holding
        # the weight keeps its address from being given to another.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, Tensor, Tensor]] = {}

    def refresh(self) -> None:
        """Forgets the copies of weights that have changed since.

        A weight's version would say so more cheaply, but fused optimisers and `.data` do not raise it.
        """
        self._copies = {
            place: (weight, sample, packed)
            for place, (weight, sample, packed) in self._copies.items()
            if torch.equal(_sample(weight), sample)
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and self._fits(*args):
            return self._linear(*args)
        return func(*args, **(kwargs or {}))

    def _fits(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
        return self.available and plain and not weight.is_inference() and not torch.is_grad_enabled()

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        place = (weight.data_ptr(), weight.shape)
        if place not in self._copies:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            self._copies[place] = (weight, _sample(weight).clone(), packed)
        packed = self._copies[place][2]
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return y


def _sample(weight: Tensor) -> Tensor:
    """A few hundred numbers from all over the weight; an optimiser's step changes nearly every one."""
    return weight.detach().flatten()[:: max(1, weight.numel() // 512)]
