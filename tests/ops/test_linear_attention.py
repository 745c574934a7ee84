"""Tests of the kernels of linear attention, against the quadratic form in float64."""

import pytest
import torch
from torch import Tensor

from regard.attention.linear import Features, Linear
from regard.masks import Mask, Padded
from regard.ops import dispatch
from regard.ops import linear_attention as linear_kernels

pytestmark = [
    pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton"),
    pytest.mark.usefixtures("interpreted"),
]

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
    got = run(Linear(width, features, scale=0.5, implementation="kernel"), mask, inputs)
    precise = [x.detach().double().requires_grad_() for x in inputs]
    expected = run(Linear(width, features, scale=0.5, implementation="quadratic"), mask, precise)
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
    kind = Linear(16, implementation="kernel")
    compiled = torch.compile(lambda q, k, v: kind(q, k, v, Mask(causal=True)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), kind(*inputs, Mask(causal=True)))
    torch.library.opcheck(torch.ops.regard.linear_attention.default, (*inputs, None, True, True, 1.0))


@pytest.mark.parametrize("width", [3, 16, 40])
def test_values_may_have_another_width_than_keys(width: int) -> None:
    q, k, _ = tensors(70, 70)
    v = torch.randn(2, H, 70, width, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for mask in (Mask(), Mask(causal=True)):
        context = Linear(16, implementation="kernel")(q, k, v, mask)
        torch.testing.assert_close(context, Linear(16, implementation="quadratic")(q, k, v, mask), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("empty", [(0, 3, 3), (2, 0, 3), (2, 3, 0)], ids=["batch", "queries", "keys"])
def test_inputs_may_be_empty(empty: tuple[int, int, int]) -> None:
    B, T, S = empty
    q, k, v = (torch.randn(B, H, n, 16, device=DEVICE) for n in (T, S, S))
    context = Linear(16, implementation="kernel")(q, k, v, Mask())
    assert context.shape == (B, H, T, 16)
    assert not context.any()


def test_unsupported_inputs_are_rejected() -> None:
    message = "implementation='kernel' supports elu and plain features on a GPU for heads of 16, 32, 64 or 128 features"
    q, k, v = tensors(3, 5)
    with pytest.raises(ValueError, match=message):
        Linear(16, "random", implementation="kernel")(q, k, v, Mask())
    with pytest.raises(ValueError, match=message):
        Linear(16, implementation="kernel")(q, k, v, Mask(causal=True))
    with pytest.raises(ValueError, match=message):
        Linear(8, implementation="kernel")(*tensors(3, 3, 8), Mask())


def test_keys_and_values_may_have_different_layouts_in_memory() -> None:
    q, k, v = tensors(70, 70)
    layouts = (
        torch.Tensor.contiguous,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    )  # head- or token-major
    expected = run(Linear(16, implementation="quadratic"), Mask(causal=True), [q, k, v])
    for k_layout in layouts:
        for v_layout in layouts:
            inputs = [q, k_layout(k.detach()).requires_grad_(), v_layout(v.detach()).requires_grad_()]
            for mine, theirs in zip(
                run(Linear(16, implementation="kernel"), Mask(causal=True), inputs), expected, strict=True
            ):
                torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)
