"""Dropout on CPU."""

import math

import pytest
import torch

from regard.ops.dropout import Dropout, draw_int16, drop


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_elements_are_dropped_at_the_given_rate_and_the_others_scaled(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(500, 401, dtype=dtype)
    y = drop(x, p)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / x.numel()))
    assert y[y != 0].double().unique().tolist() == pytest.approx([1 / (1 - p)], rel=4e-3)


def test_adjacent_elements_are_dropped_independently() -> None:
    """Four elements share a random number of 64 bits."""
    kept = (drop(torch.ones(100_000, 4), 0.3) != 0).double()
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 0.02
    assert abs(torch.corrcoef(torch.stack([kept.flatten()[:-1], kept.flatten()[1:]]))[0, 1]) < 0.01


def test_the_gradient_has_the_same_mask() -> None:
    x = torch.randn(7, 5, requires_grad=True)
    y = drop(x, 0.4)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad * x, y)
    assert {0.0} < set(grad.flatten().tolist())


def test_the_mask_depends_on_the_seed() -> None:
    x = torch.ones(33)
    torch.manual_seed(3)
    first, second = drop(x, 0.5), drop(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(drop(x, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p, expected", [(0.0, 1.0), (1.0, 0.0)])
def test_rates_of_zero_and_one(p: float, expected: float) -> None:
    assert torch.equal(drop(torch.ones(9), p), torch.full((9,), expected))


def test_empty_tensors() -> None:
    assert drop(torch.ones(0, 3), 0.5).shape == (0, 3)


def test_the_default_device_does_not_matter() -> None:
    x = torch.ones(9)
    with torch.device("meta"):
        assert drop(x, 0.5).device == x.device


def test_16_bit_integers_are_uniformly_distributed() -> None:
    bits = draw_int16(1_000_003)
    assert (len(bits), bits.dtype) == (1_000_003, torch.int16)
    counts = torch.histc(bits.float(), 64, -(2.0**15), 2.0**15)
    assert ((counts - len(bits) / 64).abs() < 6 * math.sqrt(len(bits) / 64)).all()


def test_the_module_drops_in_training_only() -> None:
    module, x = Dropout(0.5), torch.ones(100)
    assert (module(x) == 0).any()
    assert module.eval()(x) is x
