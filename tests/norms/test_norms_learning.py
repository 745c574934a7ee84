"""Every number of the kernels of Add & Norm in training against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import norms
from regard.attention import kernels
from regard.layers import Residual
from regard.norms.learning import add_norm, kept

pytestmark = pytest.mark.skipif(not kernels.INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
EPS = 1e-5


def tensors(rows: int, width: int, *dtypes: torch.dtype) -> list[Tensor]:
    """x, what is added, weight and bias."""
    source = torch.Generator().manual_seed(rows)
    x, added = (torch.randn(1, rows, width, generator=source) * size for size in (3.0, 1.0))
    drawn = x, added, torch.rand(width, generator=source) + 0.5, torch.randn(width, generator=source)
    kinds = (*dtypes, torch.float32, torch.float32)
    return [tensor.to(DEVICE, dtype).requires_grad_() for tensor, dtype in zip(drawn, kinds, strict=True)]


def with_gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, inputs, upstream)]


def by_formula(inputs: list[Tensor], left: Tensor | None = None, dropout: float = 0.0) -> list[Tensor]:
    x, added, weight, bias = wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    dropped = added if left is None else added * left / (1 - dropout)
    return with_gradients(F.layer_norm(x + dropped, weight.shape, weight, bias, EPS), wide)


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float = 2e-6) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        size = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance * size, rtol=0)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (70, 32), (9, 512), (2, 3000)])
def test_any_size(rows: int, width: int) -> None:
    inputs = tensors(rows, width, torch.float32, torch.float32)
    got = with_gradients(add_norm(*inputs, EPS, 0.0), inputs)
    assert_close(got, by_formula(inputs), 1e-5)


def test_what_is_dropped_forward_is_dropped_backward() -> None:
    inputs = tensors(40, 48, torch.float32, torch.float32)
    torch.manual_seed(7)
    got = with_gradients(add_norm(*inputs, EPS, 0.4), inputs)
    torch.manual_seed(7)
    left = kept(torch.randint(2**31 - 1, (1,), device=DEVICE), 40, 48, 0.4)
    assert left.float().mean().item() == pytest.approx(0.6, abs=0.05)
    assert_close(got, by_formula(inputs, left, 0.4))


@pytest.mark.parametrize(
    ("stream", "products", "tolerance"),
    [
        (torch.float32, torch.float16, 2e-3),
        (torch.float16, torch.float16, 4e-3),
        pytest.param(torch.float32, torch.bfloat16, 1e-2, marks=on_gpu),
        pytest.param(torch.bfloat16, torch.bfloat16, 3e-2, marks=on_gpu),
    ],
)
def test_half_precision_stays_within_its_rounding(stream: torch.dtype, products: torch.dtype, tolerance: float) -> None:
    inputs = tensors(50, 64, stream, products)
    got = with_gradients(add_norm(*inputs, EPS, 0.0), inputs)
    assert [y.dtype for y in got] == [stream, stream, products, torch.float32, torch.float32]
    assert_close(got, by_formula(inputs), tolerance)


def test_compiled_it_is_one_graph() -> None:
    inputs = tensors(20, 32, torch.float32, torch.float32)

    def twice(*given: Tensor) -> Tensor:
        return add_norm(given[0] * 2, given[1], given[2], given[3], EPS, 0.0) + 1

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(
        with_gradients(compiled(*inputs), inputs), with_gradients(twice(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_operator_keeps_the_promises_of_operators() -> None:
    x, added, weight, bias = (
        tensor[0] if tensor.dim() > 2 else tensor for tensor in tensors(5, 16, *[torch.float32] * 2)
    )
    x, added = x.detach().requires_grad_(), added.detach().requires_grad_()
    torch.library.opcheck(norms.learning._node, (x, added, weight, bias, None, EPS, 0.0))


def test_a_residual_connection_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    residual = Residual(32, "post").to(DEVICE)
    x = torch.randn(2, 5, 32, device=DEVICE, requires_grad=True)
    wanted = [x, *residual.parameters()]
    monkeypatch.setattr(norms, "_learns", lambda *given: False)
    plain = with_gradients(residual(x, torch.tanh), wanted)
    monkeypatch.setattr(norms, "_learns", lambda *given: True)
    assert_close(with_gradients(residual(x, torch.tanh), wanted), [y.double() for y in plain])


@on_gpu
def test_a_gpu_takes_the_kernels_in_training_only() -> None:
    x, added, _, _ = tensors(5, 16, torch.float32, torch.bfloat16)
    norm = torch.nn.LayerNorm(16).to(DEVICE)
    assert norms._learns(x, added, norm)
    with torch.no_grad():
        assert not norms._learns(x, added, norm)
