from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.packing import _roomy, supports
from regard.products import Linear, PackedWeights, _LinearRelu, _node, linear_relu

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
packed_only = pytest.mark.skipif(not supports("float32"), reason="this processor has no packed products")


@packed_only
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (16, 8), (17, 8), (130, 8), (2, 5, 8), (1, 1, 8)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_packed_products_are_the_usual_ones(shape: tuple[int, ...], bias: bool) -> None:
    linear, x = Linear(8, 6, bias=bias), torch.randn(shape)
    expected = F.linear(x, linear.weight, linear.bias)
    with PackedWeights():
        found = linear(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)


@packed_only
@torch.no_grad()
def test_a_weight_that_has_changed_is_packed_anew() -> None:
    linear, x, packed = Linear(8, 6), torch.randn(4, 8), PackedWeights()
    with packed:
        linear(x)
    linear.weight.mul_(2)
    packed.refresh()
    with packed:
        torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias))


@packed_only
@torch.no_grad()
def test_the_library_meets_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps memory for every number it meets: a long file would bring thousands."""
    met: set[int] = set()
    usual = torch.ops.mkldnn._linear_pointwise

    class Counting:
        _reorder_linear_weight = torch.ops.mkldnn._reorder_linear_weight

        @staticmethod
        def _linear_pointwise(x: torch.Tensor, *rest: object) -> torch.Tensor:
            met.add(len(x))
            return usual(x, *rest)

    monkeypatch.setattr(torch.ops, "mkldnn", Counting)
    linear = Linear(4, 4)
    with PackedWeights():
        for rows in range(1, 1500, 7):
            assert len(linear(torch.ones(rows, 4))) == rows
    assert len(met) < 35


def test_rounding_up_adds_little_and_never_takes_away() -> None:
    for rows in range(1, 5000):
        assert rows <= _roomy(rows) <= max(4, 1.25 * rows + 3)


def test_gradients_are_never_taken_through_packed_weights() -> None:
    linear = Linear(4, 3)
    with PackedWeights():
        linear(torch.ones(2, 4)).sum().backward()
    assert linear.weight.grad is not None


def _drawn(*sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    N, W, F_ = sizes
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((N, W), (F_, W), (F_,))]


@pytest.mark.parametrize("way", [_LinearRelu.apply, _node, torch.compile(_node, backend="aot_eager", fullgraph=True)])
def test_a_product_and_its_activation_in_one_have_the_gradients_of_both(way: Any) -> None:
    given = _drawn(7, 5, 4)
    expected, found = F.relu(F.linear(*given)), way(*given)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(expected, given, upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_operator_of_product_and_activation_keeps_the_promises_of_operators() -> None:
    torch.library.opcheck(_node, tuple(_drawn(7, 5, 4)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_products_with_an_activation_are_as_precise_as_others(device: str) -> None:
    x, weight, bias = (tensor.detach().to(device, torch.float32) for tensor in _drawn(6, 8, 16))
    given = [tensor.requires_grad_() for tensor in (x.view(2, 3, 8), weight, bias)]
    with torch.autocast(device, torch.bfloat16):
        found, expected = linear_relu(*given), F.relu(F.linear(*given))
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(expected, given, upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=3e-2, rtol=3e-2)
