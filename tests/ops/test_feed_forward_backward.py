"""The way back through a product and an activation, at once or one after the other, against the formula in float64."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import dispatch
from regard.ops import feed_forward_backward as through
from regard.ops.dispatch import TRITON_INSTALLED
from regard.ops.feed_forward_backward import Activation, Tile, pass_by_kernel, pass_product

by_kernel = pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(
    DEVICE.type == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="no device that it is cut for"
)
either = pytest.mark.parametrize("activation", ["relu", "gelu"])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So small that a few dozen rows have several, and a program too."""
    monkeypatch.setattr(through, "TILE", Tile(rows=16, columns=32, depth=16, stages=2, warps=4, programs=1))
    monkeypatch.setattr(through, "multiprocessors", lambda device: 3)
    yield


def drawn(rows: int, width: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient, a weight and what an activation saw."""
    source = torch.Generator().manual_seed(0)
    shapes = (rows, width), (width, hidden), (rows, hidden)
    grad, weight, seen = (torch.randn(shape, generator=source).to(DEVICE, dtype) for shape in shapes)
    return grad, weight, 2 * seen


def expected(grad: Tensor, weight: Tensor, seen: Tensor, activation: Activation, growth: float) -> Tensor:
    x = seen.double().requires_grad_()
    y = F.relu(x) if activation == "relu" else F.gelu(x)
    return torch.autograd.grad(growth * y @ weight.double().t(), x, grad.double())[0]


def assert_right(
    found: tuple[Tensor, Tensor], given: tuple[Tensor, Tensor, Tensor], activation: Activation, growth: float
) -> None:
    passed, total = found
    right = expected(*given, activation, growth)
    assert passed.dtype == given[2].dtype and total.dtype == torch.float32
    close = 2 * torch.finfo(passed.dtype).eps
    torch.testing.assert_close(passed.double(), right, rtol=close, atol=close * float(right.abs().max()))
    torch.testing.assert_close(total.double(), passed.double().sum(0), atol=1e-3, rtol=1e-4)


@by_kernel
@pytest.mark.parametrize("growth", [1.0, 1.25])
@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 16, 32), (16, 32, 64), (70, 24, 96), (33, 48, 32)])
def test_the_kernel_gives_the_gradient_and_its_sums(
    small_tiles: None, rows: int, width: int, hidden: int, growth: float
) -> None:
    given = drawn(rows, width, hidden, torch.float16)
    given[2].relu_()
    assert_right(pass_by_kernel(*given, growth), given, "relu", growth)


@either
@pytest.mark.parametrize("growth", [1.0, 1.25])
def test_in_two_passes_it_is_the_same(activation: Activation, growth: float) -> None:
    grad, weight, seen = (tensor.cpu() for tensor in drawn(9, 5, 7, torch.float64))
    passed, total = pass_product(grad, weight, seen, activation, growth)
    torch.testing.assert_close(passed, expected(grad, weight, seen, activation, growth))
    torch.testing.assert_close(total, passed.sum(0))


def test_of_no_rows_there_is_nothing() -> None:
    grad, weight, seen = drawn(0, 5, 7, torch.float32)
    passed, total = pass_product(grad, weight, seen, "relu")
    assert passed.shape == (0, 7)
    assert torch.equal(total, total.new_zeros(7))


@on_gpu
@pytest.mark.parametrize(("rows", "width", "hidden"), [(25_344, 512, 2048), (1001, 192, 768), (77, 200, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_it_is_right_the_same_every_time_and_when_recorded(
    rows: int, width: int, hidden: int, dtype: torch.dtype
) -> None:
    given = drawn(rows, width, hidden, dtype)
    given[2].relu_()
    assert dispatch.feed_forward_backward_kernel_applies(*given, 128)
    first = pass_product(*given, "relu", 1.25)
    assert_right(first, given, "relu", 1.25)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = pass_product(*given, "relu", 1.25)
    graph.replay()
    for again in (pass_product(*given, "relu", 1.25), recorded):
        assert all(torch.equal(one, other) for one, other in zip(again, first, strict=True))


@on_gpu
def test_what_the_kernel_is_not_cut_for_goes_the_other_way() -> None:
    for rows, width, hidden, dtype in [(64, 64, 200, torch.bfloat16), (64, 60, 256, torch.bfloat16)]:
        given = drawn(rows, width, hidden, dtype)
        given[2].relu_()
        assert not dispatch.feed_forward_backward_kernel_applies(*given, 128)
        assert_right(pass_product(*given, "relu"), given, "relu", 1.0)
    assert not dispatch.feed_forward_backward_kernel_applies(*drawn(64, 64, 256, torch.float32), 128)
    assert not dispatch.feed_forward_backward_kernel_applies(*drawn(0, 64, 256, torch.bfloat16), 128)
