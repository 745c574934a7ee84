"""Integrated gradients of functions whose integrals are known."""

import pytest
import torch
from torch import Tensor

from regard.inspection.explain.integrated_gradients import integrate_gradients

X, ZERO = torch.tensor([[3.0], [2.0]]), torch.zeros(2, 1)


def test_attributions_of_a_polynomial_are_exact() -> None:
    """Along the path, x₁ = 3α and x₂ = 2α, so x₁² x₂ gives 2/3 and 1/3 of its value."""
    path = integrate_gradients(lambda x: x[:, 0, 0] ** 2 * x[:, 1, 0], X, ZERO)
    assert path.attributions.flatten().tolist() == pytest.approx([12.0, 6.0], rel=1e-5)
    assert (path.value, path.baseline, path.points) == (pytest.approx(18), 0.0, 16)
    assert path.completeness_error < 1e-6


def step_function(x: Tensor) -> Tensor:
    """A steep step between two points of the initial quadrature."""
    return torch.sigmoid(2000 * (x[:, 0, 0] - 1.003)) + 0 * x[:, 1, 0]


def test_segments_are_halved_until_the_error_is_small() -> None:
    path = integrate_gradients(step_function, X, ZERO, tolerance=0.005)
    assert path.completeness_error <= 0.005
    assert path.attributions.flatten().tolist() == pytest.approx([1.0, 0.0], abs=0.005)
    assert 16 < path.points < 500


def test_limit_of_points_is_kept_and_the_error_is_reported() -> None:
    path = integrate_gradients(step_function, X, ZERO, tolerance=1e-9, max_points=40)
    assert path.points <= 80
    change = path.value - path.baseline
    assert path.completeness_error == pytest.approx(abs(float(path.attributions.sum()) - change) / change)
    assert path.completeness_error > 1e-9


def test_constant_function_has_no_attributions() -> None:
    path = integrate_gradients(lambda x: 0 * x.sum((1, 2)) + 5, X, ZERO)
    assert path.attributions.abs().max() == 0
    assert (path.value, path.completeness_error) == (5.0, 0.0)
