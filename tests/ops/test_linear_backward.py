"""Column sums and the backward pass of activations, by kernel and by formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import dispatch
from regard.ops import linear_backward as module
from regard.ops.linear_backward import (
    Activation,
    MatmulTile,
    activation_backward,
    matmul_activation_backward,
    matmul_relu_backward_kernel,
    sum_columns,
    sum_partials,
)

needs_triton = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
needs_hopper = pytest.mark.skipif(
    DEVICE.type == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU"
)
SIZES = [(1, 1), (1, 128), (33, 130), (100, 7), (257, 48)]
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=needs_gpu)]
both_activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


def draw(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(DEVICE, dtype)


@needs_triton
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_columns(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = draw(rows, columns, dtype)
    total = sum_columns(x)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), x.double().sum(0), atol=1e-4, rtol=1e-5)


@needs_triton
@pytest.mark.usefixtures("kernels")
@both_activations
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_backward(rows: int, columns: int, dtype: torch.dtype, activation: Activation) -> None:
    grad, saved = draw(rows, columns, dtype), 3 * draw(rows, columns, dtype, seed=1)
    saved = saved.relu() if activation == "relu" else saved
    found, total = activation_backward(grad, saved, activation)
    if activation == "relu":
        assert torch.equal(found, torch.where(saved > 0, grad, 0))
    else:
        expected = torch.ops.aten.gelu_backward(grad.double(), saved.double())
        tolerance = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-3, "rtol": 1e-2}
        torch.testing.assert_close(found.double(), expected, **tolerance)
    torch.testing.assert_close(total.double(), found.double().sum(0), atol=1e-4, rtol=1e-5)


@needs_triton
@pytest.mark.usefixtures("kernels")
def test_several_programs_sum_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "multiprocessors", lambda device: 3)
    x = draw(1000, 5)
    torch.testing.assert_close(sum_columns(x), x.sum(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(sum_columns(x.t().contiguous().t()), x.sum(0), atol=1e-4, rtol=1e-5)


@needs_triton
@pytest.mark.parametrize("rows", [1, 512, 1100])
def test_sum_partials(rows: int) -> None:
    partials = draw(rows, 33)
    torch.testing.assert_close(sum_partials(partials), partials.sum(0), atol=1e-4, rtol=1e-5)


def test_plain_sums_have_the_precision_of_their_input_or_better() -> None:
    x, y = torch.randn(9, 4, dtype=torch.double), torch.randn(9, 4, dtype=torch.double)
    assert torch.equal(sum_columns(x), x.sum(0))
    passed, total = activation_backward(x, y, "relu")
    assert torch.equal(passed, x * (y > 0))
    assert torch.equal(total, passed.sum(0))
    assert sum_columns(x.half()).dtype == torch.float32
    assert torch.equal(sum_columns(x[:0]), x.new_zeros(4))


@needs_gpu
def test_sums_are_bit_identical_also_in_a_cuda_graph() -> None:
    x = draw(25_344, 1536, torch.bfloat16)
    first = sum_columns(x)
    assert all(torch.equal(sum_columns(x), first) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sum_columns(x)
    graph.replay()
    assert torch.equal(captured, first)


# Matmul with activation backward


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiles so small that a few dozen rows have several of them."""
    monkeypatch.setattr(module, "MATMUL_TILE", MatmulTile(rows=16, columns=32, depth=16, stages=2, warps=4, programs=1))
    monkeypatch.setattr(module, "multiprocessors", lambda device: 3)


def draw_matmul(rows: int, width: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a gradient, a weight and the saved tensor of an activation."""
    return draw(rows, width, dtype), draw(width, hidden, dtype, seed=1), 2 * draw(rows, hidden, dtype, seed=2)


def expected_gradient(grad: Tensor, weight: Tensor, saved: Tensor, activation: Activation, scale: float) -> Tensor:
    x = saved.double().requires_grad_()
    y = F.relu(x) if activation == "relu" else F.gelu(x)
    return torch.autograd.grad(scale * y @ weight.double().t(), x, grad.double())[0]


def assert_correct(
    found: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor, Tensor], activation: Activation, scale: float
) -> None:
    gradient, total = found
    expected = expected_gradient(*inputs, activation, scale)
    assert gradient.dtype == inputs[2].dtype
    assert total.dtype == torch.float32
    eps = 2 * torch.finfo(gradient.dtype).eps
    torch.testing.assert_close(gradient.double(), expected, rtol=eps, atol=eps * float(expected.abs().max()))
    torch.testing.assert_close(total.double(), gradient.double().sum(0), atol=1e-3, rtol=1e-4)


@needs_triton
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("scale", [1.0, 1.25])
@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 16, 32), (16, 32, 64), (70, 24, 96), (33, 48, 32)])
def test_matmul_relu_backward_kernel(rows: int, width: int, hidden: int, scale: float) -> None:
    inputs = draw_matmul(rows, width, hidden, torch.float16)
    inputs[2].relu_()
    assert_correct(matmul_relu_backward_kernel(*inputs, scale), inputs, "relu", scale)


@both_activations
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_matmul_activation_backward_in_two_operations(activation: Activation, scale: float) -> None:
    inputs = [tensor.cpu() for tensor in draw_matmul(9, 5, 7, torch.float64)]
    gradient, total = matmul_activation_backward(*inputs, activation, scale)
    torch.testing.assert_close(gradient, expected_gradient(*inputs, activation, scale))
    torch.testing.assert_close(total, gradient.sum(0))


def test_matmul_activation_backward_without_rows() -> None:
    gradient, total = matmul_activation_backward(*draw_matmul(0, 5, 7, torch.float32), "relu")
    assert gradient.shape == (0, 7)
    assert torch.equal(total, total.new_zeros(7))


@needs_hopper
@pytest.mark.parametrize(("rows", "width", "hidden"), [(25_344, 512, 2048), (1001, 192, 768), (77, 200, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matmul_relu_backward_on_a_gpu(rows: int, width: int, hidden: int, dtype: torch.dtype) -> None:
    inputs = draw_matmul(rows, width, hidden, dtype)
    inputs[2].relu_()
    assert dispatch.feed_forward_backward_kernel_applies(*inputs, 128)
    first = matmul_activation_backward(*inputs, "relu", 1.25)
    assert_correct(first, inputs, "relu", 1.25)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = matmul_activation_backward(*inputs, "relu", 1.25)
    graph.replay()
    for again in (matmul_activation_backward(*inputs, "relu", 1.25), captured):
        assert all(torch.equal(one, other) for one, other in zip(again, first, strict=True))


@needs_hopper
def test_unsupported_sizes_are_computed_in_two_operations() -> None:
    for rows, width, hidden, dtype in [(64, 64, 200, torch.bfloat16), (64, 60, 256, torch.bfloat16)]:
        inputs = draw_matmul(rows, width, hidden, dtype)
        inputs[2].relu_()
        assert not dispatch.feed_forward_backward_kernel_applies(*inputs, 128)
        assert_correct(matmul_activation_backward(*inputs, "relu"), inputs, "relu", 1.0)
    assert not dispatch.feed_forward_backward_kernel_applies(*draw_matmul(64, 64, 256, torch.float32), 128)
    assert not dispatch.feed_forward_backward_kernel_applies(*draw_matmul(0, 64, 256, torch.bfloat16), 128)
