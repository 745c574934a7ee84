from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from regard.ops import dispatch
from regard.ops import quantized_weights as packed
from regard.ops.linear import Linear, PackedWeights, RoundedWeights, linear, linear_gelu, linear_relu
from regard.ops.linear_compiled import linear_relu_node
from regard.ops.linear_training import Product
from regard.ops.quantization import _roomy, pack, supports

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
packed_only = pytest.mark.skipif(not supports("float32"), reason="this processor has no packed products")


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is packed, however small."""
    monkeypatch.setattr(packed, "WORTH", 0)


@packed_only
@pytest.mark.usefixtures("small_ones_too")
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
@pytest.mark.parametrize(("rows", "is_packed"), [(128, False), (129, True)])
@torch.no_grad()
def test_small_weights_are_multiplied_as_they_are(rows: int, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    monkeypatch.setattr(packed, "pack", lambda weight, precision: met.append(len(weight)) or pack(weight, precision))
    linear, x = Linear(1024, rows), torch.randn(3, 1024)
    with PackedWeights():
        torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias))
    assert met == ([rows] if is_packed else [])


@packed_only
@pytest.mark.usefixtures("small_ones_too")
@torch.no_grad()
def test_a_weight_that_has_changed_is_packed_anew() -> None:
    linear, x, weights = Linear(8, 6), torch.randn(4, 8), PackedWeights()
    with weights:
        linear(x)
    linear.weight.mul_(2)
    weights.refresh()
    with weights:
        torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias))


@packed_only
@pytest.mark.usefixtures("small_ones_too")
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
    assert 20 < len(met) < 35


def test_rounding_up_adds_little_and_never_takes_away() -> None:
    for rows in range(1, 5000):
        assert rows <= _roomy(rows) <= max(4, 1.25 * rows + 3)


@pytest.mark.usefixtures("small_ones_too")
def test_gradients_are_never_taken_through_packed_weights() -> None:
    linear = Linear(4, 3)
    with PackedWeights():
        linear(torch.ones(2, 4)).sum().backward()
    assert linear.weight.grad is not None


def _drawn(*sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    N, W, F_ = sizes
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((N, W), (F_, W), (F_,))]


def _assert_alike(found: torch.Tensor, expected: torch.Tensor, given: list[torch.Tensor], **tolerance: float) -> None:
    """The same values and the same gradients."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, **tolerance)
    upstream = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(y, given, upstream) for y in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize(
    "way",
    [
        lambda *given: Product.apply(*given, "relu")[0],
        linear_relu_node,
        torch.compile(linear_relu_node, backend="aot_eager", fullgraph=True),
    ],
)
def test_a_product_and_its_activation_in_one_have_the_gradients_of_both(way: Any) -> None:
    given = _drawn(7, 5, 4)
    _assert_alike(way(*given), F.relu(F.linear(*given)), given)


@pytest.mark.parametrize("biased", [True, False])
def test_the_way_back_through_gelu_and_product_is_that_of_both(biased: bool) -> None:
    given = _drawn(7, 5, 4)[: 3 if biased else 2]
    found = Product.apply(*given, *[None] * (3 - len(given)), "gelu")[0]  # type: ignore[no-untyped-call]
    _assert_alike(found, F.gelu(F.linear(*given)), given)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_that_learns_has_the_gradients_of_any_other(rows: int, biased: bool) -> None:
    given = _drawn(rows, 5, 4)[: 3 if biased else 2]
    found = Product.apply(*given, *[None] * (4 - len(given)))[0]  # type: ignore[no-untyped-call]
    _assert_alike(found, F.linear(*given), given)


def test_only_what_learns_has_a_gradient() -> None:
    x, weight, bias = _drawn(7, 5, 4)
    y = Product.apply(x, weight.detach(), bias.detach(), "relu")[0]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x), torch.autograd.grad(F.relu(F.linear(x, weight, bias)).sum(), x)
    )


def test_weights_of_single_precision_have_gradients_of_single_precision() -> None:
    x, weight, bias = (tensor.detach().float() for tensor in _drawn(6, 8, 16))
    given = [x.bfloat16().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    y = Product.apply(*given, "relu")[0]  # type: ignore[no-untyped-call]
    assert y.dtype == torch.bfloat16
    assert [grad.dtype for grad in torch.autograd.grad(y.sum(), given)] == [tensor.dtype for tensor in given]


def test_the_operator_of_product_and_activation_keeps_the_promises_of_operators() -> None:
    torch.library.opcheck(linear_relu_node, tuple(_drawn(7, 5, 4)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_products_in_half_precision_are_as_precise_as_others(device: str) -> None:
    x, weight, bias = (tensor.detach().to(device, torch.float32) for tensor in _drawn(6, 8, 16))
    given = [tensor.requires_grad_() for tensor in (x.view(2, 3, 8), weight, bias)]
    with torch.autocast(device, torch.bfloat16):
        both = linear_relu(*given), F.relu(F.linear(*given))
        smooth = linear_gelu(*given), F.gelu(F.linear(*given))
        alone = linear(*given), F.linear(*given)
    for found, expected in (both, smooth, alone):
        _assert_alike(found, expected, given, atol=3e-2, rtol=3e-2)


def test_weights_that_are_rounded_at_once_are_those_rounded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    torch.manual_seed(0)
    model, other = torch.nn.Sequential(Linear(6, 8), Linear(8, 8)), Linear(8, 4)
    x, rounded = torch.randn(5, 6), RoundedWeights(model)
    wanted = [*model.parameters(), *other.parameters()]

    def step() -> list[torch.Tensor]:
        y = model(x)
        parts = zip(model[1].weight.split([2, 6]), model[1].bias.split([2, 6]), strict=True)
        queries, others = (linear(y, *part) for part in parts)
        total = other(y).sum() + queries.square().sum() + others.sin().sum()
        return [total, *torch.autograd.grad(total, wanted)]

    for _ in range(2):  # weights move, and so do the copies
        with torch.autocast("cpu", torch.bfloat16):
            expected = step()
            with rounded:
                casts = count_casts(step)
                found = step()
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
        assert casts == 3  # of x, and of weight and bias of the layer that is none of the model's
        with torch.no_grad():
            for parameter in wanted:
                parameter.mul_(1.5)


def count_casts(step: Any) -> int:
    """How many tensors are rounded on the way forward."""

    class Counting(TorchDispatchMode):
        casts = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.casts += (kwargs or {}).get("dtype") == torch.bfloat16
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        step()
    return counting.casts


@on_gpu
def test_products_that_learn_can_be_recorded() -> None:
    torch.manual_seed(0)
    inner, outer = (Linear(*sizes).cuda() for sizes in ((64, 128), (128, 64)))
    x = torch.randn(300, 64, device="cuda")
    parameters = [*inner.parameters(), *outer.parameters()]

    def step() -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            y = outer(linear_relu(x, inner.weight, inner.bias))
        return torch.autograd.grad(y.float().square().sum(), parameters)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        expected = step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.testing.assert_close(found, expected)
