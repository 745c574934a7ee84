"""Linear layers, alone and with an activation, and prepacked or quantised weights.

Two implementations replace `F.linear` where they apply: `regard.ops.linear_backward` for training on a GPU under
autocast, which does not round the gradients of weights to half precision; and weights prepacked by `prepack` for
inference on a CPU.

Shapes: N rows, I input features, O output features.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.ops import dispatch
from regard.ops.dispatch import list_modules
from regard.ops.linear_backward import WeightAndBias, compiled_linear_relu, mixed_precision_linear


class Linear(nn.Linear):
    """`nn.Linear` with optional copies of its parameters that speed up training or inference.

    Attributes:
        half_copy: Weight and bias in half precision. `HalfWeights` sets it during a training step.
        prepacked: Weights prepacked for inference on a CPU. `prepack` sets it.
    """

    half_copy: WeightAndBias | None = None
    prepacked: PrepackedWeights | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.half_copy, self.prepacked)

    def split(self, sizes: Sequence[int]) -> list[LinearSlice]:
        """Return layers for consecutive groups of output features. All share the parameters of this layer."""
        groups = zip(_split((self.weight, self.bias), sizes), _split(self.half_copy, sizes), strict=True)
        return [LinearSlice(weight, bias, half, self.prepacked) for (weight, bias), half in groups]  # type: ignore[misc]

    def extra_repr(self) -> str:
        prepacked = "" if self.prepacked is None else f", prepacked={self.prepacked.precision}"
        return super().extra_repr() + prepacked


class LinearSlice(NamedTuple):
    """Some output features of a `Linear`, which it is called like."""

    weight: Tensor
    bias: Tensor | None
    half_copy: WeightAndBias | None
    prepacked: PrepackedWeights | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, *self)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    half_copy: WeightAndBias | None = None,
    prepacked: PrepackedWeights | None = None,
) -> Tensor:
    """Return x @ weightᵀ + bias.

    Args:
        x: Input, (..., I).
        weight: Weight, (O, I).
        bias: Bias, (O,).
        half_copy: Weight and bias in half precision; by default, they are rounded when needed.
        prepacked: Prepacked weights, used in inference.
    """
    if prepacked is not None and prepacked.applies(x, weight):
        return prepacked.linear(x, weight, bias)
    if dispatch.mixed_precision_training(x) and not torch.compiler.is_compiling():
        return mixed_precision_linear(x, weight, bias, half_copy)[0]
    return F.linear(x, weight, bias)


def linear_activation(x: Tensor, layer: Linear, activation: Literal["relu", "gelu", "silu"]) -> Tensor:
    """Return activation(layer(x)), (..., O)."""
    parameters = layer.weight, layer.bias, layer.half_copy
    if activation != "silu" and dispatch.mixed_precision_training(x):
        if not torch.compiler.is_compiling():
            return mixed_precision_linear(x, *parameters, activation)[0]
        if activation == "relu":
            return compiled_linear_relu(x, layer.weight, layer.bias)
    y = linear(x, *parameters, layer.prepacked)
    if activation == "relu":
        return F.relu_(y)
    return F.gelu(y) if activation == "gelu" else F.silu(y)


def _split(parameters: WeightAndBias | None, sizes: Sequence[int]) -> list[WeightAndBias] | list[None]:
    """Split weight and bias by output features; autograd joins the gradients of a split by one operation."""
    if parameters is None:
        return [None] * len(sizes)
    weight, bias = parameters
    biases = [None] * len(sizes) if bias is None else bias.split_with_sizes(list(sizes))
    return list(zip(weight.split_with_sizes(list(sizes)), biases, strict=True))


class HalfWeights:
    """Half-precision copies of the parameters of all linear layers of a model, for training on a GPU under autocast.

    As a context manager, it rounds all parameters by one operation and sets `Linear.half_copy` for a forward pass.
    Rounding each weight where it is used would launch hundreds of small kernels.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: list[tuple[Linear, WeightAndBias]] = []
        self._parameters: list[Tensor] = []
        self._copies: list[Tensor] = []

    def __enter__(self) -> None:
        if not self._layers:
            self._allocate()
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._parameters)
        for layer, half in self._layers:
            layer.half_copy = half

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for layer, _ in self._layers:
            layer.half_copy = None

    def _allocate(self) -> None:
        for layer in self._model.modules():
            if isinstance(layer, Linear):
                parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
                dtype = torch.get_autocast_dtype(layer.weight.device.type)
                copies = [torch.empty_like(parameter, dtype=dtype).detach() for parameter in parameters]
                self._layers.append((layer, (copies[0], None if layer.bias is None else copies[1])))
                self._parameters += parameters
                self._copies += copies


# Prepacked and quantised weights for inference on a CPU
#
# oneDNN and FBGEMM reorder a weight before they multiply with it. For the few rows of a decoding step that takes longer
# than the matmul itself, so `prepack` gives a model reordered copies of its weights, optionally in bfloat16 or int8.

Precision = Literal["float32", "bfloat16", "float16", "int8"]
DEVICES: dict[Precision, tuple[str, ...]] = {
    "float32": ("cpu", "cuda", "mps"),
    "bfloat16": ("cpu", "cuda"),
    "float16": ("cuda",),
    "int8": ("cpu",),
}
"""Device types on which regard's own engine supports a precision."""
PackedLinear = Callable[[Tensor, Tensor | None], Tensor]
"""Maps float32 rows, (N, I), and a bias, (O,), to float32 rows, (N, O), by a packed weight."""
MIN_FLOAT32_SIZE = 2**17
"""Elements of a weight above which prepacking pays in float32: a prepacked matmul takes 15 µs to start."""
MAX_SINGLE_ROW_SIZE = 2**20
"""Elements of a weight up to which the plain matmul is faster than the prepacked one for a single row in float32."""
MAX_UNPADDED_ROWS = 16
TINY = torch.finfo(torch.float32).tiny

_X86 = platform.machine() in ("x86_64", "AMD64")
_HAS_ONEDNN = (
    _X86
    and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # not a public operation
)
_HAS_FBGEMM = (
    _X86
    and "fbgemm" in torch.backends.quantized.supported_engines
    and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
)
# Without VNNI instructions, pairs of products are summed in 16 bits, which two products of 127 · 127 would overflow.
_MAX_INT8_INPUT = 127 if _HAS_FBGEMM and torch.cpu._is_vnni_supported() else 63


def supports(precision: Precision) -> bool:
    """Return whether this CPU and this build of PyTorch support prepacked weights in a precision."""
    return {"int8": _HAS_FBGEMM, "float16": False}.get(precision, _HAS_ONEDNN)


def choose_precision(name: str | None, device: torch.device) -> Precision:
    """Return the precision of inference with regard's own engine; float32 by default."""
    if name is None or name == "float32":
        return "float32"
    precision = next((known for known in DEVICES if known == name), None)
    if precision is None:
        raise UserError(f"precision: {name!r} is not one of {', '.join(DEVICES)}, which the engine regard supports")
    if device.type not in DEVICES[precision]:
        supported = " and ".join({"cpu": "a CPU", "cuda": "a GPU"}[name] for name in DEVICES[precision])
        raise UserError(
            f"precision {name} is for {supported}, but the device is {device.type}; "
            "choose another device, or omit precision"
        )
    if device.type == "cpu" and not supports(precision):
        raise UserError(f"precision {name}: this CPU or this build of PyTorch does not support it; use float32")
    return precision


# Prepacked weights of a model


def prepack(model: nn.Module, precision: Precision = "float32") -> None:
    """Make all linear layers of a model use prepacked weights for inference on a CPU.

    Copies are made when they are first used. If the weights change, call `refresh_prepacked`.
    """
    _attach(model, PrepackedWeights(precision))


def refresh_prepacked(model: nn.Module) -> None:
    """Discard prepacked copies of weights that have changed since they were made."""
    weights = getattr(model, "prepacked", None)
    if weights is not None:
        weights.refresh()


@contextmanager
def use_prepacked(model: nn.Module, precision: Precision = "float32") -> Iterator[None]:
    """Use prepacked weights inside the block."""
    prepack(model, precision)
    try:
        yield
    finally:
        _attach(model, None)


class PrepackedWeights:
    """Copies of weights in a precision, prepacked, which all linear layers of a model share."""

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision, self._supported = precision, supports(precision)
        self._single_row_size = MAX_SINGLE_ROW_SIZE if precision == "float32" else 0
        # By address and shape, so that slices of a weight have copies of their own: the weight, a sample of its
        # elements when it was packed, and the packed copy. Holding the weight keeps its address from being reused.
        self._copies: dict[tuple[int, torch.Size], tuple[Tensor, Tensor, PackedLinear]] = {}

    def applies(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether `linear` supports these tensors: float32 inference on a CPU, outside torch.compile."""
        if torch.is_grad_enabled() or not x.is_cpu or x.dtype != torch.float32 or torch.compiler.is_compiling():
            return False
        return self.can_pack(weight)

    def can_pack(self, weight: Tensor) -> bool:
        """Return whether a weight can be packed, and is large enough for that to pay."""
        large = self.precision != "float32" or weight.numel() > MIN_FLOAT32_SIZE
        plain = weight.is_cpu and weight.dtype == torch.float32 and not weight.is_inference()
        return self._supported and large and plain

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weightᵀ + bias, (..., I) to (..., O)."""
        if x.numel() == x.shape[-1] and weight.numel() <= self._single_row_size:
            return F.linear(x, weight, bias)
        key = (weight.data_ptr(), weight.shape)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = (weight, _sample(weight).clone(), pack(weight, self.precision))
        y = copy[2](x.reshape(-1, x.shape[-1]), bias)
        return y.view(*x.shape[:-1], weight.shape[0])

    def refresh(self) -> None:
        """Discard copies of weights that have changed.

        Tensor versions would reveal changes too, but fused optimizers and `.data` do not increment them.
        """
        self._copies = {key: copy for key, copy in self._copies.items() if torch.equal(_sample(copy[0]), copy[1])}

    def __deepcopy__(self, memo: dict[int, Any]) -> PrepackedWeights:
        memo[id(self)] = fresh = PrepackedWeights(self.precision)
        return fresh


def _attach(model: nn.Module, weights: PrepackedWeights | None) -> None:
    for module in list_modules(model):
        if module is model or hasattr(type(module), "prepacked"):
            module.prepacked = weights  # type: ignore[assignment]


def _sample(weight: Tensor) -> Tensor:
    """Return about 512 evenly spaced elements; an optimizer step changes nearly all of them."""
    return weight.detach().flatten()[:: max(1, weight.numel() // 512)]


# Packing of single weights


def pack(weight: Tensor, precision: Precision) -> PackedLinear:
    """Pack a copy of a float32 weight, (O, I)."""
    packers = {"float32": _pack_float32, "bfloat16": _pack_bfloat16, "int8": _pack_int8}
    return packers[precision](weight.detach())


def _pack_float32(weight: Tensor) -> PackedLinear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def packed_linear(x: Tensor, bias: Tensor | None) -> Tensor:
        return _onednn_linear(x, packed, bias)

    return packed_linear


def _pack_bfloat16(weight: Tensor) -> PackedLinear:
    """Inputs, weight and outputs are rounded to bfloat16; sums are computed in float32."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), None)

    def packed_linear(x: Tensor, bias: Tensor | None) -> Tensor:
        y = _onednn_linear(x.bfloat16(), packed, None).float()
        return y if bias is None else y.add_(bias)

    return packed_linear


def _pack_int8(weight: Tensor) -> PackedLinear:
    """Each row of the weight and each input row is quantised symmetrically with its own scale; sums are exact.

    One scale for all input rows would be slightly faster, but a translation would then depend on the rest of its batch.
    """
    packed = _quantise_rows(weight)
    quantised_linear = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def packed_linear(x: Tensor, bias: Tensor | None) -> Tensor:
        largest = x.abs().amax(1, keepdim=True).clamp_(min=TINY)  # vector_norm is ten times slower
        y: Tensor = quantised_linear(x / largest, 1 / _MAX_INT8_INPUT, _MAX_INT8_INPUT + 1, packed)
        return y.mul_(largest) if bias is None else torch.addcmul(bias, y, largest, out=y)

    return packed_linear


def _quantise_rows(weight: Tensor) -> Any:
    scales = (weight.abs().amax(1) / 127).clamp(min=TINY)
    integers = (weight / scales[:, None]).round().to(torch.int8)
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch announces the removal of quantised tensors
        quantised = torch._make_per_channel_quantized_tensor(integers, scales.double(), zero_points, 0)
        return torch.ops.quantized.linear_prepack(quantised, None)


def _onednn_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    rows = padded_rows(len(x))
    padded = x if rows == len(x) else F.pad(x, (0, 0, 0, rows - len(x)))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(padded, packed, bias, "none", [], "")
    return y[: len(x)]


def padded_rows(rows: int) -> int:
    """Round a number of rows up by at most a quarter, to one of four sizes per power of two.

    oneDNN caches a kernel for every number of rows, which would fill the memory over a long file. Up to 16 rows are not
    padded: padding the rows of a single sentence takes as long as the matmul.
    """
    step = (1 << (rows - 1).bit_length()) // 8
    return rows if rows <= MAX_UNPADDED_ROWS else -(-rows // step) * step
