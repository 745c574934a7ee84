"""Prepacked and quantised weights: their error, batch invariance, and when they are used."""

import copy
import platform
import warnings
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ops import linear as linear_module
from regard.ops.linear import (
    Linear,
    Precision,
    pack,
    padded_rows,
    prepack,
    refresh_prepacked,
    supports,
    use_prepacked,
)

MAX_ERROR: dict[Precision, float] = {"float32": 1e-6, "bfloat16": 0.005, "int8": 0.015}
"""Relative error of a matmul of random matrices."""
needs_onednn = pytest.mark.skipif(not supports("float32"), reason="this CPU has no prepacked weights")


@pytest.fixture(params=get_args(Precision))
def precision(request: pytest.FixtureRequest) -> Precision:
    if not supports(request.param):
        pytest.skip(f"this CPU does not support {request.param}")
    chosen: Precision = request.param
    return chosen


@pytest.fixture
def pack_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "MIN_FLOAT32_SIZE", 0)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


# Single weights


@pytest.mark.parametrize("shape", [(1, 64, 48), (33, 512, 96), (5, 7, 3)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_weights_are_close_to_the_exact_ones(
    precision: Precision, shape: tuple[int, int, int], with_bias: bool
) -> None:
    rows, inputs, outputs = shape
    x, weight, bias = draw(rows, inputs), draw(outputs, inputs, seed=1), draw(outputs, seed=2) if with_bias else None
    exact = F.linear(x, weight, bias)
    found = pack(weight, precision)(x, bias)
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    assert relative_error(found, exact) < MAX_ERROR[precision]


def test_rows_of_any_magnitude_have_the_same_relative_error(precision: Precision) -> None:
    """One scale for a whole weight, or for all input rows, would round small rows to zero."""
    x, weight = draw(8, 64), draw(16, 64, seed=1)
    magnitudes = 10.0 ** torch.arange(-4, 4)
    exact = F.linear(x.double(), weight.double())
    found = pack(weight * magnitudes.repeat(2)[:, None], precision)(x * magnitudes[:, None], None)
    rescaled = found.double() / magnitudes[:, None].double() / magnitudes.repeat(2).double()
    assert relative_error(rescaled, exact) < MAX_ERROR[precision]


def test_a_row_does_not_depend_on_the_rest_of_the_batch(precision: Precision) -> None:
    x, packed = draw(40, 96), pack(draw(64, 96, seed=1), precision)
    x[1::2] *= 1e4
    together = packed(x, None)
    for size in (1, 3, 8):
        apart = torch.cat([packed(rows, None) for rows in x.split(size)])
        if precision == "int8":  # integer sums are exact in any order
            assert torch.equal(apart, together)
        torch.testing.assert_close(apart, together)


def test_a_row_of_zeros_gives_the_bias(precision: Precision) -> None:
    bias = draw(16).bfloat16().float()
    found = pack(draw(16, 32, seed=1), precision)(torch.cat((torch.zeros(1, 32), draw(1, 32))), bias)
    torch.testing.assert_close(found[0], bias)
    assert pack(torch.zeros(16, 32), precision)(draw(2, 32), bias).equal(bias.expand(2, -1))


def test_nan_is_preserved(precision: Precision) -> None:
    """Search detects damaged weights by NaN."""
    x = draw(3, 32)
    x[1, 5] = torch.nan
    found = pack(draw(16, 32, seed=1), precision)(x, None)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()
    weight = draw(16, 32, seed=1)
    weight[4, 7] = torch.nan
    assert pack(weight, precision)(draw(3, 32), None)[:, 4].isnan().all()


@pytest.mark.skipif(not supports("int8"), reason="this CPU does not support int8")
def test_cpus_without_vnni_use_a_smaller_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of two products must fit into 16 bits there: 2 · 127 · (2 · 63 + 1) is below 2¹⁵."""
    assert 2 * 127 * (2 * 63 + 1) < 2**15
    monkeypatch.setattr(linear_module, "_MAX_INT8_INPUT", 63)
    x, weight = draw(9, 256), draw(32, 256, seed=1)
    assert relative_error(pack(weight, "int8")(x, None), F.linear(x, weight)) < 0.02


def test_packing_emits_no_warning(precision: Precision) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pack(draw(4, 8), precision)
    assert [str(warning.message) for warning in seen] == []


def test_rows_are_padded_by_at_most_a_quarter() -> None:
    for rows in range(1, 5000):
        assert rows <= padded_rows(rows) <= max(4, 1.25 * rows + 3)


# Weights of a model


@needs_onednn
@pytest.mark.usefixtures("pack_small_weights")
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (16, 8), (17, 8), (130, 8), (2, 5, 8), (1, 1, 8)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_prepacked_layers_equal_plain_ones(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = Linear(8, 6, bias=bias), torch.randn(shape)
    expected = layer(x)
    prepack(layer)
    found = layer(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    first, second = layer.split([2, 4])
    torch.testing.assert_close(torch.cat((first(x), second(x)), -1), expected)


@needs_onednn
@pytest.mark.parametrize(("rows", "is_packed"), [(128, False), (129, True)])
@torch.no_grad()
def test_small_float32_weights_are_not_packed(rows: int, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    monkeypatch.setattr(linear_module, "pack", lambda weight, name: packed.append(len(weight)) or pack(weight, name))
    layer, x = Linear(1024, rows), torch.randn(3, 1024)
    prepack(layer)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    assert packed == ([rows] if is_packed else [])


@needs_onednn
@pytest.mark.usefixtures("pack_small_weights")
@torch.no_grad()
def test_changed_weights_are_packed_again_after_a_refresh() -> None:
    layer, x = Linear(8, 6), torch.randn(4, 8)
    prepack(layer)
    layer(x)
    layer.weight.mul_(2)
    refresh_prepacked(layer)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


@needs_onednn
@pytest.mark.usefixtures("pack_small_weights")
@torch.no_grad()
def test_onednn_sees_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It caches a kernel for every number of rows; a long file would fill the memory."""
    seen: set[int] = set()
    usual = torch.ops.mkldnn._linear_pointwise

    class Counter:
        _reorder_linear_weight = torch.ops.mkldnn._reorder_linear_weight

        @staticmethod
        def _linear_pointwise(x: Tensor, *rest: object) -> Tensor:
            seen.add(len(x))
            return usual(x, *rest)

    monkeypatch.setattr(torch.ops, "mkldnn", Counter)
    layer = Linear(4, 4)
    prepack(layer)
    for rows in range(1, 1500, 7):
        assert len(layer(torch.ones(rows, 4))) == rows
    assert 20 < len(seen) < 35


@pytest.mark.usefixtures("pack_small_weights")
def test_gradients_are_not_computed_through_prepacked_weights() -> None:
    layer = Linear(4, 3)
    prepack(layer, "int8")
    layer(torch.ones(2, 4)).sum().backward()
    assert layer.weight.grad is not None


def test_prepacking_is_visible_and_can_be_removed() -> None:
    model = nn.Sequential(Linear(4, 3), nn.ReLU(), Linear(3, 2))
    with use_prepacked(model, "bfloat16"):
        assert repr(model).count("prepacked=bfloat16") == 2
    assert "prepacked" not in repr(model)
    with use_prepacked(model, "int8"):
        assert model[0].prepacked is model[2].prepacked
    assert model[0].prepacked is None


@needs_onednn
@pytest.mark.usefixtures("pack_small_weights")
@torch.no_grad()
def test_a_copied_model_packs_its_own_weights() -> None:
    model, x = nn.Sequential(Linear(4, 3)), torch.randn(2, 4)
    prepack(model)
    model(x)
    clone = copy.deepcopy(model)
    clone[0].weight.mul_(2)  # type: ignore[operator]
    torch.testing.assert_close(clone(x), F.linear(x, clone[0].weight, clone[0].bias))  # type: ignore[arg-type]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="int8 is for x86")
def test_int8_is_supported_where_pytorch_quantises_linear_layers() -> None:
    weight = torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8)
    try:
        torch.ops.quantized.linear_prepack(weight, None)
        quantises = True
    except RuntimeError:
        quantises = False
    assert supports("int8") == quantises


@needs_onednn
@pytest.mark.usefixtures("pack_small_weights")
def test_a_single_row_is_multiplied_by_large_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[torch.Size] = []
    monkeypatch.setattr(
        linear_module, "pack", lambda weight, precision: packed.append(weight.shape) or pack(weight, precision)
    )
    monkeypatch.setattr(linear_module, "MAX_SINGLE_ROW_SIZE", 64)
    small, large = Linear(8, 8), Linear(8, 9)
    model = nn.ModuleList((small, large)).eval()
    prepack(model)
    with torch.no_grad():
        for layer in (small, large):
            torch.testing.assert_close(layer(draw(1, 8)), F.linear(draw(1, 8), layer.weight, layer.bias))
        assert packed == [large.weight.shape]
        small(draw(2, 8))
    assert packed == [large.weight.shape, small.weight.shape]
