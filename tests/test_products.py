import pytest
import torch
import torch.nn.functional as F

from regard.packing import _roomy, supports
from regard.products import Linear, PackedWeights

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
