"""Loss and gradients of the head, whole and in chunks, against the plain formula."""

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from regard.ops import cross_entropy as head
from regard.ops import dispatch
from regard.ops.cross_entropy import (
    IGNORE_INDEX,
    add_product,
    linear_cross_entropy,
    multiply,
    multiply_with_kernel,
    reference_loss,
    turn_held_rows,
    turn_into_gradient,
    turn_with_kernel,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")


def drawn(rows: int, width: int, words: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    source = torch.Generator().manual_seed(rows)
    tensors = [torch.randn(shape, generator=source).to(dtype) for shape in ((rows, width), (words, width), (words,))]
    labels = torch.randint(words, (rows,), generator=source)
    labels[rows // 2 :: 5] = IGNORE_INDEX
    return [x.requires_grad_() for x in tensors], labels


def with_gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [loss, *torch.autograd.grad(loss / 7, inputs)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [2**28, 128 * 50])
def test_loss_and_gradients_are_those_of_the_formula(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", chunk)
    inputs, labels = drawn(300, 8, 50)
    expected = with_gradients(reference_loss(*inputs, labels, smoothing), inputs)
    got = with_gradients(linear_cross_entropy(*inputs, labels, smoothing), inputs)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_chunks_are_few_equal_and_whole_tiles() -> None:
    assert head.chunk_rows(25_344, 32_000) == 8448
    assert head.chunk_rows(1, 10) == 128
    assert head.chunk_rows(300, 2**28) == 128


def test_without_a_bias_and_without_rows() -> None:
    (x, weight, _), labels = drawn(10, 4, 6)
    expected = with_gradients(reference_loss(x, weight, None, labels), [x, weight])
    for mine, theirs in zip(
        with_gradients(linear_cross_entropy(x, weight, None, labels), [x, weight]), expected, strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    none = linear_cross_entropy(x[:0], weight, None, labels[:0])
    assert none.item() == 0
    assert not torch.autograd.grad(none, weight)[0].any()


def test_without_anything_to_learn_there_is_no_gradient() -> None:
    inputs, labels = drawn(10, 4, 6)
    with torch.no_grad():
        loss = linear_cross_entropy(*inputs, labels, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, reference_loss(*inputs, labels, 0.1).detach())


def test_under_autocast_logits_are_half_precision_and_gradients_are_not() -> None:
    inputs, labels = drawn(200, 16, 64, torch.float32)
    expected = with_gradients(reference_loss(*inputs, labels, 0.1), inputs)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        loss = linear_cross_entropy(*inputs, labels, 0.1)
    got = with_gradients(loss, inputs)
    assert all(x.dtype == torch.float32 for x in got)
    assert not torch.equal(got[0], expected[0])
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")
@pytest.mark.parametrize("words", [5, 16, 100, 20_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_kernel_does_what_the_plain_form_does(words: int, smoothing: float) -> None:
    source = torch.Generator().manual_seed(words)
    logits = (4 * torch.randn(7, words, generator=source)).to(DEVICE)
    labels = torch.randint(words, (7,), generator=source).to(DEVICE)
    labels[0], labels[3], labels[6] = words - 1, IGNORE_INDEX, 0
    untouched, plain, by_kernel = logits.clone(), logits.clone(), logits.clone()
    losses = turn_into_gradient(plain, labels, smoothing)
    torch.testing.assert_close(turn_with_kernel(untouched, labels, smoothing, learns=False), losses)
    assert torch.equal(untouched, logits)
    torch.testing.assert_close(turn_with_kernel(by_kernel, labels, smoothing), losses)
    torch.testing.assert_close(by_kernel, plain, atol=1e-6, rtol=1e-4)


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=on_gpu)])
@pytest.mark.parametrize("words", [2, 16, 100, 2**11, 10_002])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_that_are_held_become_what_the_plain_form_makes_of_them(
    words: int, smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five programs go through 13 rows, of which each is followed by numbers that are nobody's."""
    monkeypatch.setattr("regard.ops.dispatch.multiprocessors", lambda device: 5)
    monkeypatch.setattr(head, "HELD_WARPS", 1)
    source = torch.Generator().manual_seed(words)
    memory = (4 * torch.randn(13, words + 6, generator=source)).to(DEVICE, dtype)
    labels = torch.randint(words, (13,), generator=source).to(DEVICE)
    labels[0], labels[3], labels[11], labels[12] = words - 1, IGNORE_INDEX, IGNORE_INDEX, 0
    memory[3, 0] = torch.nan  # nobody asks what is left out
    untouched, by_kernel = memory.clone(), memory.clone()
    plain = memory[:, :words].float()
    plain[3, 0] = 0
    losses = turn_into_gradient(plain, labels, smoothing)
    torch.testing.assert_close(turn_held_rows(untouched[:, :words], labels, smoothing, learns=False), losses)
    assert torch.equal(untouched.nan_to_num(), memory.nan_to_num())
    torch.testing.assert_close(turn_held_rows(by_kernel[:, :words], labels, smoothing), losses)
    close = torch.finfo(dtype).eps
    torch.testing.assert_close(by_kernel[:, :words].float(), plain, atol=1e-6, rtol=close)
    assert torch.equal(by_kernel[:, words:], memory[:, words:])


def test_rows_are_held_where_they_are_pairs_of_half_precision_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.zeros(4, 101, dtype=torch.float16)
    assert head._holds(torch.zeros(4, 32_000, dtype=torch.bfloat16))
    assert not head._holds(torch.zeros(4, 32_000))
    assert not head._holds(memory)
    assert not head._holds(memory[:, :100])
    assert not head._holds(memory.view(-1)[1:201].view(2, 100))
    assert not head._holds(torch.zeros(1, head.HELD + 2, dtype=torch.float16))
    monkeypatch.setattr(head, "HELD", 0)
    assert not head._holds(torch.zeros(4, 100, dtype=torch.float16))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_products_add_up_in_single_precision(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randn(3, *shape).to(device, torch.bfloat16) for shape in ((16, 32), (32, 8)))
    right = (a.double() @ b.double()).sum(0)
    able = device == "cuda" and head._can_add(torch.bfloat16, a.device)
    for precisely, close in ((True, 1e-5 if able else 1e-2), (False, 1e-2)):
        monkeypatch.setattr(head, "ADDS_PRECISELY", precisely)
        total = torch.full((16, 8), torch.nan, device=device)
        for place in range(3):
            add_product(total, a[place], b[place], first=place == 0)
        torch.testing.assert_close(total.double(), right, rtol=close, atol=close * float(right.abs().max()))


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [0, 1, 5000])
def test_the_kernel_multiplies_as_the_plain_form_does(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    factor = torch.tensor(1 / 3, device=DEVICE)
    for wanted in (torch.float32, dtype):
        expected = (x.double() * factor.double()).to(wanted)
        torch.testing.assert_close(multiply_with_kernel(x, factor, wanted), expected)
        torch.testing.assert_close(multiply(x, factor, wanted), expected)


def test_a_gradient_in_half_precision_is_multiplied_by_a_number_that_is_not() -> None:
    x, factor = torch.ones(4, dtype=torch.bfloat16), torch.tensor(1 / 3)
    assert torch.equal(multiply(x, factor, torch.float32), torch.full((4,), 1 / 3))


def test_compiled_it_is_one_graph() -> None:
    inputs, labels = drawn(20, 8, 50)

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(x * 2, weight, bias, labels, 0.1) * 3

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = with_gradients(loss(*inputs), inputs)
    for mine, theirs in zip(with_gradients(compiled(*inputs), inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_operator_keeps_the_promises_of_operators() -> None:
    inputs, labels = drawn(6, 4, 10)
    torch.library.opcheck(torch.ops.regard.linear_cross_entropy.default, (*inputs, labels, 0.1, torch.float64, True))
