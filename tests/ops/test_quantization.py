"""Products in smaller numbers: how far they are from the exact ones, and that no vector disturbs another."""

import warnings
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import quantization as packing
from regard.ops.quantization import Precision, pack, supports

ERROR: dict[Precision, float] = {"float32": 1e-6, "bfloat16": 0.005, "int8": 0.015}
"""The largest relative error of a product of random vectors."""


@pytest.fixture(params=get_args(Precision))
def precision(request: pytest.FixtureRequest) -> Precision:
    if not supports(request.param):
        pytest.skip(f"this processor has no {request.param}")
    chosen: Precision = request.param
    return chosen


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("shape", [(1, 64, 48), (33, 512, 96), (5, 7, 3)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_are_close_to_the_exact_ones(
    precision: Precision, shape: tuple[int, int, int], with_bias: bool
) -> None:
    N, K, M = shape
    x, weight, bias = draw(N, K), draw(M, K, seed=1), draw(M, seed=2) if with_bias else None
    exact = F.linear(x, weight, bias)
    found = pack(weight, precision)(x, bias)
    assert found.shape == exact.shape and found.dtype == torch.float32
    assert error(found, exact) < ERROR[precision]


def test_rows_of_any_size_are_equally_exact(precision: Precision) -> None:
    """One scale for a whole weight, or for all vectors, would leave nothing of the small ones."""
    x, weight = draw(8, 64), draw(16, 64, seed=1)
    sizes = 10.0 ** torch.arange(-4, 4)
    exact = F.linear(x.double(), weight.double())
    found = pack(weight * sizes.repeat(2)[:, None], precision)(x * sizes[:, None], None)
    relative = found.double() / sizes[:, None].double() / sizes.repeat(2).double()
    assert error(relative, exact) < ERROR[precision]


def test_a_vector_comes_out_the_same_in_any_company(precision: Precision) -> None:
    x, product = draw(40, 96), pack(draw(64, 96, seed=1), precision)
    x[1::2] *= 1e4
    together = product(x, None)
    for size in (1, 3, 8):
        apart = torch.cat([product(part, None) for part in x.split(size)])
        if precision == "int8":  # whole numbers are added up without rounding, in whatever order
            assert torch.equal(apart, together)
        torch.testing.assert_close(apart, together)


def test_a_vector_of_zeros_gives_the_bias(precision: Precision) -> None:
    bias = draw(16).bfloat16().float()
    found = pack(draw(16, 32, seed=1), precision)(torch.cat((torch.zeros(1, 32), draw(1, 32))), bias)
    torch.testing.assert_close(found[0], bias)
    assert pack(torch.zeros(16, 32), precision)(draw(2, 32), bias).equal(bias.expand(2, -1))


def test_what_is_no_number_stays_none(precision: Precision) -> None:
    """Search looks for it, to say that the weights are damaged."""
    x = draw(3, 32)
    x[1, 5] = torch.nan
    found = pack(draw(16, 32, seed=1), precision)(x, None)
    assert found[1].isnan().all() and not found[[0, 2]].isnan().any()
    weight = draw(16, 32, seed=1)
    weight[4, 7] = torch.nan
    assert pack(weight, precision)(draw(3, 32), None)[:, 4].isnan().all()


@pytest.mark.skipif(not supports("int8"), reason="this processor has no int8")
def test_processors_that_add_up_in_16_bits_get_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products of the largest numbers must not overflow there: 2 · 127 · (2 · 63 + 1) is below 2¹⁵."""
    assert 2 * 127 * (2 * 63 + 1) < 2**15
    monkeypatch.setattr(packing, "_STEPS", 63)
    x, weight = draw(9, 256), draw(32, 256, seed=1)
    assert error(pack(weight, "int8")(x, None), F.linear(x, weight)) < 0.02


def test_packing_says_nothing(precision: Precision) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack(draw(4, 8), precision)
