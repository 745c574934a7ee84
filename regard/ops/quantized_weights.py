"""Weights packed for products that learn nothing, on a CPU."""

from __future__ import annotations

import threading
from types import TracebackType

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.quantization import Precision, Product, pack, supports

WORTH = 1 << 17
"""Numbers in a weight above which a packed copy in single precision pays: its product takes 15 µs to begin with."""


def packed_in_use() -> PackedWeights | None:
    """Those of this thread."""
    return _in_use.packed


class PackedWeights:
    """While entered, products of float32 vectors with weights on a CPU use a copy of the weight made for that.

    Otherwise the weight is brought into the processor's favourite order in every product, which for the few rows of a
    decoding step costs more than the product itself: with one packed copy steps are up to twice as fast, and with one
    in smaller numbers faster still.
    """

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision, self._available = precision, supports(precision)
        self._outer: list[PackedWeights | None] = []
        # By address and shape: the weight, a sample of its numbers when it was packed, and the product with its copy.
        # Holding the weight keeps its address from being given to another.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, Tensor, Product]] = {}

    def __enter__(self) -> None:
        self._outer.append(_in_use.packed)
        _in_use.packed = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_use.packed = self._outer.pop()

    def refresh(self) -> None:
        """Forgets the copies of weights that have changed since.

        A weight's version would say so more cheaply, but fused optimisers and `.data` do not raise it.
        """
        self._copies = {
            place: (weight, sample, product)
            for place, (weight, sample, product) in self._copies.items()
            if torch.equal(_sample(weight), sample)
        }

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, from the packed copy where one can be had."""
        if not self._fits(x, weight):
            return F.linear(x, weight, bias)
        place = (weight.data_ptr(), weight.shape)
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = (weight, _sample(weight).clone(), pack(weight, self.precision))
        y = copy[2](x.reshape(-1, x.shape[-1]), bias)
        return y.view(*x.shape[:-1], weight.shape[0])

    def _fits(self, x: Tensor, weight: Tensor) -> bool:
        plain = x.device.type == "cpu" and x.dtype == torch.float32
        return plain and self.has_copy_of(weight) and not torch.is_grad_enabled()

    def has_copy_of(self, weight: Tensor) -> bool:
        """Whether products with this weight are made with a copy, where nothing is learned."""
        large = self.precision != "float32" or weight.numel() > WORTH
        plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.is_inference()
        return self._available and large and plain


class _InUse(threading.local):
    packed: PackedWeights | None = None


_in_use = _InUse()


def _sample(weight: Tensor) -> Tensor:
    """A few hundred numbers from all over the weight; an optimiser's step changes nearly every one."""
    return weight.detach().flatten()[:: max(1, weight.numel() // 512)]
