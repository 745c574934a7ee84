"""Weights brought into the order, and into the numbers, in which a CPU multiplies fastest with them.

Shapes: N rows of vectors, K their width, M rows of the weight, (M, K).
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError

Precision = Literal["float32", "bfloat16", "float16", "int8"]
PLACES: dict[Precision, tuple[str, ...]] = {
    "float32": ("cpu", "cuda", "mps"),
    "bfloat16": ("cpu", "cuda"),
    "float16": ("cuda",),
    "int8": ("cpu",),
}
"""The types of devices on which our own engine translates in such numbers."""
_NAMES = {"cpu": "a CPU", "cuda": "a GPU"}
Product = Callable[[Tensor, Tensor | None], Tensor]
"""Takes vectors, (N, K), and a bias, (M,); gives their products with a weight, (N, M), all in float32."""

_INTEL = platform.machine() in ("x86_64", "AMD64")
_ONEDNN = (
    _INTEL
    and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # not a public operation, so perhaps not for ever
)
_FBGEMM = (
    _INTEL
    and "fbgemm" in torch.backends.quantized.supported_engines
    and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
)
# Without these instructions pairs of products are added up in 16 bits, which two of 127 · 127 fill.
_STEPS = 127 if _FBGEMM and torch.cpu._is_vnni_supported() else 63


def supports(precision: Precision) -> bool:
    """Whether this machine has packed products in such numbers."""
    return {"int8": _FBGEMM, "float16": False}.get(precision, _ONEDNN)


def pack(weight: Tensor, precision: Precision) -> Product:
    """The product with a copy of a float32 weight, (M, K)."""
    return _PACKERS[precision](weight.detach())


def _pack_float32(weight: Tensor) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def multiply(rows: Tensor, bias: Tensor | None) -> Tensor:
        return _multiply(rows, packed, bias)

    return multiply


def _pack_bfloat16(weight: Tensor) -> Product:
    """Vectors, weight and products are rounded to 8 binary digits; sums are made in float32."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), None)

    def multiply(rows: Tensor, bias: Tensor | None) -> Tensor:
        y = _multiply(rows.bfloat16(), packed, None).float()
        return y if bias is None else y.add_(bias)

    return multiply


def _pack_int8(weight: Tensor) -> Product:
    """Each row of the weight, and each vector as it comes, becomes whole numbers times a scale of its own.

    A scale for all vectors together would be a little faster, but then a sentence would translate otherwise in other
    company. Sums are exact.
    """
    packed, product = _quantise(weight), torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def multiply(rows: Tensor, bias: Tensor | None) -> Tensor:
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=_TINY)  # vector_norm is ten times as slow
        y: Tensor = product(rows / largest, 1 / _STEPS, _STEPS + 1, packed)
        return y.mul_(largest) if bias is None else torch.addcmul(bias, y, largest, out=y)

    return multiply


FEW = 16
"""Rows that are multiplied as they are, however many."""
_TINY = torch.finfo(torch.float32).tiny
_PACKERS: dict[Precision, Callable[[Tensor], Product]] = {
    "float32": _pack_float32,
    "bfloat16": _pack_bfloat16,
    "int8": _pack_int8,
}


def _quantise(weight: Tensor) -> Any:
    scales = (weight.abs().amax(1) / 127).clamp(min=_TINY)
    steps = (weight / scales[:, None]).round().to(torch.int8)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of tensors that a later PyTorch will do without
        quantised = torch._make_per_channel_quantized_tensor(steps, scales.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(quantised, None)


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    size = _roomy(len(rows))
    padded = rows if size == len(rows) else F.pad(rows, (0, 0, 0, size - len(rows)))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(padded, packed, bias, "none", [], "")
    return y[: len(rows)]


def _roomy(rows: int) -> int:
    """So many rows or up to a quarter more: a few as they are, then four numbers between one power of two and the next.

    The library keeps something for every number of rows that it meets, which over a long file would fill the memory.
    But to fill up the few rows of a single sentence takes as long as to multiply them.
    """
    step = (1 << (rows - 1).bit_length()) // 8
    return rows if rows <= FEW else -(-rows // step) * step


def choose_precision(name: str | None, device: torch.device) -> Precision:
    """The numbers of our own engine.

    Raises:
        UserError: it has no such numbers, or not here.
    """
    if name is None or name == "float32":
        return "float32"
    precision = next((one for one in PLACES if one == name), None)
    if precision is None:
        raise UserError(f"precision: {name!r} is none of {', '.join(PLACES)}, in which the engine regard computes")
    if device.type not in PLACES[precision]:
        where = " and ".join(_NAMES[place] for place in PLACES[precision])
        raise UserError(
            f"precision {name} is for {where}, and the device is {device.type}; "
            "choose another device, or leave precision away"
        )
    if device.type == "cpu" and not supports(precision):
        raise UserError(f"precision {name}: this processor, or this build of PyTorch, lacks what it needs; use float32")
    return precision
