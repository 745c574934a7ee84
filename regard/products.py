"""Products of vectors with weights. Every model's go through `linear`, so that decoding may do them its own way."""

from __future__ import annotations

import platform
import threading
from types import TracebackType

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, with packed weights where this thread has some in use."""
    packed = None if torch.compiler.is_compiling() else _in_use.packed
    return F.linear(x, weight, bias) if packed is None else packed.linear(x, weight, bias)


class PackedWeights:
    """While entered, products of float32 vectors with weights on an x86 CPU use a copy of the weight made for that.

    Otherwise the weight is brought into the processor's favourite order in every product, which for the few rows of a
    decoding step costs more than the product itself: with one packed copy steps are up to twice as fast.
    """

    available = (
        platform.machine() in ("x86_64", "AMD64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # not a public operation, so perhaps not for ever
    )

    def __init__(self) -> None:
        # By address and shape: the weight, a sample of its numbers when it was packed, and the packed copy. Holding
        # the weight keeps its address from being given to another.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, Tensor, Tensor]] = {}
        self._outer: list[PackedWeights | None] = []

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
            place: (weight, sample, packed)
            for place, (weight, sample, packed) in self._copies.items()
            if torch.equal(_sample(weight), sample)
        }

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, from the packed copy where one can be had."""
        if not self._fits(x, weight):
            return F.linear(x, weight, bias)
        place = (weight.data_ptr(), weight.shape)
        if place not in self._copies:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            self._copies[place] = (weight, _sample(weight).clone(), packed)
        rows = x.reshape(-1, x.shape[-1])
        size = _roomy(len(rows))
        padded = rows if size == len(rows) else F.pad(rows, (0, 0, 0, size - len(rows)))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(padded, self._copies[place][2], bias, "none", [], "")
        return y[: len(rows)].view(*x.shape[:-1], len(weight))

    def _fits(self, x: Tensor, weight: Tensor) -> bool:
        plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
        return self.available and plain and not weight.is_inference() and not torch.is_grad_enabled()


class _InUse(threading.local):
    packed: PackedWeights | None = None


_in_use = _InUse()


def _roomy(rows: int) -> int:
    """So many rows or up to a quarter more: four numbers between one power of two and the next.

    The library keeps something for every number of rows that it meets, which over a long file would fill the memory.
    """
    step = max(4, (1 << (rows - 1).bit_length()) // 8)
    return rows if rows <= 1 else -(-rows // step) * step


def _sample(weight: Tensor) -> Tensor:
    """A few hundred numbers from all over the weight; an optimiser's step changes nearly every one."""
    return weight.detach().flatten()[:: max(1, weight.numel() // 512)]
