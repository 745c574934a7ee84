"""Sums of columns by kernel against the plain ones, and that they are the same to the bit every time."""

import pytest
import torch
from torch import Tensor

from regard.ops import column_sum as sums
from regard.ops.column_sum import (
    add_up,
    pass_gelu_by_kernel,
    pass_relu,
    pass_relu_by_kernel,
    sum_by_kernel,
    sum_columns,
)
from regard.ops.dispatch import TRITON_INSTALLED

by_kernel = pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
SIZES = [(1, 1), (1, 128), (33, 130), (100, 7), (257, 48)]
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=on_gpu)]


def drawn(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=source).to(DEVICE, dtype)


@by_kernel
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_those_of_all_rows(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = drawn(rows, columns, dtype)
    found = sum_by_kernel(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), x.double().sum(0), atol=1e-4, rtol=1e-5)


@by_kernel
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_what_was_positive_passes_a_gradient(rows: int, columns: int, dtype: torch.dtype) -> None:
    grad, y = drawn(rows, columns, dtype), drawn(rows, columns, dtype, seed=1).relu()
    passed, total = pass_relu_by_kernel(grad, y)
    assert torch.equal(passed, torch.where(y > 0, grad, 0))
    torch.testing.assert_close(total.double(), passed.double().sum(0), atol=1e-4, rtol=1e-5)


@by_kernel
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_passes_gelu_by_its_slope(rows: int, columns: int, dtype: torch.dtype) -> None:
    grad, x = drawn(rows, columns, dtype), 3 * drawn(rows, columns, dtype, seed=1)
    passed, total = pass_gelu_by_kernel(grad, x)
    right = torch.ops.aten.gelu_backward(grad.double(), x.double())
    close = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-3, "rtol": 1e-2}
    torch.testing.assert_close(passed.double(), right, **close)
    torch.testing.assert_close(total.double(), passed.double().sum(0), atol=1e-4, rtol=1e-5)


@by_kernel
def test_programs_that_share_a_column_lose_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "multiprocessors", lambda device: 3)
    x = drawn(1000, 5)
    torch.testing.assert_close(sum_by_kernel(x), x.sum(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(sum_by_kernel(x.t().contiguous().t()), x.sum(0), atol=1e-4, rtol=1e-5)


@by_kernel
@pytest.mark.parametrize("rows", [1, 512, 1100])
def test_parts_add_up(rows: int) -> None:
    parts = drawn(rows, 33)
    torch.testing.assert_close(add_up(parts), parts.sum(0), atol=1e-4, rtol=1e-5)


def test_without_a_gpu_sums_are_as_precise_as_their_numbers() -> None:
    x, y = torch.randn(9, 4, dtype=torch.double), torch.randn(9, 4, dtype=torch.double)
    assert torch.equal(sum_columns(x), x.sum(0))
    passed, total = pass_relu(x, y)
    assert torch.equal(passed, x * (y > 0))
    assert torch.equal(total, passed.sum(0))
    assert sum_columns(x.half()).dtype == torch.float32
    assert torch.equal(sum_columns(x[:0]), x.new_zeros(4))


@on_gpu
def test_a_sum_is_the_same_to_the_bit_every_time_and_when_recorded() -> None:
    x = drawn(25_344, 1536, torch.bfloat16)
    first = sum_columns(x)
    assert all(torch.equal(sum_columns(x), first) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = sum_columns(x)
    graph.replay()
    assert torch.equal(recorded, first)
