"""Fused output layer and cross-entropy against the formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import cross_entropy as module
from regard.ops import dispatch
from regard.ops.cross_entropy import (
    IGNORE_INDEX,
    accumulate_matmul_,
    cross_entropy_,
    cross_entropy_kernel_,
    linear_cross_entropy,
    multiply,
)

needs_triton = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")


def draw(rows: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Return x, weight and bias, and labels of which some are ignored."""
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, width), (vocabulary, width), (vocabulary,)
    tensors = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[rows // 2 :: 5] = IGNORE_INDEX
    return tensors, labels


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The formula, with all logits at once."""
    logits = F.linear(x, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="sum")


def with_gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [loss, *torch.autograd.grad(loss / 7, inputs)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [2**28, 128 * 50])
def test_loss_and_gradients_equal_the_formula(smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    inputs, labels = draw(300, 8, 50)
    expected = with_gradients(reference(*inputs, labels, smoothing), inputs)
    assert_close(with_gradients(linear_cross_entropy(*inputs, labels, smoothing), inputs), expected)


def test_chunks_are_equal_multiples_of_a_tile() -> None:
    assert module.chunk_rows(25_344, 32_000) == 8448
    assert module.chunk_rows(1, 10) == 128
    assert module.chunk_rows(300, 2**28) == 128


def test_without_bias_and_without_rows() -> None:
    (x, weight, _), labels = draw(10, 4, 6)
    expected = with_gradients(reference(x, weight, None, labels), [x, weight])
    assert_close(with_gradients(linear_cross_entropy(x, weight, None, labels), [x, weight]), expected)
    empty = linear_cross_entropy(x[:0], weight, None, labels[:0])
    assert empty.item() == 0
    assert not torch.autograd.grad(empty, weight)[0].any()


def test_without_grad_mode_the_loss_has_no_gradient() -> None:
    inputs, labels = draw(10, 4, 6)
    with torch.no_grad():
        loss = linear_cross_entropy(*inputs, labels, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, reference(*inputs, labels, 0.1).detach())


def test_under_autocast_only_logits_are_in_half_precision() -> None:
    inputs, labels = draw(200, 16, 64, torch.float32)
    expected = with_gradients(reference(*inputs, labels, 0.1), inputs)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        loss = linear_cross_entropy(*inputs, labels, 0.1)
    found = with_gradients(loss, inputs)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert not torch.equal(found[0], expected[0])
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "vocabulary"),
    [
        *[(torch.float32, vocabulary) for vocabulary in (5, 16, 100, 20_000)],
        *[(torch.float16, vocabulary) for vocabulary in (2, 5, 16, 100, 2**11, 10_002)],
        pytest.param(torch.bfloat16, 100, marks=needs_gpu),
    ],
    ids=str,
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_kernels_equal_the_plain_formula(
    dtype: torch.dtype, vocabulary: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision and an even vocabulary select the one-read kernel, here with five programs for 13 rows."""
    monkeypatch.setattr(module, "multiprocessors", lambda device: 5)
    monkeypatch.setattr(module, "WARPS_PER_MULTIPROCESSOR", 1)
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (4 * torch.randn(13, vocabulary, generator=generator)).to(DEVICE, dtype)
    labels = torch.randint(vocabulary, (13,), generator=generator).to(DEVICE)
    labels[0], labels[3], labels[11], labels[12] = vocabulary - 1, IGNORE_INDEX, IGNORE_INDEX, 0
    logits[3, 0] = torch.nan  # in an ignored row
    untouched, found = logits.clone(), logits.clone()
    plain = logits.float().nan_to_num()
    losses = cross_entropy_(plain, labels, smoothing)
    torch.testing.assert_close(cross_entropy_kernel_(untouched, labels, smoothing, backward=False), losses)
    assert torch.equal(untouched.nan_to_num(), logits.nan_to_num())
    torch.testing.assert_close(cross_entropy_kernel_(found, labels, smoothing), losses)
    eps = max(1e-4, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.float(), plain, atol=1e-6, rtol=eps)


def test_rows_that_fit_into_registers() -> None:
    assert module._fits_registers(torch.zeros(4, 32_000, dtype=torch.bfloat16))
    assert not module._fits_registers(torch.zeros(4, 32_000))
    assert not module._fits_registers(torch.zeros(4, 101, dtype=torch.float16))
    assert not module._fits_registers(torch.zeros(201, dtype=torch.float16)[1:].view(2, 100))
    assert not module._fits_registers(torch.zeros(1, module.MAX_ONE_READ + 2, dtype=torch.float16))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_matmuls_are_accumulated_in_float32(device: str) -> None:
    a, b = (torch.randn(3, *shape).to(device, torch.bfloat16) for shape in ((16, 32), (32, 8)))
    exact = (a.double() @ b.double()).sum(0)
    tolerance = 1e-5 if device == "cuda" else 1e-2
    total = torch.full((16, 8), torch.nan, device=device)
    for i in range(3):
        accumulate_matmul_(total, a[i], b[i], first=i == 0)
    torch.testing.assert_close(total.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [0, 1, 5000])
def test_multiply_equals_the_plain_formula(size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    factor = torch.tensor(1 / 3, device=DEVICE)
    for interpreted in (False, True):
        monkeypatch.setattr(dispatch, "INTERPRETED", interpreted)
        for result in (torch.float32, dtype):
            torch.testing.assert_close(multiply(x, factor, result), (x.double() * factor.double()).to(result))


def test_multiply_does_not_round_the_factor() -> None:
    x, factor = torch.ones(4, dtype=torch.bfloat16), torch.tensor(1 / 3)
    assert torch.equal(multiply(x, factor, torch.float32), torch.full((4,), 1 / 3))


@needs_triton
def test_multiply_in_float64_is_not_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    x, factor = torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.tensor(1 / 3, dtype=torch.float64)
    assert torch.equal(multiply(x, factor, torch.float64), x.double() * factor)


def test_compiled_loss_is_one_graph() -> None:
    inputs, labels = draw(20, 8, 50)

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(x * 2, weight, bias, labels, 0.1) * 3

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(with_gradients(compiled(*inputs), inputs), with_gradients(loss(*inputs), inputs))


def test_custom_op_passes_opcheck() -> None:
    inputs, labels = draw(6, 4, 10)
    operation = torch.ops.regard.linear_cross_entropy.default
    results = torch.library.opcheck(operation, (*inputs, labels, 0.1, torch.float64, True))
    assert len(results) == 4 and set(results.values()) == {"SUCCESS"}
