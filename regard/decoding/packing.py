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
        # By address and shape: the weight, its version when it was packed, and the packed copy. Holding the weight
        # keeps its address from being given to another.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, int, Tensor]] = {}

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
        _, version, packed = self._copies.get(place, (None, -1, None))
        if packed is None or version != weight._version:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            self._copies[place] = (weight, weight._version, packed)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return y
