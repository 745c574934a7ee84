"""Tests of the kernels of linear attention, against the quadratic form in float64."""

import pytest
import torch
from torch import Tensor

from regard.attention.linear import Features, Linear
from regard.attention.masks import Mask, Padded
from regard.ops import dispatch
from regard.ops import linear_attention as linear_kernels

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H = 2


def tensors(T: int, S: int, width: int = 16, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    source = torch.Generator().manual_seed(T + S)
    inputs = [torch.randn(2, n, H, width, generator=source).transpose(1, 2) for n in (T, S, S)]
    return [x.to(DEVICE, dtype).requires_grad_() for x in inputs]


def run(kind: Linear, mask: Mask, inputs: list[Tensor]) -> list[Tensor]:
    context = kind(*inputs, mask)
    weights = torch.linspace(-1, 1, context.numel(), device=DEVICE).view(context.shape).to(context.dtype)
    return [context, *torch.autograd.grad(context, inputs, weights)]


def compare(features: Features, mask: Mask, inputs: list[Tensor], tolerance: float) -> None:
    width = inputs[0].shape[-1]
    got = run(Linear(width, features, scale=0.5, path="kernel"), mask, inputs)
    precise = [x.detach().double().requires_grad_() for x in inputs]
    expected = run(Linear(width, features, scale=0.5, path="quadratic"), mask, precise)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance * max(1.0, theirs.abs().max().item()), rtol=0)


MASKS = {
    "causal": lambda S: Mask(causal=True),
    "bidirectional": lambda S: Mask(),
    "causal, padded": lambda S: Mask(keys=Padded.of([S, 30], S, DEVICE), causal=True),
    "padded": lambda S: Mask(keys=Padded(torch.tensor([[S, 7], [0, 9]], device=DEVICE)[:, 0], S)),  # not contiguous
}


@pytest.mark.parametrize("splits", [1, 8], ids=["one split", "many splits"])
@pytest.mark.parametrize(("features", "mask"), [*(("elu", mask) for mask in MASKS), ("plain", "causal, padded")])
def test_splits_and_chunks_agree_with_the_quadratic_form(
    features: Features, mask: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_kernels, "MIN_PROGRAMS", 4 * splits)
    compare(features, MASKS[mask](150), tensors(150, 150), 2e-6)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (64, 65), (70, 3)])
def test_arbitrary_numbers_of_queries_and_keys(T: int, S: int) -> None:
    compare("elu", Mask(), tensors(T, S), 2e-6)
    if T <= S:
        compare("elu", Mask(causal=True), tensors(S, S), 2e-6)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_head_widths_and_half_precision(width: int) -> None:
    # The interpreter does not support matmuls in bfloat16; on a GPU, features may overflow float16.
    dtype, tolerance = (torch.float16, 4e-3) if DEVICE.type == "cpu" else (torch.bfloat16, 2e-2)
    compare("elu", Mask(causal=True), tensors(90, 90, width, dtype), tolerance)


def test_linear_attention_compiles_to_one_graph() -> None:
    inputs = tensors(70, 70)
    kind = Linear(16, path="kernel")
    compiled = torch.compile(lambda q, k, v: kind(q, k, v, Mask(causal=True)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), kind(*inputs, Mask(causal=True)))
    torch.library.opcheck(torch.ops.regard.linear_attention.default, (*inputs, None, True, True, 1.0))
